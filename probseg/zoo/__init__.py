"""The zoo: models by name, with checked weights and cards."""

from probseg.zoo.create import create_interactive, create_model, list_models, warm_start

__all__ = ["create_interactive", "create_model", "list_models", "warm_start"]
