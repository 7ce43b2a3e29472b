"""Boxes as they are drawn by hand, and scribbles as clicks.

All boxes are `(x0, y0, x1, y1)` in whole pixels, half-open, and every `size` is `(height, width)`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from probseg.geometry import Box
from probseg.types import IGNORE, Click


def jitter_box(
    box: Box, noise: float, size: tuple[int, int], generator: np.random.Generator
) -> Box:
    """Move each corner coordinate at random, as a model of imprecise annotation.

    A coordinate moves by a whole number of pixels, uniform in `[-m, m]` with `m` the whole part
    of `noise` times the side of the box along that axis, and is then clipped to the image. The box
    keeps at least one pixel; four numbers are drawn (x0, y0, x1, y1).
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


def scribble_clicks(strokes: npt.NDArray[np.uint8], spacing: float) -> tuple[Click, ...]:
    """Return clicks on strokes whose disks of radius `spacing` cover the strokes.

    Strokes are uint8 `(H, W)`: 1 on the object, 0 on the background, 255 elsewhere. Object strokes
    come first, then those of the background. In each, greedily and in row-major order: the first
    pixel that no disk covers is clicked. Two clicks of one sign are thus more than `spacing` apart,
    and every pixel of a stroke is at most `spacing` from a click of its sign.
    """
    if not 0 < spacing < math.inf:
        message = f"`spacing` must be a number of pixels above 0, got {spacing}"
        raise ValueError(message)
    if strokes.ndim != 2 or strokes.dtype != np.uint8:
        message = f"`strokes` must be uint8 (H, W), got {strokes.dtype} {strokes.shape}"
        raise ValueError(message)
    odd = strokes[(strokes > 1) & (strokes != IGNORE)]
    if odd.size:
        got = np.unique(odd).tolist()
        message = f"`strokes` must have the values 0, 1 and {IGNORE} (no stroke) alone, got {got}"
        raise ValueError(message)
    return tuple(
        Click(x, y, positive)
        for positive in (True, False)
        for x, y in _cover(strokes == int(positive), spacing)
    )


def _cover(stroke: npt.NDArray[np.bool_], spacing: float) -> list[tuple[int, int]]:
    """Return pixels `(x, y)` of a stroke whose disks cover it."""
    reach = min(math.floor(spacing), max(stroke.shape))
    rows, columns = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    beyond = rows**2 + columns**2 > spacing**2
    left = np.pad(stroke, reach)  # so that every disk fits in
    chosen = []
    for y, x in np.argwhere(stroke).tolist():
        if left[y + reach, x + reach]:
            chosen.append((x, y))
            left[y : y + 2 * reach + 1, x : x + 2 * reach + 1] &= beyond
    return chosen
