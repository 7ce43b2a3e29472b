"""Zoom-in: the first click at several scales, then a window around the predicted object.

From the second click on, the scheme of f-BRS and RITM (Sofiiuk et al., 2020 and 2021): a window
around the last prediction and the positive clicks is cut out, resized, segmented, and its answer
put back; outside it nothing is object. The size of an object is unknown after one click: the
answers from windows of several sizes around it are compared, and the surest is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from probseg.clicks.boxes import Box
from probseg.interact.probability import ProbabilityMap
from probseg.models.encoded import Size
from probseg.types import Click

SMALLEST_SIDE = 48
"""Smallest side in pixels of a window around the first click, before the image's border cuts it."""

CUT = 0.3
"""Factor of the expected IoU of an answer that its window cuts, where the first is chosen."""


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
        shifted: Whether, as in the published code, clicks move with the ratio of the two sizes of a
            window although its corners stay aligned: what lies under a click is then off by up to
            half a pixel, where 200 pixels become 400. False is exact.
        first: Scales at which the first click is answered: sides of square windows around it, as
            fractions of the image's longer side. The answer with the largest `expected_iou` counts,
            after the `cut_factor`.
    """

    target: int = 400
    expansion: float = 1.4
    min_side: int = 200
    keep_above: float = 0.5
    skip_clicks: int = 1
    threshold: float = 0.5
    stale: bool = False
    shifted: bool = False
    first: tuple[float, ...] = (1.0,)


ZOOMS: dict[str, Zoom] = {
    "fixed": Zoom(),
    "ritm": Zoom(stale=True, shifted=True),
    "fixed_600": Zoom(target=600),
    "ritm_600": Zoom(target=600, stale=True, shifted=True),
    "scales": Zoom(first=(1.0, 0.5, 0.25)),
}
"""Zoom settings by name; those with 600 pixels are standard on DAVIS."""

RECOMMENDED_ZOOM = "scales"
"""Zoom of the predictor and of everything that serves people."""


def next_window(
    zoom: Zoom,
    window: Box | None,
    answer: ProbabilityMap,
    clicks: Sequence[Click],
) -> Box | None:
    """Return the window of the next answer; None for the whole image.

    Args:
        zoom: The rules.
        window: Window of the last answer; None for the whole image.
        answer: The last answer.
        clicks: All clicks, the new one included.
    """
    if len(clicks) <= zoom.skip_clicks or (found := answer.object_box(zoom.threshold)) is None:
        return None
    positive = [(int(click.x), int(click.y)) for click in clicks if click.positive]
    new = _object_window(zoom, found, answer.size, positive)
    if window is None:
        return new
    x0, y0, x1, y1 = window
    inside = all(x0 <= x < x1 - 1 and y0 <= y < y1 - 1 for x, y in positive)
    overlap = _interval_iou(window[0::2], new[0::2]) * _interval_iou(window[1::2], new[1::2])
    return window if inside and overlap >= zoom.keep_above else new


def first_windows(zoom: Zoom, click: Click, size: tuple[int, int]) -> list[Box | None]:
    """Return the windows among whose answers to the first click one is chosen.

    Args:
        zoom: The scales.
        click: The click.
        size: `(H, W)` of the image.

    Returns:
        A window for each scale, None for the whole image; each contains the click.
    """
    windows: list[Box | None] = []
    for scale in zoom.first:
        height, width = (min(side, max(SMALLEST_SIDE, round(scale * max(size)))) for side in size)
        x0 = min(max(int(click.x) - width // 2, 0), size[1] - width)
        y0 = min(max(int(click.y) - height // 2, 0), size[0] - height)
        window = x0, y0, x0 + width, y0 + height
        windows.append(None if (height, width) == size else window)
    return list(dict.fromkeys(windows))


def expected_iou(answer: ProbabilityMap) -> float:
    """Return the IoU that an answer expects of itself.

    Of the object, whose pixels are independent, `p` is expected to be inside of the mask and `p`
    outside: the IoU is the sum of `p` in the mask over the area of the mask and the sum outside.

    Args:
        answer: The answer from a window, or from the whole image.

    Returns:
        From 0, for an empty mask, to 1.
    """
    probability = answer.array()
    inside = probability > 0.5
    area = int(inside.sum())
    if not area:
        return 0.0
    hit = float(probability[inside].sum())
    return hit / (area + float(probability.sum()) - hit)


def cut_factor(answer: ProbabilityMap) -> float:
    """Return `CUT` where the window of an answer cuts its mask, else 1."""
    return CUT if _is_cut(answer.array() > 0.5, answer.box, answer.size) else 1.0


def _is_cut(inside: npt.NDArray[np.bool_], window: Box, size: Size) -> bool:
    """Return whether a window's mask reaches a side of it that is no side of the image `(H, W)`."""
    x0, y0, x1, y1 = window
    height, width = size
    sides = (
        x0 > 0 and inside[:, 0].any(),
        x1 < width and inside[:, -1].any(),
        y0 > 0 and inside[0].any(),
        y1 < height and inside[-1].any(),
    )
    return any(sides)


def scaled_size(size: tuple[int, int], target: int) -> tuple[int, int]:
    """Return `(H, W)` of a window of this size when its longer side is `target`."""
    scale = target / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _object_window(
    zoom: Zoom, predicted: Box, size: Size, positive: Sequence[tuple[int, int]]
) -> Box:
    x0, y0, x1, y1 = predicted
    xs = [x0, x1 - 1, *(x for x, _ in positive)]
    ys = [y0, y1 - 1, *(y for _, y in positive)]
    height, width = size
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
