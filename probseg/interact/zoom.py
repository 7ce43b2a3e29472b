"""Zoom-in: the first click at several scales, then a window around the predicted object.

From the second click on, the scheme of f-BRS and RITM (Sofiiuk et al., 2020 and 2021): a window
around the last prediction and the positive clicks is cut out, resized, segmented, and its answer
put back; outside it nothing is object. The size of an object is unknown after one click: the
answers from windows of several sizes around it are compared, and the surest is taken. A second
look at a smaller window around the last click refines the answer there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from probseg.clicks.boxes import Box
from probseg.interact.photograph import box_size, positions
from probseg.interact.probability import ProbabilityMap
from probseg.models.network import Size, scaled
from probseg.types import Click

SMALLEST_SIDE = 48
"""Smallest side in pixels of a window around the first click, before the image's border cuts it."""

RIM = 8
"""The rim of a second look, where it fades into the answer, is its side over this."""

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
        look: Side of the second look around the last click, from the second click on, as a fraction
            of the longer side of the window; the answer so far is its previous mask. Answers
            without a click to look at are given once more with themselves as the previous mask, as
            in CFR-ICL (Sun et al., 2023). None: neither.
        look_target: Longer side in pixels that a smaller look is enlarged to; larger ones are
            shown at their own size, up to `target`.
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
    look: float | None = None
    look_target: int = 256


ZOOMS: dict[str, Zoom] = {
    "fixed": Zoom(),
    "ritm": Zoom(stale=True, shifted=True),
    "fixed_600": Zoom(target=600),
    "ritm_600": Zoom(target=600, stale=True, shifted=True),
    "scales": Zoom(first=(1.0, 0.5, 0.25)),
    "look": Zoom(first=(1.0, 0.5, 0.25), look=0.5),
}
"""Zoom settings by name; those with 600 pixels are standard on DAVIS."""

RECOMMENDED_ZOOM = "look"
"""Zoom of the predictor and of everything that serves people."""


def next_window(
    zoom: Zoom,
    window: Box | None,
    answer: ProbabilityMap,
    clicks: Sequence[Click],
) -> Box | None:
    """Return the window of the next answer, after that of the last; None for the whole image.

    The new click is the last one of `clicks`.
    """
    if len(clicks) <= zoom.skip_clicks or (predicted := answer.object_box(zoom.threshold)) is None:
        return None
    positive = [(int(click.x), int(click.y)) for click in clicks if click.positive]
    (x0, y0, x1, y1), (height, width) = predicted, answer.size
    xs = [x0, x1 - 1, *(x for x, _ in positive)]
    ys = [y0, y1 - 1, *(y for _, y in positive)]
    x0, x1 = _widened(min(xs), max(xs), zoom, width)
    y0, y1 = _widened(min(ys), max(ys), zoom, height)
    new = x0, y0, x1, y1
    if window is None:
        return new
    x0, y0, x1, y1 = window
    inside = all(x0 <= x < x1 - 1 and y0 <= y < y1 - 1 for x, y in positive)
    return window if inside and _overlap(window, new) >= zoom.keep_above else new


def first_windows(zoom: Zoom, click: Click, size: tuple[int, int]) -> list[Box | None]:
    """Return windows around the first click, one a scale; None is the whole image `(H, W)`."""
    windows: list[Box | None] = []
    for scale in zoom.first:
        window = _square(click, max(SMALLEST_SIDE, round(scale * max(size))), size)
        windows.append(None if box_size(window) == size else window)
    return list(dict.fromkeys(windows))


def look_window(zoom: Zoom, window: Box, click: Click, size: Size, last: Box | None) -> Box:
    """Return the window of a second look around a click, in the window that the model sees first.

    The last one stays, and need not be encoded again, where it is much the same and the click not
    on its rim. It is None before the first look; `size` is `(H, W)` of the image.
    """
    assert zoom.look is not None, "there is a second look"
    new = _square(click, round(zoom.look * max(*box_size(window), zoom.min_side)), size)
    if last is None or _overlap(last, new) < zoom.keep_above:
        return new
    x0, y0, x1, y1 = _within_rim(last, size)
    return last if x0 <= click.x < x1 and y0 <= click.y < y1 else new


def with_look(answer: ProbabilityMap, look: ProbabilityMap) -> ProbabilityMap:
    """Return an answer with the second look in its window, which fades out on its rim."""
    box = (
        min(answer.box[0], look.box[0]),
        min(answer.box[1], look.box[1]),
        max(answer.box[2], look.box[2]),
        max(answer.box[3], look.box[3]),
    )
    # As dense as the denser of the two, but no denser than pixels.
    height, width = (
        round(length * min(1, max(a / b, c / d)))
        for length, a, b, c, d in zip(
            box_size(box),
            answer.values.shape,
            box_size(answer.box),
            look.values.shape,
            box_size(look.box),
            strict=True,
        )
    )
    inner = _within_rim(look.box, look.size)
    rows, columns = (
        _share(
            positions(box[axis], box[axis + 2] - box[axis], count),
            look.box[axis::2],
            inner[axis::2],
        )
        for axis, count in ((1, height), (0, width))
    )
    share = (rows[:, None] * columns).to(answer.values)
    below, above = (part.part(box, (height, width))[0] for part in (answer, look))
    return replace(answer, values=torch.lerp(below, above, share), box=box)


def expected_iou(answer: ProbabilityMap) -> float:
    """Return the IoU that an answer expects of itself, from 0 of an empty mask to 1.

    Of the object, whose pixels are independent, `p` is expected to be inside of the mask and `p`
    outside: the IoU is the sum of `p` in the mask over the area of the mask and the sum outside.
    """
    probability = answer.array()
    inside = probability > 0.5
    area = int(inside.sum())
    if not area:
        return 0.0
    hit = float(probability[inside].sum())
    return hit / (area + float(probability.sum()) - hit)


def cut_factor(answer: ProbabilityMap) -> float:
    """Return `CUT` where a window cuts its mask, at a side that is no side of the image, else 1."""
    inside = answer.array() > 0.5
    x0, y0, x1, y1 = answer.box
    height, width = answer.size
    cut = (
        (x0 > 0 and inside[:, 0].any())
        or (x1 < width and inside[:, -1].any())
        or (y0 > 0 and inside[0].any())
        or (y1 < height and inside[-1].any())
    )
    return CUT if cut else 1.0


def look_size(zoom: Zoom, window: Box) -> Size:
    """Return `(h, w)` at which the model sees the window of a second look."""
    size = box_size(window)
    return scaled(size, min(max(*size, zoom.look_target), zoom.target))


def _widened(first: int, last: int, zoom: Zoom, length: int) -> tuple[int, int]:
    """Widen an interval of pixels about its centre, and cut it at the image's border; half-open."""
    centre = 0.5 * (first + last)
    side = max(zoom.expansion * (last - first + 1), zoom.min_side)
    return max(0, round(centre - 0.5 * side)), min(length - 1, round(centre + 0.5 * side)) + 1


def _square(click: Click, side: int, size: Size) -> Box:
    """Return a square of this side about a click, moved and cut to lie in the image `(H, W)`."""
    height, width = (min(side, length) for length in size)
    x0 = min(max(int(click.x) - width // 2, 0), size[1] - width)
    y0 = min(max(int(click.y) - height // 2, 0), size[0] - height)
    return x0, y0, x0 + width, y0 + height


def _within_rim(look: Box, size: Size) -> Box:
    """Return the window of a look without its rim, which it has not at the border of the image."""
    x0, y0, x1, y1 = look
    rim = max(box_size(look)) // RIM
    return (
        x0 + rim * (x0 > 0),
        y0 + rim * (y0 > 0),
        x1 - rim * (x1 < size[1]),
        y1 - rim * (y1 < size[0]),
    )


def _share(at: Tensor, outer: Sequence[int], inner: Sequence[int]) -> Tensor:
    """Return the share of a look at places of an axis: 1 in an interval, 0 outside of another."""
    rising = (at - outer[0] + 1) / (inner[0] - outer[0] + 1)
    falling = (outer[1] - at) / (outer[1] - inner[1] + 1)
    inside = (at >= outer[0]) & (at <= outer[1] - 1)
    return torch.minimum(rising, falling).clamp(0, 1) * inside


def _overlap(a: Box, b: Box) -> float:
    """Return the product of the IoUs of rows and columns."""
    return _interval_iou(a[0::2], b[0::2]) * _interval_iou(a[1::2], b[1::2])


def _interval_iou(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the IoU of two half-open intervals of pixels."""
    inside = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return inside / max(1e-6, max(a[1], b[1]) - min(a[0], b[0]))
