"""The project's own attention on raw colours: clicks propagate without any learnt feature."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from skimage.color import rgb2lab

from probseg.clicks.boxes import Box
from probseg.lab.baselines.base import ClassicalModel, FloatMap, Image
from probseg.lab.baselines.scene import Scene, make_scene
from probseg.ops import ValuePropagation, probabilistic_attention
from probseg.types import Click


class ColourMixture(ClassicalModel):
    """Value propagation (Gabbur et al., 2021, Eqs. 23 and 24) between pixels of like colour.

    Each pixel of the reduced image is a query and a unit of the mixture: its key is its colour and
    its place, its initial value depends on the prompts alone, not on the image (see
    `make_scene` in `probseg.lab.baselines.scene`). The pixels of disks around the clicks are
    observed, +1 and -1, and propagate to the units; then each pixel reads out its value from all
    units. A probability is the value's place between -1 and 1.

    What it reaches is what `probseg.ops.probabilistic_attention` does on raw pixels. The scales
    were chosen by a small random search on photographs with other objects than the test sets'.

    Args:
        working_size: Longer side in pixels that images are reduced to; the time grows with its
            fourth power.
        colour_scale: Standard deviation of a unit, in CIE Lab.
        position_scale: Standard deviation of a unit, as a fraction of the longer side.
        value_precision: `beta` of the units.
        prior_precision: `theta`: how much the values stay where they began. The weight of an
            observation is shared by all the units that explain it, and so this is small.
        object_value: Where the values of probable object begin, at most 1.
        background_value: Where all others begin, at least -1.
        iterations: Of propagation.
    """

    def __init__(
        self,
        working_size: int = 64,
        colour_scale: float = 6.0,
        position_scale: float = 0.1,
        value_precision: float = 0.5,
        prior_precision: float = 5e-3,
        object_value: float = 1.0,
        background_value: float = -0.5,
        iterations: int = 3,
    ) -> None:
        self.working_size = working_size
        self.colour_scale = colour_scale
        self.position_scale = position_scale
        self.value_precision = value_precision
        self.propagation = ValuePropagation(iterations, prior_precision)
        self.object_value = object_value
        self.background_value = background_value

    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Segment one image; see `ClassicalModel.segment`."""
        scene = make_scene(image, clicks, box, previous, self.working_size)
        tokens = torch.from_numpy(self._features(scene))[None, None]  # (1, 1, h w, 5)
        begun = np.where(scene.guess, self.object_value, self.background_value)
        values = torch.from_numpy(begun.astype(np.float32)).view(1, 1, -1, 1)
        observed = torch.from_numpy(scene.seeds.astype(np.float32)).view(1, 1, -1, 1)
        clicked = observed[0, :, :, 0] != 0  # (1, h w)
        with torch.no_grad():  # threads do not inherit it
            answer = probabilistic_attention(
                tokens,
                tokens,
                values,
                query_precision=1.0,
                value_precision=self.value_precision,
                log_prior="uniform",
                value_propagation=self.propagation,
                fixed_values=observed,
                fixed_mask=clicked,
                clamp_fixed=True,
            )
        inferred = answer.values.view(scene.guess.shape).numpy()
        # Means of values in [-1, 1] leave it by rounding only.
        return scene.enlarged(((inferred + 1) / 2).clip(0, 1))

    def _features(self, scene: Scene) -> npt.NDArray[np.float32]:
        """Return colour and place of the pixels in units of the scales, shape `(h w, 5)`."""
        height, width = scene.guess.shape
        y, x = np.mgrid[:height, :width]
        places = np.stack([x, y], axis=-1) / (self.position_scale * max(height, width))
        colours = rgb2lab(scene.image) / self.colour_scale
        return np.concatenate([colours, places], axis=-1).reshape(-1, 5).astype(np.float32)
