"""Mistakes of a simulated annotator: off-centre, imprecise, late and wrong clicks.

Clicks at the very centre of an error are optimistic: people click elsewhere, and models that look
good on centres lose on real clicks (RClicks, Antonov et al., 2024, on 475 thousand real clicks).
`human_click` adds four kinds of mistakes to any rule of `probseg.clicks.annotators`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from probseg.clicks.annotators import BoolMap, ClickRule, clicked_pixels, error_maps
from probseg.types import Click


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

    Raises:
        ValueError: If a field is out of range.
    """

    jitter: float = 0.0
    off_centre: float = 0.0
    late: float = 0.0
    wrong_sign: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.jitter < math.inf:
            message = f"`jitter` must be a finite number of pixels >= 0, got {self.jitter}"
            raise ValueError(message)
        for field in ("off_centre", "late", "wrong_sign"):
            value = getattr(self, field)
            if not 0 <= value <= 1:
                message = f"`{field}` must be a probability in [0, 1], got {value}"
                raise ValueError(message)


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

    In this order: the annotator looks at the newest prediction or is late, the rule chooses a
    pixel, the annotator means that pixel or another one of the same 8-connected error, the hand
    trembles, the button is the right one or not. The sign is that of the error that was meant,
    also where the hand left it. A click stops at the border of the image. If its pixel was clicked
    before it moves to the nearest one that was not (the first of them in row-major order), where
    there is one.

    A kind of mistake that does not happen by its field draws no random number. Without mistakes
    this is the rule.

    Args:
        rule: One of `probseg.clicks.annotators.CLICK_RULES`.
        mistakes: How often and how far.
        prediction: The newest one, bool, shape `(H, W)`.
        previous_prediction: The one before, bool, shape `(H, W)`; None before the first click.
        mask: uint8, shape `(H, W)`: 1 object, 0 background, 255 ignored.
        clicked: The clicks so far, in pixels of the same map.
        generator: Source of all randomness; the same state gives the same click.

    Returns:
        A click on a whole pixel of the image. None where the prediction that the annotator sees
        has no error left; a late annotator who sees none then looks at the newest.

    Raises:
        ValueError: If the shapes or the dtype of a prediction are not as above, or a click is
            outside.
    """
    seen = prediction
    click = None
    if previous_prediction is not None and _happens(mistakes.late, generator):
        seen = previous_prediction
        click = rule(seen, mask, clicked, generator)
    if click is None:
        seen = prediction
        click = rule(seen, mask, clicked, generator)
    if click is None:
        return None
    if _happens(mistakes.off_centre, generator):
        click = _elsewhere(click, seen, mask, clicked, generator)
    if mistakes.jitter > 0:
        click = _trembled(click, mistakes.jitter, mask.shape, clicked, generator)
    if _happens(mistakes.wrong_sign, generator):
        click = click._replace(positive=not click.positive)
    return click


def _happens(probability: float, generator: np.random.Generator) -> bool:
    return probability > 0 and generator.random() < probability


def _elsewhere(
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


def _trembled(
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
