"""OpenCV's GrabCut (Rother, Kolmogorov and Blake, 2004)."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from probseg.clicks.annotators import BoolMap
from probseg.clicks.boxes import Box
from probseg.lab.baselines.base import ClassicalModel, FloatMap, Image
from probseg.lab.baselines.scene import Scene, border, make_scene
from probseg.types import Click

SEED = 0
"""Seed of OpenCV's k-means, set for each answer."""


class OpenCVGrabCut(ClassicalModel):
    """GrabCut: a Gaussian mixture of colours for object and background each, and a minimum cut.

    Every answer starts from the prompts, not from the answer before. Disks around the clicks are
    certain. With a box, its inside is probably object, and what is outside by more than a tenth of
    its longer side is certainly background, but for positive clicks there: boxes are drawn by
    hand. Without one, disks of a tenth of the image's longer side around the positive clicks are
    probably object. A previous mask takes the place of the box's inside or of the disks. All the
    rest is probably background, and so are the outermost pixels of the image where all would be
    object.

    Of an answer to clicks alone, the connected parts with a positive click are kept; with a box or
    a previous mask, the object may have parts that nobody clicked on. Where there is no object
    or no background to begin with, or the image has a single colour, the mixtures have nothing to
    tell apart, and the answer depends on the prompts alone.

    The answer is binary: its probabilities are 0 and 1, but for the enlarged contour.

    Args:
        working_size: Longer side in pixels that images are reduced to.
        iterations: Of fitting the mixtures and cutting.
    """

    def __init__(self, working_size: int = 256, iterations: int = 3) -> None:
        self.working_size = working_size
        self.iterations = iterations

    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Segment one image; see `ClassicalModel.segment`."""
        scene = make_scene(image, clicks, box, previous, self.working_size)
        labels = _labels(scene)
        begun = labels & 1 == 1  # GC_FGD and GC_PR_FGD are odd
        colours = scene.image.reshape(-1, 3)
        found = scene.guess
        if begun.any() and not begun.all() and (colours != colours[0]).any():
            found = self._cut(scene.image, labels)
        if box is None and previous is None:
            found = _touching(found, scene.seeds > 0)
        return scene.enlarged(found)

    def _cut(self, image: Image, labels: npt.NDArray[np.uint8]) -> BoolMap:
        """Return the object, bool, shape `(h, w)`."""
        cv2.setRNGSeed(SEED)  # of this thread alone
        labels, _, _ = cv2.grabCut(
            np.ascontiguousarray(image[..., ::-1]),  # BGR
            labels,
            None,
            np.zeros((1, 65)),
            np.zeros((1, 65)),
            self.iterations,
            cv2.GC_INIT_WITH_MASK,
        )
        return np.asarray(labels & 1 == 1)


def _labels(scene: Scene) -> npt.NDArray[np.uint8]:
    """Return OpenCV's labels, uint8, shape `(h, w)`."""
    labels = np.where(scene.guess, cv2.GC_PR_FGD, cv2.GC_PR_BGD)
    labels[scene.outside] = cv2.GC_BGD
    if scene.guess.all():
        labels[border(scene.guess.shape)] = cv2.GC_PR_BGD
    labels[scene.seeds > 0] = cv2.GC_FGD
    labels[scene.seeds < 0] = cv2.GC_BGD
    return labels.astype(np.uint8)


def _touching(found: BoolMap, seeds: BoolMap) -> BoolMap:
    """Return the 8-connected parts of a map that have a seed."""
    _, parts = cv2.connectedComponents(found.astype(np.uint8), connectivity=8)
    return np.isin(parts, np.unique(parts[seeds & found]))
