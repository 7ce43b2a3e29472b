"""Training crops of photographs with a class for each pixel."""

from __future__ import annotations

import numpy as np

from probseg.data.transforms import Pair, check_scale, cut_window, rescaled
from probseg.semantic.dataset import SemanticSample


class SemanticCrop:
    """Changes the scale of a photograph, cuts a fixed size out of it, and mirrors one in two.

    What lies outside the photograph is black in the image and ignored in the labels, so that it
    plays no part in the loss. Labels are never blended. The network fills whole photographs up
    with the mean colour instead: by less than its stride, on two sides, and what is predicted there
    is cut off. In both cases filled pixels only surround those that count; no class is learnt for
    black, and a strip of a few pixels has little to say in evaluation.

    Args:
        size: Side of the square result in pixels, or its height and width.
        scale: Smallest and largest factor by which the photograph is scaled first.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, size: int | tuple[int, int] = 513, scale: tuple[float, float] = (0.5, 2.0)
    ) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        if min(height, width) < 32:
            msg = f"`size` must be at least 32 pixels, got {size}"
            raise ValueError(msg)
        check_scale(scale)
        self.size = (height, width)
        self.scale = scale

    def __call__(self, sample: SemanticSample, seed: int) -> Pair:
        """Cut out a crop.

        Args:
            sample: The photograph.
            seed: Of all randomness, at least 0.

        Returns:
            Image `(height, width, 3)` and labels `(height, width)`, both uint8.
        """
        generator = np.random.default_rng(seed)
        scaled = rescaled(sample.image, sample.labels, generator.uniform(*self.scale))
        return cut_window(*scaled, self.size, generator)
