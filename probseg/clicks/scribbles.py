"""Scribbles as clicks, for models whose only prompts are clicks."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from probseg.types import IGNORE, Click


def scribble_clicks(strokes: npt.NDArray[np.uint8], spacing: float) -> tuple[Click, ...]:
    """Return clicks on the strokes whose disks cover the strokes.

    Object strokes come first, then those of the background. In each, greedily and in row-major
    order: the first pixel that no disk covers is clicked. Two clicks of one sign are thus more
    than `spacing` apart, and every pixel of a stroke is at most `spacing` from a click of its
    sign.

    Args:
        strokes: uint8, shape `(H, W)`: 1 on the object, 0 on the background, 255 no stroke.
        spacing: Radius of the disks in pixels, above 0.

    Returns:
        Clicks on whole pixels; none where there is no stroke.

    Raises:
        ValueError: If `strokes` has another dtype, shape or value, or `spacing` is not a
            number of pixels above 0.
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
