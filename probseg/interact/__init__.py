"""Interaction loop and predictor, independent of data sets, protocols and reports."""

from probseg.interact.batches import Model, OneStep
from probseg.interact.loop import InteractionLoop
from probseg.interact.states import InteractionState, begin, image_tensor
from probseg.interact.zoom import RECOMMENDED_ZOOM, ZOOMS, Zoom

__all__ = [
    "RECOMMENDED_ZOOM",
    "ZOOMS",
    "InteractionLoop",
    "InteractionState",
    "Model",
    "OneStep",
    "Zoom",
    "begin",
    "image_tensor",
]
