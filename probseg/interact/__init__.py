"""Sessions, interaction loop and predictor, independent of data sets, protocols and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probseg.geometry import RECOMMENDED_ZOOM, ZOOMS, Zoom
from probseg.interact.loop import InteractionLoop, InteractionState, begin
from probseg.interact.photograph import image_tensor
from probseg.kinds import lazy_getattr
from probseg.models.network import Model, OneStep

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

# names whose modules an evaluation does not need: imported on first use
_LAZY = {
    "Mask": "probseg.interact.mask.Mask",
    "Predictor": "probseg.interact.predictor.Predictor",
    "Session": "probseg.interact.session.Session",
}

__getattr__ = lazy_getattr(__name__, _LAZY)
