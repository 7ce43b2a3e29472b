"""A baseline from the prompts alone."""

from __future__ import annotations

import numpy as np

from probseg.clicks.boxes import Box
from probseg.lab.baselines.base import ClassicalModel, FloatMap, Image
from probseg.lab.baselines.scene import make_scene
from probseg.types import Click


class BoxFilled(ClassicalModel):
    """The filled box: the lower bound of every curve.

    Without a box, disks of a tenth of the image's longer side around the positive clicks, as far as
    no negative click is nearer; a previous mask takes the place of both. Each click paints a
    disk of a fiftieth of the longer side. Nothing is object before the first positive click
    where there is no box.
    """

    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Draw the prompts; see `ClassicalModel.segment`."""
        return make_scene(image, clicks, box, previous).guess.astype(np.float32)
