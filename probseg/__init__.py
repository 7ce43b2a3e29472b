"""Click-based interactive image segmentation with probabilistic attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probseg.kinds import lazy_getattr

if TYPE_CHECKING:
    from probseg.cli import train
    from probseg.interact.predictor import Predictor
    from probseg.types import Click
    from probseg.zoo import create_model, list_models

__version__ = "0.1.0"
__all__ = ["Click", "Predictor", "__version__", "create_model", "list_models", "train"]

_LAZY = {
    "Click": "probseg.types.Click",
    "Predictor": "probseg.interact.predictor.Predictor",
    "create_model": "probseg.zoo.create_model",
    "list_models": "probseg.zoo.list_models",
    "train": "probseg.cli.train",
}
"""Public names whose modules import torch, which takes seconds: loaded on first use."""

__getattr__ = lazy_getattr(__name__, _LAZY)
