"""Sessions, interaction loop and predictor, independent of data sets, protocols and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probseg.interact.batches import Model, OneStep
from probseg.interact.loop import InteractionLoop
from probseg.interact.states import InteractionState, begin, image_tensor
from probseg.interact.zoom import RECOMMENDED_ZOOM, ZOOMS, Zoom

if TYPE_CHECKING:
    from probseg.interact.mask import Mask
    from probseg.interact.predictor import Predictor
    from probseg.interact.session import Session

__all__ = [
    "RECOMMENDED_ZOOM",
    "ZOOMS",
    "InteractionLoop",
    "InteractionState",
    "Mask",
    "Model",
    "OneStep",
    "Predictor",
    "Session",
    "Zoom",
    "begin",
    "image_tensor",
]

_LAZY = {
    "Mask": "probseg.interact.mask",
    "Predictor": "probseg.interact.predictor",
    "Session": "probseg.interact.session",
}
"""Names whose modules an evaluation does not need: imported on first use."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    msg = f"module 'probseg.interact' has no attribute {name!r}"
    raise AttributeError(msg)
