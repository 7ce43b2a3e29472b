"""Where things lie during a click: boxes, views, windows of the zoom, samples, kept clicks.

Pure functions of numbers and NumPy arrays, without torch and without the rest of probseg. Sessions
use them, `probseg export` copies this file beside its `runner.py`, and `geometry.js` of exported
pages is a translation, which a test compares function by function.

Boxes are `(x0, y0, x1, y1)` in whole pixels, half-open, every `size` is `(height, width)`, and
clicks are `(x, y, positive)`. The zoom is the scheme of f-BRS and RITM (Sofiiuk et al., 2020 and
2021): from the second click on, a window around the last prediction and the positive clicks is cut
out, resized and segmented (`next_window`); outside it nothing is object. One click does not tell
the size of an object: windows of several sizes around it are answered, and the surest answer is
taken (`first_windows`). A second look at a smaller window refines the answer (`look_window`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Box = tuple[int, int, int, int]
Size = tuple[int, int]
PlacedClick = tuple[float, float, bool]

CROP_PADDING, MIN_PADDING = 0.2, 16
"""Margin around a box: share of its longer side, least pixels (Gabbur et al. 2021, App. C.3)."""

# maximum pixels of the longer side of a photograph that is shown to the model as it is
LARGE = 2000
LEVELS = (LARGE, 1000, 500)  # longer sides in pixels of the reduced copies of a larger photograph
SHOWN = 1000  # longer side in pixels at which the model sees a larger photograph or crop as a whole
# maximum pixels that a box or a point may lie over the edge of the image, where it is moved
OVERHANG = 2.0
# smallest side in pixels of a window around the first click, before the image's border cuts it
SMALLEST_SIDE = 48
LEAST_OF_A_BOX = 0.05  # share of a box that its object has at least, if the model has seen it
RIM = 8  # the rim of a second look, where it fades into the answer, is its side over this
CUT = 0.3  # factor of the expected IoU of an answer that its window cuts, where the first is chosen
MARGIN = 0.1  # smallest logit of a clicked pixel, towards its label
# length of the kernel, a squared exponential of the distance, as a fraction of the longer side
LENGTH = 4 / 384
REACH = 6  # distance in lengths beyond which the kernel, below 2e-8, counts as 0
JITTER = 1e-8  # variance of the noise of a clicked pixel, for the sake of the linear system
NEGLIGIBLE = 1e-6  # weight of an observation below which it changes no logit
CLAMPED = 1e-7  # probabilities are clamped this far from 0 and 1, where logits are infinite


class View(NamedTuple):
    """Input of the model: a box of the image, resized.

    Args:
        box: Crop or window, in whole-image pixels.
        size: `(H, W)` that it is resized to; its own without a zoom.
    """

    box: Box
    size: Size


class Map(Protocol):
    """Probabilities in a box of an image, one for each pixel of the box or at fewer samples."""

    @property
    def box(self) -> Box:
        """Box of the image that they cover; nothing is object outside."""

    @property
    def size(self) -> Size:
        """Size of the image."""

    @property
    def shape(self) -> Size:
        """`(h, w)` of the probabilities."""

    def array(self) -> npt.NDArray[np.float32]:
        """Return the probabilities, float32, of this shape."""


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
        skip_clicks: With this many clicks or fewer, the model sees the whole image.
        threshold: Pixels with a probability above this count as predicted.
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
            in CFR-ICL (Sun et al., 2023), and, without a box, from a window around them, where that
            answer expects a larger IoU. None: neither.
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

RECOMMENDED_ZOOM = "look"  # zoom of the predictor and of everything that serves people


# --- boxes and sizes ----------------------------------------------------------------------------


def box_size(box: Box) -> Size:
    """Return `(H, W)` of a box."""
    return box[3] - box[1], box[2] - box[0]


def scale_to(size: Size, longest: int) -> Size:
    """Return the size of a picture `(H, W)` when its longer side is `longest`."""
    factor = longest / max(size)
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def shrink_to(size: Size, longest: int | None) -> Size:
    """Return the size of a picture that fits into the longest side; None means no limit."""
    return size if longest is None or max(size) <= longest else scale_to(size, longest)


def padded_crop(
    box: Box, size: Size, *, padding: float = CROP_PADDING, min_padding: int = MIN_PADDING
) -> Box:
    """Return the part of the image around a box: the box and a margin, clipped to the image.

    The margin is a share of the longer side of the box, rounded up, and at least `min_padding`
    pixels.
    """
    x0, y0, x1, y1 = box
    height, width = size
    margin = max(min_padding, math.ceil(padding * max(x1 - x0, y1 - y0)))
    left, top = max(0, x0 - margin), max(0, y0 - margin)
    return left, top, min(width, x1 + margin), min(height, y1 + margin)


def crop_around(box: Box | None, clicks: Sequence[PlacedClick], size: Size) -> Box:
    """Return the part of the image that the model may see: all, or the surroundings of a box.

    The crop surrounds the box, and all clicks too if one lies outside: a crop that stays the same
    need not be encoded again.
    """
    if box is None:
        return 0, 0, size[1], size[0]
    x0, y0, x1, y1 = crop = padded_crop(box, size)
    columns, rows = ([math.floor(click[axis]) for click in clicks] for axis in (0, 1))
    if all(x0 <= x < x1 and y0 <= y < y1 for x, y in zip(columns, rows, strict=True)):
        return crop
    x0, y0, x1, y1 = box
    right, bottom = max([x1 - 1, *columns]) + 1, max([y1 - 1, *rows]) + 1
    return padded_crop((min([x0, *columns]), min([y0, *rows]), right, bottom), size)


def mask_box(mask: npt.NDArray[np.uint8 | np.bool_]) -> Box:
    """Return the smallest box that holds the object of a mask `(H, W)`: its pixels of value 1."""
    inside = mask == 1
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    if rows.size == 0:
        raise ValueError("`mask` must have at least one pixel of value 1 (object), got none")
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def object_box(answer: Map, threshold: float) -> Box | None:
    """Return the smallest box of the image around all above a threshold; None for nothing."""
    above = answer.array() > threshold
    if not above.any():
        return None
    box, shape = answer.box, answer.shape

    def pixel(sample: int, axis: int) -> int:
        length = box[axis + 2] - box[axis]
        return box[axis] + round(sample * (length - 1) / max(1, shape[1 - axis] - 1))

    left, top, right, bottom = mask_box(above)
    return pixel(left, 0), pixel(top, 1), pixel(right - 1, 0) + 1, pixel(bottom - 1, 1) + 1


def round_box(box: Sequence[float], size: Size) -> Box:
    """Return a box of whole pixels, rounded outwards, in an image `(H, W)`.

    It is cut with a warning where it reaches up to `OVERHANG` over the edge; a ValueError refuses
    other boxes that are not inside.
    """
    (x0, y0, x1, y1), (height, width) = box, size
    cut = max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height))
    over = max(abs(a - b) for a, b in zip(cut, (x0, y0, x1, y1), strict=True))
    if 0 < over <= OVERHANG:
        warnings.warn(
            f"`box` reaches up to {OVERHANG:g} pixels over the edge of the image, and is cut there",
            stacklevel=6,  # of `Predictor.predict`
        )
        x0, y0, x1, y1 = cut
    check_box((x0, y0, x1, y1), size)
    return math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1)


def check_click(click: PlacedClick, size: Size) -> None:
    """Raise a ValueError if a click is outside an image of size `(H, W)`, or is none."""
    height, width = size
    try:
        x, y, positive = click
        inside, signed = 0 <= x < width and 0 <= y < height, positive in (0, 1)
    except (TypeError, ValueError):
        signed = False
    if not signed:
        raise ValueError(
            "`clicks` must be a list of (x, y, positive), where `positive` is True on the object "
            f"and False on the background, got {click!r}"
        )
    if not inside:
        raise ValueError(
            f"`click` must satisfy 0 <= x < {width} and 0 <= y < {height} for this image, got "
            f"({x}, {y}); clicks are (x, y) = (column, row), counted from 0"
        )


def check_box(box: Sequence[float], size: Size) -> None:
    """Raise a ValueError if a box is empty or not inside an image of size `(H, W)`."""
    height, width = size
    x0, y0, x1, y1 = box
    if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
        raise ValueError(
            f"`box` must satisfy 0 <= x0 < x1 <= {width} and 0 <= y0 < y1 <= {height} for this "
            f"image, got {tuple(box)}; it is (x0, y0, x1, y1), half-open"
        )


# --- windows ------------------------------------------------------------------------------------


def first_windows(zoom: Zoom, click: PlacedClick, size: Size) -> list[Box | None]:
    """Return windows around the first click, one a scale; None is the whole image `(H, W)`."""
    windows: list[Box | None] = []
    for scale in zoom.first:
        window = _square(click, max(SMALLEST_SIDE, round(scale * max(size))), size)
        windows.append(None if box_size(window) == size else window)
    return list(dict.fromkeys(windows))


def next_window(
    zoom: Zoom, window: Box | None, answer: Map, clicks: Sequence[PlacedClick]
) -> Box | None:
    """Return the window of the next answer, after that of the last; None for the whole image.

    The new click is the last one of `clicks`.
    """
    if len(clicks) <= zoom.skip_clicks:
        return None
    new = fitting_window(zoom, answer, clicks)
    if new is None or window is None:
        return new
    x0, y0, x1, y1 = window
    inside = all(x0 <= x < x1 - 1 and y0 <= y < y1 - 1 for x, y in _on_object(clicks))
    return window if inside and _overlap(window, new) >= zoom.keep_above else new


def fitting_window(zoom: Zoom, answer: Map, clicks: Sequence[PlacedClick]) -> Box | None:
    """Return the window around an answer and all clicks on the object; None without an answer."""
    predicted = object_box(answer, zoom.threshold)
    if predicted is None:
        return None
    positive, sides = _on_object(clicks), []
    for axis, length in ((0, answer.size[1]), (1, answer.size[0])):
        ends = predicted[axis], predicted[axis + 2] - 1, *(place[axis] for place in positive)
        first, last = min(ends), max(ends)
        half = 0.5 * max(zoom.expansion * (last - first + 1), zoom.min_side)
        centre = 0.5 * (first + last)
        end = min(length - 1, round(centre + half)) + 1
        sides.append((max(0, round(centre - half)), end))
    return sides[0][0], sides[1][0], sides[0][1], sides[1][1]


def _on_object(clicks: Sequence[PlacedClick]) -> list[tuple[int, int]]:
    """Return column and row of the pixels that were clicked as object."""
    return [(int(x), int(y)) for x, y, label in clicks if label]


def window_view(zoom: Zoom, window: Box) -> View:
    """Return the view of a window that is not a look's."""
    return View(window, scale_to(box_size(window), zoom.target))


def look_window(zoom: Zoom, window: Box, click: PlacedClick, size: Size, last: Box | None) -> Box:
    """Return the window of a second look around a click, in the window that the model sees first.

    The last window stays, and is not encoded again, if it is nearly the same and the click is not
    on its rim. It is None before the first look; `size` is `(H, W)` of the image.
    """
    assert zoom.look is not None, "there is a second look"
    new = _square(click, round(zoom.look * max(*box_size(window), zoom.min_side)), size)
    if last is None or _overlap(last, new) < zoom.keep_above:
        return new
    x0, y0, x1, y1 = _within_rim(last, size)
    return last if x0 <= click[0] < x1 and y0 <= click[1] < y1 else new


def look_size(zoom: Zoom, window: Box) -> Size:
    """Return `(h, w)` at which the model sees the window of a second look."""
    size = box_size(window)
    return scale_to(size, min(max(*size, zoom.look_target), zoom.target))


def look_share(answer: Map, look: Map) -> tuple[Box, Array, Array]:
    """Return the box of an answer with a second look, and the look's share in rows and columns.

    The share of a value is the product of both; it fades out on the rim. There are as many rows and
    columns `(h,)`, `(w,)` as in the denser of the two answers, but no more than pixels.
    """
    a, b, inner = answer.box, look.box, _within_rim(look.box, look.size)
    box = min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])
    shapes, shares = (answer.shape, look.shape), []
    for axis in (1, 0):
        dense = max(
            shape[1 - axis] / (one[axis + 2] - one[axis])
            for shape, one in zip(shapes, (a, b), strict=True)
        )
        length = box[axis + 2] - box[axis]
        at = positions(box[axis], length, round(length * min(1, dense)))
        rising = (at - b[axis] + 1) / (inner[axis] - b[axis] + 1)
        falling = (b[axis + 2] - at) / (b[axis + 2] - inner[axis + 2] + 1)
        inside = (at >= b[axis]) & (at <= b[axis + 2] - 1)
        shares.append(np.minimum(rising, falling).clip(0, 1) * inside)
    return box, shares[0], shares[1]


def expected_iou(answer: Map) -> float:
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


def sureness(answer: Map) -> float:
    """Return what the answer that counts among several has most of."""
    return expected_iou(answer) * cut_factor(answer)


def misses_box(answer: Map, box: Box) -> bool:
    """Say whether an answer to a box alone has next to no object, less than `LEAST_OF_A_BOX`."""
    (_, top, _, bottom), (height, _) = answer.box, answer.shape
    pixels = (bottom - top) / height if height else 0.0  # of the image for each row of the answer
    inside = float((answer.array() > 0.5).sum()) * pixels**2
    return inside < LEAST_OF_A_BOX * math.prod(box_size(box))


def box_centre(box: Box) -> PlacedClick:
    """Return a click in the middle of a box, which asks for the object that an answer misses."""
    return (box[0] + box[2]) // 2, (box[1] + box[3]) // 2, True


def cut_factor(answer: Map) -> float:
    """Return `CUT` where a window cuts its mask, at a side inside of the image, else 1."""
    inside = answer.array() > 0.5
    (x0, y0, x1, y1), (height, width) = answer.box, answer.size
    cut = (
        (x0 > 0 and inside[:, 0].any())
        or (x1 < width and inside[:, -1].any())
        or (y0 > 0 and inside[0].any())
        or (y1 < height and inside[-1].any())
    )
    return CUT if cut else 1.0


def _square(click: PlacedClick, side: int, size: Size) -> Box:
    """Return a square of this side about a click, moved and cut to lie in the image `(H, W)`."""
    height, width = (min(side, length) for length in size)
    x0 = min(max(int(click[0]) - width // 2, 0), size[1] - width)
    y0 = min(max(int(click[1]) - height // 2, 0), size[0] - height)
    return x0, y0, x0 + width, y0 + height


def _within_rim(look: Box, size: Size) -> Box:
    """Return the window of a look without its rim; the border of the image has no rim."""
    (x0, y0, x1, y1), (height, width) = look, size
    rim = max(box_size(look)) // RIM
    left, top = x0 + rim * (x0 > 0), y0 + rim * (y0 > 0)
    return left, top, x1 - rim * (x1 < width), y1 - rim * (y1 < height)


def _overlap(a: Box, b: Box) -> float:
    """Return the product of the IoUs of rows and columns."""
    product = 1.0
    for axis in (0, 1):
        inside = max(0, min(a[axis + 2], b[axis + 2]) - max(a[axis], b[axis]))
        product *= inside / max(1e-6, max(a[axis + 2], b[axis + 2]) - min(a[axis], b[axis]))
    return product


# --- samples ------------------------------------------------------------------------------------


def positions(first: int, length: int, count: int) -> Array:
    """Return pixels, float64 `(count,)`, evenly from `first` to `first + length - 1`."""
    return np.linspace(first, first + length - 1, count) if count > 1 else np.array([float(first)])


def to_samples(points: Array, view: View, *, shifted: bool = False) -> Array:
    """Return where points `(x, y)` of an image, `(n, 2)`, lie among the samples of a view.

    The corners are aligned. `shifted` multiplies by the ratio of the sizes instead, as the
    published code does: what lies there is off by up to one pixel less the ratio `pixels /
    samples`, at the end of the box.
    """
    relative = points - np.array(view.box[:2])
    samples, pixels = np.array(view.size[::-1]), np.array(box_size(view.box)[::-1])
    scale = samples / pixels
    if not shifted and (samples != pixels).any():
        # The last sample lies on the last pixel, to all of which a click with a fraction belongs.
        # Clicks outside of the box stay outside.
        relative = np.where(relative < pixels, np.minimum(relative, pixels - 1), relative)
        scale = (samples - 1) / np.maximum(pixels - 1, 1)
    moved: Array = relative * scale
    return moved


def box_to_samples(box: Box | None, view: View, *, shifted: bool = False) -> Array:
    """Return the corners of a box of the image, `(2, 2)`, among the samples of a view, or NaN."""
    if box is None:
        return np.full((2, 2), np.nan)
    end = np.array([[0], [0 if shifted else 1]])  # behind its last pixel
    corners: Array = to_samples(np.array(box).reshape(2, 2) - end, view, shifted=shifted) + end
    return corners


def view_samples(answer: Map, view: View) -> tuple[Array, Array]:
    """Return rows and columns of a view among the samples of an answer."""
    (x0, y0, x1, y1), shape = answer.box, answer.shape
    (left, top, right, bottom), (rows, columns) = view
    return (
        (positions(top, bottom - top, rows) - y0) * ((shape[0] - 1) / max(1, y1 - y0 - 1)),
        (positions(left, right - left, columns) - x0) * ((shape[1] - 1) / max(1, x1 - x0 - 1)),
    )


def find_copy(view: View, size: Size, copies: Sequence[Size]) -> int | None:
    """Return the number of the smallest of an image's copies that has the pixels of a view."""
    height, width = box_size(view.box)
    for number in range(len(copies) - 1, -1, -1):
        h, w = copies[number]
        if (height, width) == size and view.size == (h, w):
            return number
        if height * (h / size[0]) >= view.size[0] and width * (w / size[1]) >= view.size[1]:
            return number
    return None


def copy_samples(view: View, size: Size, copy: Size) -> tuple[Array, Array]:
    """Return rows and columns of a view of an image in a copy `(h, w)` of it."""
    (x0, y0, _, _), (height, width) = view.box, box_size(view.box)
    return (
        (positions(y0, height, view.size[0]) + 0.5) * (copy[0] / size[0]) - 0.5,
        (positions(x0, width, view.size[1]) + 0.5) * (copy[1] / size[1]) - 0.5,
    )


# --- clicks that hold ---------------------------------------------------------------------------


def keep_clicks(values: Array, box: Box, clicks: Sequence[PlacedClick]) -> Array:
    """Return probabilities `(h, w)` in a box in which clicked pixels have the label of their click.

    The logits are taken as the mean of a Gaussian process, which is conditioned on the clicked
    pixels: it changes around the clicks that it does not obey, and as little as the kernel allows.

    Of several clicks on one pixel the last one counts. Clicks outside of the box do not count.
    Where there are fewer values than the box has pixels, all values between which the clicked pixel
    is interpolated get its label. Values that obey all clicks by `MARGIN` are returned themselves.
    """
    labels = click_labels(clicks, View(box, (values.shape[0], values.shape[1])))
    if not labels:
        return values
    samples, signs = np.array(list(labels)), np.array(list(labels.values()))
    observed = _logits(values[samples[:, 0], samples[:, 1]])
    fails = observed * signs < MARGIN
    if not fails.any():
        return values
    return condition(
        values, samples, np.where(fails, MARGIN * signs, observed), LENGTH * max(values.shape)
    )


def click_labels(clicks: Sequence[PlacedClick], view: View) -> dict[tuple[int, int], int]:
    """Return 1 or -1 for the rows and columns of the samples that belong to a clicked pixel."""
    labels: dict[tuple[int, int], int] = {}
    x0, y0, x1, y1 = view.box
    for x, y, positive in clicks:
        if x0 <= x < x1 and y0 <= y < y1:
            # Rounding may put the last pixel a little behind the last sample.
            ((column, row),) = to_samples(np.floor([[x, y]]), view).clip(
                0, np.array(view.size[::-1]) - 1
            )
            for r in {math.floor(row), math.ceil(row)}:
                for c in {math.floor(column), math.ceil(column)}:
                    labels[r, c] = 1 if positive else -1
    return labels


def condition(values: Array, samples: Array, logits: Array, length: float) -> Array:
    """Return probabilities whose logits, the mean of a Gaussian process, meet observations.

    `f(x) + k(x, X) K(X, X)^-1 (y - f(X))`, the posterior mean (Rasmussen and Williams, 2006,
    Eq. 2.38), with `k(x, x') = exp(-|x - x'|^2 / (2 length^2))`.

    Args:
        values: Probabilities, float, shape `(h, w)`.
        samples: Rows and columns `X` of the observed values, all different, shape `(n, 2)`.
        logits: The observations `y`, float64, shape `(n,)`.
        length: In samples.
    """

    def kernel(steps: Array, axis: int) -> Array:
        """Return the kernel's factor of an axis, shape `(steps, n)`."""
        factor: Array = np.exp(-(((steps[:, None] - samples[:, axis]) / length) ** 2) / 2)
        return factor

    covariance = kernel(samples[:, 0], 0) * kernel(samples[:, 1], 1)
    covariance += JITTER * np.eye(len(samples))
    residuals = logits - _logits(values[samples[:, 0], samples[:, 1]])
    weights = np.linalg.solve(covariance, residuals)
    reach = math.ceil(REACH * length)
    result = values.copy()
    for row, column in samples[np.abs(weights) > NEGLIGIBLE].tolist():
        top, left = max(0, row - reach), max(0, column - reach)
        window = slice(top, row + reach + 1), slice(left, column + reach + 1)
        before = _logits(values[window])
        rows = kernel(top + np.arange(before.shape[0]), 0)
        columns = kernel(left + np.arange(before.shape[1]), 1)
        result[window] = _sigmoid(before + (rows * weights) @ columns.T)
    # What jitter, reach and rounding leave, above all where clicks of both signs are neighbours.
    result[samples[:, 0], samples[:, 1]] = _sigmoid(logits)
    return result


def _logits(values: Array) -> Array:
    """Return the logits of probabilities, float64."""
    values = values.astype(np.float64).clip(CLAMPED, 1 - CLAMPED)
    return np.log(values) - np.log1p(-values)


def _sigmoid(logits: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * logits))
