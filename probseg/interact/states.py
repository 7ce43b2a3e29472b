"""State of an interaction: image, prompts and the last answer, in pixels of the whole image."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from probseg.clicks.boxes import Box, padded_crop
from probseg.interact.photograph import Photograph
from probseg.interact.probability import ProbabilityMap
from probseg.models.network import Size
from probseg.types import Click

OVERHANG = 2.0
"""Most pixels that a box or a point may lie over the edge of the image, where it is moved."""


class View(NamedTuple):
    """Input of the model: a box of the image, resized.

    Args:
        box: Crop or window, in whole-image pixels.
        size: `(H, W)` that it is resized to; its own without a zoom.
    """

    box: Box
    size: tuple[int, int]


class InteractionState(NamedTuple):
    """State of an interaction.

    Args:
        photograph: The image, on the model's device.
        crop: Part of the image that the model may see, in whole-image pixels.
        box: The annotator's box, or None.
        clicks: The clicks so far.
        answer: Probability of the object; 0 outside of the last view.
        window: Part of the image that a zoom chose last; None before, and without one.
        view: The view that `encoded` belongs to; None before the first.
        encoded: The model's encoding of the view.
        look: View of the last second look, with its encoding; None before the first.
        seconds: Time of the last answer, with the encoding of the image if it was new; where
            several were computed together, the share of one. None before the first.
    """

    photograph: Photograph
    crop: Box
    box: Box | None
    clicks: tuple[Click, ...]
    answer: ProbabilityMap
    window: Box | None = None
    view: View | None = None
    encoded: Any = None
    look: tuple[View, Any] | None = None
    seconds: float | None = None

    @property
    def image(self) -> Tensor:
        """The image at full size, RGB, uint8, shape `(3, H, W)`."""
        return self.photograph.full

    @property
    def probability(self) -> npt.NDArray[np.float32]:
        """Of the object, for all pixels, float32, shape `(H, W)`, read-only; made at each call."""
        return self.answer.full()


def begin(
    image: Tensor | Photograph,
    *,
    crop: Box | None = None,
    box: Box | None = None,
    clicks: Sequence[Click] = (),
    initial: npt.NDArray[np.bool_] | None = None,
) -> InteractionState:
    """Return the initial state of an interaction.

    Args:
        image: RGB, uint8, shape `(3, H, W)`, on the model's device, see `image_tensor`, which the
            model sees at full size; or a photograph.
        crop: Part of the image that the model may see; None is all of it.
        box: The annotator's box in whole-image pixels, or None.
        clicks: Clicks before the first answer.
        initial: A mask to correct, bool, shape `(H, W)`; without one nothing is object yet.

    Raises:
        ValueError: If the box or a click is outside the image.
    """
    photograph = Photograph.of(image) if isinstance(image, Tensor) else image
    if box is not None:
        check_box(box, photograph.size)
    for click in clicks:
        check_click(click, photograph.size)
    answer = ProbabilityMap.zero(photograph.size)
    if initial is not None:
        answer = ProbabilityMap.of(initial.astype(np.float32))
    height, width = photograph.size
    return InteractionState(photograph, crop or (0, 0, width, height), box, tuple(clicks), answer)


def with_crop(state: InteractionState) -> InteractionState:
    """Return a state with the crop for its prompts: the whole image, or the box's surroundings.

    The margin is that of the protocol `gabbur2021`. It surrounds the box, and all clicks too if
    one lies outside: a crop that stays the same need not be encoded again.
    """
    size = height, width = state.photograph.size
    if state.box is None:
        return state._replace(crop=(0, 0, width, height))
    x0, y0, x1, y1 = crop = padded_crop(state.box, size)
    columns = [math.floor(click.x) for click in state.clicks]
    rows = [math.floor(click.y) for click in state.clicks]
    if not all(x0 <= x < x1 and y0 <= y < y1 for x, y in zip(columns, rows, strict=True)):
        x0, y0, x1, y1 = state.box
        x0, x1 = min([x0, *columns]), max([x1 - 1, *columns]) + 1
        y0, y1 = min([y0, *rows]), max([y1 - 1, *rows]) + 1
        crop = padded_crop((x0, y0, x1, y1), size)
    return state._replace(crop=crop)


def as_click(value: object, name: str) -> Click:
    """Return a `Click` for one, `(x, y)` or `(x, y, positive)`; raise a ValueError for others."""
    if isinstance(value, Click):
        return value
    if isinstance(value, Sequence | np.ndarray) and len(value) in (2, 3):
        x, y, positive = (*value, True)[:3]
        numbers = (isinstance(n, int | float | np.number) and math.isfinite(n) for n in (x, y))
        if all(numbers) and positive in (0, 1):
            return Click(float(x), float(y), bool(positive))
    msg = (
        f"`{name}` must be a Click, (x, y) or (x, y, positive), got {value!r}; give a sequence of "
        "clicks, such as [(120, 90), (300, 40, False)]"
    )
    raise ValueError(msg)


def fitted_box(box: Sequence[float], size: Size) -> Box:
    """Return a box of whole pixels, rounded outwards, in an image `(H, W)`.

    It is cut with a warning where it reaches up to `OVERHANG` over the edge; a ValueError refuses
    other boxes that are not inside.
    """
    try:
        x0, y0, x1, y1 = (float(number) for number in box)
    except (TypeError, ValueError) as error:
        msg = f"`box` must be four numbers (x0, y0, x1, y1), got {box!r}"
        raise ValueError(msg) from error
    height, width = size
    cut = max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height))
    over = max(abs(a - b) for a, b in zip(cut, (x0, y0, x1, y1), strict=True))
    if 0 < over <= OVERHANG:
        warnings.warn(
            f"`box` reaches up to {OVERHANG:g} pixels over the edge of the image, and is cut there",
            stacklevel=3,
        )
        x0, y0, x1, y1 = cut
    check_box((x0, y0, x1, y1), size)
    return math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1)


def check_click(click: Click, size: Size) -> None:
    """Raise a ValueError if a click is outside an image of size `(H, W)`."""
    height, width = size
    if not (0 <= click.x < width and 0 <= click.y < height):
        message = (
            f"`click` must satisfy 0 <= x < {width} and 0 <= y < {height} for this image, got "
            f"({click.x}, {click.y}); clicks are (x, y) = (column, row), counted from 0"
        )
        raise ValueError(message)


def check_box(box: Sequence[float], size: Size) -> None:
    """Raise a ValueError if a box is empty or not inside an image of size `(H, W)`."""
    height, width = size
    x0, y0, x1, y1 = box
    if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
        message = (
            f"`box` must satisfy 0 <= x0 < x1 <= {width} and 0 <= y0 < y1 <= {height} for this "
            f"image, got {tuple(box)}; it is (x0, y0, x1, y1), half-open"
        )
        raise ValueError(message)
