"""Methods without learnt weights, evaluated by clicks like the networks."""

from probseg.lab.baselines.base import ClassicalModel
from probseg.lab.baselines.box_filled import BoxFilled
from probseg.lab.baselines.colour_mixture import ColourMixture
from probseg.lab.baselines.opencv_grabcut import OpenCVGrabCut
from probseg.lab.baselines.random_walker import RandomWalker

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
