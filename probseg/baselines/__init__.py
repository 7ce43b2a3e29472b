"""Methods without learnt weights, evaluated by clicks like the networks."""

from probseg.baselines.base import ClassicalModel
from probseg.baselines.box_filled import BoxFilled
from probseg.baselines.colour_mixture import ColourMixture
from probseg.baselines.opencv_grabcut import OpenCVGrabCut
from probseg.baselines.random_walker import RandomWalker

BASELINES: dict[str, type[ClassicalModel]] = {
    "box_filled": BoxFilled,
    "colour_mixture": ColourMixture,
    "opencv_grabcut": OpenCVGrabCut,
    "random_walker": RandomWalker,
}
"""Baselines by name."""

__all__ = [
    "BASELINES",
    "BoxFilled",
    "ClassicalModel",
    "ColourMixture",
    "OpenCVGrabCut",
    "RandomWalker",
]
