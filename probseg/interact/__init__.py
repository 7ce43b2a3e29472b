"""Interaction loop and predictor, independent of data sets, protocols and reports."""

from probseg.interact.loop import InteractionLoop, Model, OneStep
from probseg.interact.states import InteractionState, begin, image_tensor
from probseg.interact.zoom import ZOOMS, Zoom

__all__ = [
    "ZOOMS",
    "InteractionLoop",
    "InteractionState",
    "Model",
    "OneStep",
    "Zoom",
    "begin",
    "image_tensor",
]
