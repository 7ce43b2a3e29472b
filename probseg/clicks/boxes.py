"""Boxes of objects: the box of a mask, a hand-drawn version of it, and the crop around it.

All boxes are `(x0, y0, x1, y1)` in whole pixels, half-open, and every `size` is
`(height, width)`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Box = tuple[int, int, int, int]

CROP_PADDING, MIN_PADDING = 0.2, 16
"""Margin around a box: share of its longer side, least pixels (Gabbur et al. 2021, App. C.3)."""


def mask_box(mask: npt.NDArray[np.uint8 | np.bool_]) -> Box:
    """Return the smallest box that holds the object.

    Args:
        mask: uint8 or bool, shape `(H, W)`: 1 object; no other value is, 255 included.

    Raises:
        ValueError: If the mask has no object pixel.
    """
    inside = mask == 1
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    if rows.size == 0:
        message = "`mask` must have at least one pixel of value 1 (object), got none"
        raise ValueError(message)
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def jitter_box(
    box: Box, noise: float, size: tuple[int, int], generator: np.random.Generator
) -> Box:
    """Move each corner coordinate at random, as a model of imprecise annotation.

    A coordinate moves by a whole number of pixels, uniform in `[-m, m]` with `m` the whole part
    of `noise` times the side of the box along that axis, and is then clipped to the image.

    Args:
        box: Box inside the image.
        noise: Largest move as a fraction of the side, `0 <= noise < 0.5`.
        size: `(height, width)` of the image.
        generator: Source of the four draws (x0, y0, x1, y1).

    Returns:
        A box of at least one pixel inside the image.

    Raises:
        ValueError: If `noise` is out of range.
    """
    if not 0 <= noise < 0.5:
        message = f"`noise` must be a fraction in [0, 0.5), got {noise}"
        raise ValueError(message)
    x0, y0, x1, y1 = box
    height, width = size
    most = np.array([math.floor(noise * (x1 - x0)), math.floor(noise * (y1 - y0))] * 2)
    moved = np.array(box) + generator.integers(-most, most, endpoint=True)
    clipped = np.clip(moved, 0, [width, height, width, height])
    return int(clipped[0]), int(clipped[1]), int(clipped[2]), int(clipped[3])


def padded_crop(
    box: Box,
    size: tuple[int, int],
    *,
    padding: float = CROP_PADDING,
    min_padding: int = MIN_PADDING,
) -> Box:
    """Return the part of the image around a box: the box and a margin, clipped to the image.

    Args:
        box: Box inside the image.
        size: `(height, width)` of the image.
        padding: Margin on each side as a fraction of the longer side of the box, rounded up.
        min_padding: Smallest margin in pixels.
    """
    x0, y0, x1, y1 = box
    height, width = size
    margin = max(min_padding, math.ceil(padding * max(x1 - x0, y1 - y0)))
    return (
        max(0, x0 - margin),
        max(0, y0 - margin),
        min(width, x1 + margin),
        min(height, y1 + margin),
    )
