"""Click-based interactive image segmentation with probabilistic attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probseg.interact.predictor import Predictor
    from probseg.types import Click
    from probseg.zoo import create_model, list_models

__version__ = "0.1.0"
__all__ = ["Click", "Predictor", "__version__", "create_model", "list_models"]

_LAZY = {
    "Click": "probseg.types",
    "Predictor": "probseg.interact.predictor",
    "create_model": "probseg.zoo",
    "list_models": "probseg.zoo",
}
"""Public names whose modules import torch, which takes seconds: loaded on first use."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    msg = f"module 'probseg' has no attribute {name!r}"
    raise AttributeError(msg)
