"""Simulated annotators: rules for the next click, human mistakes, boxes, scribbles as clicks.

All rules look at two maps of errors: missed object (false negatives, asks for a positive click)
and false alarms (false positives, asks for a negative click). Ignored pixels are in neither.
A pixel that was clicked before is not clicked again. Where no error is left there is no click.
Predictions are bool, masks uint8 (1 object, 0 background, 255 ignored), both of shape `(H, W)`,
arrays or tensors; earlier clicks may also be tuples `(x, y)` or `(x, y, positive)`.

Clicks at the very centre of an error are optimistic: people click elsewhere, and models that look
good on centres lose on real clicks (RClicks, Antonov et al., 2024, on 475 thousand real clicks).
`human_click` adds four kinds of mistakes to any rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from probseg.clicks.centres import BoolMap, deepest, largest_region
from probseg.geometry import Box
from probseg.types import IGNORE, Click, check_mask, takes_tensors

__all__ = [
    "CLICK_RULES",
    "BoolMap",
    "ClickRule",
    "clicked_pixels",
    "error_maps",
    "largest_area_click",
    "largest_error_click",
    "random_error_click",
]

ClickRule = Callable[
    [BoolMap, npt.NDArray[np.uint8], Sequence[Click], np.random.Generator], Click | None
]
"""Takes the prediction, the mask, the clicks so far and a source of randomness."""


@takes_tensors
def largest_error_click(
    prediction: BoolMap,
    mask: npt.NDArray[np.uint8],
    clicked: Sequence[Click] = (),
    generator: np.random.Generator | None = None,
) -> Click | None:
    """Click the centre of the largest circle that fits into the errors.

    The rule of RITM (Sofiiuk et al., 2021), which f-BRS, SimpleClick and SegNext share: exact
    Euclidean distance transforms of both error maps after a zero border of one pixel; pixels that
    were clicked before are out; positive if the largest distance inside the missed object is
    *strictly* above that inside the false alarms, so a tie gives a negative click; the first
    maximum in row-major order. Where no error is left RITM clicks pixel (0, 0) as background.

    Distances are compared as whole-numbered squares, so that the click is the same on every
    machine. OpenCV's transform gives the same, but for builds with Intel IPP and images of less
    than 2**14 pixels, or a single thread: there it is off by some 1e-6 pixels, by how much depends
    on where in memory the image lies, and of equally deep pixels chance may prefer another.
    """
    missed, false_alarm = error_maps(prediction, mask)
    taken = clicked_pixels(clicked, prediction.shape)
    sign, centre = deepest((false_alarm, missed), taken)  # on a tie the first
    return Click(centre.x, centre.y, bool(sign)) if centre.squared > 0 else None


@takes_tensors
def largest_area_click(
    prediction: BoolMap,
    mask: npt.NDArray[np.uint8],
    clicked: Sequence[Click] = (),
    generator: np.random.Generator | None = None,
) -> Click | None:
    """Click the centre of the connected error with the most pixels.

    Gabbur et al. (2021, appendix C.3) sample "the next corrective click from the largest error
    areas (positive and negative)" and leave open what is measured and where in it the click falls.
    Here: regions are 8-connected, of one sign each, and compete by their number of pixels, both
    signs together; on a tie the false alarm goes first, then the region that comes first in
    row-major order; the click is the first maximum of the distance transform inside the region.
    Pixels that were clicked before are out, and so are regions that hold no other pixels.
    """
    missed, false_alarm = error_maps(prediction, mask)
    taken = clicked_pixels(clicked, prediction.shape)
    sign, region = largest_region((false_alarm, missed), taken)  # on a tie the first
    if region.area == 0:
        return None
    x0, y0 = region.corner
    _, centre = deepest([region.inside], [(x - x0, y - y0) for x, y in taken])
    return Click(x0 + centre.x, y0 + centre.y, bool(sign))


@takes_tensors
def random_error_click(
    prediction: BoolMap,
    mask: npt.NDArray[np.uint8],
    clicked: Sequence[Click],
    generator: np.random.Generator,
) -> Click | None:
    """Click any wrong pixel, all with the same probability, both signs together.

    An annotator without any aim, against which the others can be compared: neither at a centre nor
    at a large error, beyond its share of the pixels.
    """
    missed, false_alarm = error_maps(prediction, mask)
    wrong = missed | false_alarm
    for x, y in clicked_pixels(clicked, prediction.shape):
        wrong[y, x] = False
    places = np.flatnonzero(wrong)
    if places.size == 0:
        return None
    y, x = divmod(int(generator.choice(places)), prediction.shape[1])
    return Click(x, y, bool(missed[y, x]))


CLICK_RULES: dict[str, ClickRule] = {
    "largest_radius": largest_error_click,
    "largest_area": largest_area_click,
    "random": random_error_click,
}
"""Rules by name."""


@takes_tensors
def error_maps(prediction: BoolMap, mask: npt.NDArray[np.uint8]) -> tuple[BoolMap, BoolMap]:
    """Return the missed object and the false alarms, bool, shape `(H, W)` each."""
    if prediction.ndim != 2 or prediction.shape != mask.shape:
        raise ValueError(
            f"`prediction` must have the shape (H, W) of `mask`, got {prediction.shape} and "
            f"{mask.shape}"
        )
    if prediction.dtype != np.bool_:
        raise ValueError(
            f"`prediction` must be bool, got {prediction.dtype}; compare it with a threshold first"
        )
    check_mask(mask)
    truth = mask == 1
    return truth & ~prediction, ~truth & prediction & (mask != IGNORE)


def clicked_pixels(clicked: Sequence[Click], shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the pixels `(floor(x), floor(y))` of clicks on a map of shape `(H, W)`."""
    height, width = shape
    taken = [(math.floor(x), math.floor(y)) for x, y, *_ in clicked]
    for x, y in taken:
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(
                f"`clicked` must have pixels inside {width} x {height} (x, y), got {x, y}"
            )
    return taken


@dataclass(frozen=True)
class Mistakes:
    """Rates and sizes of an annotator's errors; none by default.

    Args:
        jitter: Standard deviation in pixels of the Gaussian noise that the hand adds to `x` and
            to `y`, independently. In pixels and not relative to the error: the hand is as
            unsteady over a small error as over a large one, so small errors are missed more often.
        off_centre: Probability that the click is meant for any pixel of the connected error, all
            with the same probability, instead of the pixel that the rule chose.
        late: Probability that the annotator has not yet seen the newest mask and clicks on an
            error of the previous one.
        wrong_sign: Probability of the wrong button.
    """

    jitter: float = 0.0
    off_centre: float = 0.0
    late: float = 0.0
    wrong_sign: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.jitter < math.inf:
            raise ValueError(f"`jitter` must be a finite number of pixels >= 0, got {self.jitter}")
        for field in ("off_centre", "late", "wrong_sign"):
            value = getattr(self, field)
            if not 0 <= value <= 1:
                raise ValueError(f"`{field}` must be a probability in [0, 1], got {value}")


HUMAN = Mistakes(jitter=2.0, off_centre=0.5, late=0.05, wrong_sign=0.02)
"""An attentive but hurried person. The numbers are assumed, not fitted to recorded clicks: a hand
that is steady within two pixels, every second click anywhere in the error, one of twenty before
the newest mask was seen, one of fifty with the wrong button."""


def human_click(
    rule: ClickRule,
    mistakes: Mistakes,
    prediction: BoolMap,
    previous_prediction: BoolMap | None,
    mask: npt.NDArray[np.uint8],
    clicked: Sequence[Click],
    generator: np.random.Generator,
) -> Click | None:
    """Click by a rule, with mistakes.

    In this order: the annotator looks at the newest prediction or, late, at the previous one (None
    before the first click), the rule chooses a pixel, the annotator means that pixel or another one
    of the same 8-connected error, the hand trembles, the button is the right one or not. The sign
    is that of the error that was meant, also where the hand left it. A click stops at the border of
    the image. If its pixel was clicked before it moves to the nearest one that was not (the first
    of them in row-major order), where there is one. None where the prediction that the annotator
    sees has no error left; a late annotator who sees none then looks at the newest.

    A kind of mistake that does not happen by its field draws no random number. Without mistakes
    this is the rule.
    """
    visible = prediction
    click = None
    if previous_prediction is not None and _happens(mistakes.late, generator):
        visible = previous_prediction
        click = rule(visible, mask, clicked, generator)
    if click is None:
        visible = prediction
        click = rule(visible, mask, clicked, generator)
    if click is None:
        return None
    if _happens(mistakes.off_centre, generator):
        click = _move_off_centre(click, visible, mask, clicked, generator)
    if mistakes.jitter > 0:
        click = _tremble(click, mistakes.jitter, mask.shape, clicked, generator)
    if _happens(mistakes.wrong_sign, generator):
        click = click._replace(positive=not click.positive)
    return click


def _happens(probability: float, generator: np.random.Generator) -> bool:
    return probability > 0 and generator.random() < probability


def _move_off_centre(
    click: Click,
    prediction: BoolMap,
    mask: npt.NDArray[np.uint8],
    clicked: Sequence[Click],
    generator: np.random.Generator,
) -> Click:
    """Return a click on any pixel of the connected error, except those that were clicked."""
    missed, false_alarm = error_maps(prediction, mask)
    error = (missed if click.positive else false_alarm).view(np.uint8)
    _, labels = cv2.connectedComponents(error, connectivity=8)
    region = labels == labels[int(click.y), int(click.x)]
    for x, y in clicked_pixels(clicked, mask.shape):
        region[y, x] = False
    y, x = divmod(int(generator.choice(np.flatnonzero(region))), mask.shape[1])
    return Click(x, y, click.positive)


def _tremble(
    click: Click,
    jitter: float,
    shape: tuple[int, ...],
    clicked: Sequence[Click],
    generator: np.random.Generator,
) -> Click:
    """Return the click after Gaussian noise, inside the image and on a pixel of its own."""
    height, width = shape
    dx, dy = generator.normal(0, jitter, size=2)
    x = min(max(round(click.x + dx), 0), width - 1)
    y = min(max(round(click.y + dy), 0), height - 1)
    taken = set(clicked_pixels(clicked, shape))
    if (x, y) in taken and len(taken) < height * width:
        rows, columns = np.ogrid[:height, :width]
        squared = (rows - y) ** 2 + (columns - x) ** 2
        for u, v in taken:
            squared[v, u] = height**2 + width**2  # farther than any pixel
        y, x = divmod(int(squared.argmin()), width)
    return Click(x, y, click.positive)


def jitter_box(
    box: Box, noise: float, size: tuple[int, int], generator: np.random.Generator
) -> Box:
    """Move each corner coordinate at random, as a model of imprecise annotation.

    A coordinate moves by a whole number of pixels, uniform in `[-m, m]` with `m` the whole part
    of `noise` times the side of the box along that axis, and is then clipped to the image. The box
    keeps at least one pixel; four numbers are drawn (x0, y0, x1, y1).
    """
    if not 0 <= noise < 0.5:
        raise ValueError(f"`noise` must be a fraction in [0, 0.5), got {noise}")
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
        raise ValueError(f"`spacing` must be a number of pixels above 0, got {spacing}")
    if strokes.ndim != 2 or strokes.dtype != np.uint8:
        raise ValueError(f"`strokes` must be uint8 (H, W), got {strokes.dtype} {strokes.shape}")
    odd = strokes[(strokes > 1) & (strokes != IGNORE)]
    if odd.size:
        got = np.unique(odd).tolist()
        raise ValueError(
            f"`strokes` must have the values 0, 1 and {IGNORE} (no stroke) alone, got {got}"
        )
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
