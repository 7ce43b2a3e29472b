"""The zoo: models by name, with checked weights and cards."""

from probseg.zoo.create import create_model, list_models

__all__ = ["create_model", "list_models"]
