"""scikit-image's random walker (Grady, 2006)."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
from skimage.color import rgb2lab
from skimage.segmentation import random_walker

from probseg.clicks.annotators import BoolMap
from probseg.clicks.boxes import Box
from probseg.lab.baselines.base import ClassicalModel, FloatMap, Image
from probseg.lab.baselines.scene import Scene, border, make_scene
from probseg.types import Click

CORE = 0.6
"""Part of the largest distance to the contour from which on a pixel is in the core of a shape."""

OBJECT, BACKGROUND = 1, 2
"""Labels of the seeds; 0 has none."""


class RandomWalker(ClassicalModel):
    """The probability that a walk from a pixel, which avoids edges, ends at the object's seeds.

    Seeds are disks around the clicks and, with a box, what is outside by more than a tenth of its
    longer side, but for positive clicks there. Where there is no such place, the outermost pixels
    of the image are background, but for those within a tenth of its longer side of a positive
    click: a walk has to be able to end there. The core of a box is object, but for disks of that
    size around negative clicks.

    Seeds are facts, and a previous mask is none: it is not used. Where there is no seed of the
    object or of the background, and where the image has a single colour, the answer is what
    the prompts alone say.

    Args:
        working_size: Longer side in pixels that images are reduced to.
        beta: How much walks avoid edges; of CIE Lab over 100, and scaled as
            `skimage.segmentation.random_walker` says.
    """

    def __init__(self, working_size: int = 96, beta: float = 4000.0) -> None:
        self.working_size = working_size
        self.beta = beta

    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Segment one image; see `ClassicalModel.segment`."""
        scene = make_scene(image, clicks, box, None, self.working_size)
        labels = _labels(scene)
        colours = rgb2lab(scene.image) / 100  # (h, w, 3)
        walks = colours.std() > 0 and {OBJECT, BACKGROUND, 0} <= set(labels.flat)
        if not walks:
            return scene.enlarged(scene.guess)
        of_object, _ = random_walker(
            colours, labels, beta=self.beta, mode="bf", return_full_prob=True, channel_axis=-1
        )
        # Solvers overshoot by rounding.
        return scene.enlarged(of_object.clip(0, 1))


def _labels(scene: Scene) -> npt.NDArray[np.uint8]:
    """Return the seeds, uint8, shape `(h, w)`."""
    size = scene.guess.shape
    labels = np.zeros(size, dtype=np.uint8)
    labels[scene.outside] = BACKGROUND
    if not scene.outside.any():
        labels[border(size) & (scene.to_object > scene.guess_radius)] = BACKGROUND
    if scene.inside is not None:
        labels[_core(scene.inside) & (scene.to_background > scene.guess_radius)] = OBJECT
    labels[scene.seeds > 0] = OBJECT
    labels[scene.seeds < 0] = BACKGROUND
    return labels


def _core(shape: BoolMap) -> BoolMap:
    """Return the pixels that are far inside a shape; the border of the image ends it, too."""
    padded = np.pad(shape, 1).astype(np.uint8)
    distance = cv2.distanceTransform(padded, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[1:-1, 1:-1]
    return np.asarray(distance >= max(CORE * distance.max(), 1))
