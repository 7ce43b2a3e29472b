"""Zoom-in: from the second click on, the model gets a window around the predicted object.

The scheme of f-BRS and RITM (Sofiiuk et al., 2020 and 2021): a window around the last prediction
and the positive clicks is cut out, resized, segmented, and its answer put back; outside it nothing
is object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from probseg.clicks.boxes import Box, mask_box
from probseg.types import Click


@dataclass(frozen=True)
class Zoom:
    """Settings of the zoom-in.

    Args:
        target: Longer side in pixels that a window is resized to.
        expansion: Ratio of the window's sides to the sides of the box around prediction and clicks.
        min_side: Smallest side of the window in pixels, before it is cut at the image's border.
        keep_above: The old window stays while its overlap with the new one, the product of the
            IoUs of their rows and columns, is at least this and all positive clicks lie inside,
            its last row and column left out, as in the published code.
        skip_clicks: With so many clicks or fewer, the model sees the whole image.
        threshold: What counts as predicted is of a probability above this.
        stale: Whether, as in the published code, the answer to the whole image is squeezed into the
            old window when the last prediction was empty. False forgets the window instead.
    """

    target: int = 400
    expansion: float = 1.4
    min_side: int = 200
    keep_above: float = 0.5
    skip_clicks: int = 1
    threshold: float = 0.5
    stale: bool = False


ZOOMS: dict[str, Zoom] = {
    "fixed": Zoom(),
    "ritm": Zoom(stale=True),
    "fixed_600": Zoom(target=600),
    "ritm_600": Zoom(target=600, stale=True),
}
"""Zoom settings by name; those with 600 pixels are standard on DAVIS."""


def next_window(
    zoom: Zoom,
    window: Box | None,
    probability: npt.NDArray[np.float32],
    clicks: Sequence[Click],
) -> Box | None:
    """Return the window of the next answer; None for the whole image.

    Args:
        zoom: The rules.
        window: Window of the last answer; None for the whole image.
        probability: The last answer, shape `(H, W)`.
        clicks: All clicks, the new one included.
    """
    predicted = probability > zoom.threshold
    if len(clicks) <= zoom.skip_clicks or not predicted.any():
        return None
    positive = [(int(click.x), int(click.y)) for click in clicks if click.positive]
    new = _object_window(zoom, predicted, positive)
    if window is None:
        return new
    x0, y0, x1, y1 = window
    inside = all(x0 <= x < x1 - 1 and y0 <= y < y1 - 1 for x, y in positive)
    overlap = _interval_iou(window[0::2], new[0::2]) * _interval_iou(window[1::2], new[1::2])
    return window if inside and overlap >= zoom.keep_above else new


def scaled_size(size: tuple[int, int], target: int) -> tuple[int, int]:
    """Return `(H, W)` of a window of this size when its longer side is `target`."""
    scale = target / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _object_window(
    zoom: Zoom, predicted: npt.NDArray[np.bool_], positive: Sequence[tuple[int, int]]
) -> Box:
    x0, y0, x1, y1 = mask_box(predicted)
    xs = [x0, x1 - 1, *(x for x, _ in positive)]
    ys = [y0, y1 - 1, *(y for _, y in positive)]
    height, width = predicted.shape
    x0, x1 = _widened(min(xs), max(xs), zoom, width)
    y0, y1 = _widened(min(ys), max(ys), zoom, height)
    return x0, y0, x1, y1


def _widened(first: int, last: int, zoom: Zoom, length: int) -> tuple[int, int]:
    """Widen an interval of pixels about its centre, and cut it at the image's border.

    Args:
        first: The first pixel.
        last: The last pixel, inside the interval.
        zoom: By how much.
        length: Number of pixels of the image.

    Returns:
        The new interval, half-open.
    """
    centre = 0.5 * (first + last)
    side = max(zoom.expansion * (last - first + 1), zoom.min_side)
    return max(0, round(centre - 0.5 * side)), min(length - 1, round(centre + 0.5 * side)) + 1


def _interval_iou(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the IoU of two half-open intervals of pixels."""
    inside = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return inside / max(1e-6, max(a[1], b[1]) - min(a[0], b[0]))
