"""Types shared by all packages.

Points are `(x, y)` in pixels: `x` is the column and `y` the row of a pixel, so whole numbers
are pixel centres. Boxes are `(x0, y0, x1, y1)`, half-open: `x1` and `y1` are outside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # torch takes seconds
    from torch import Tensor

_Scalar = TypeVar("_Scalar", bound=np.generic)
_P = ParamSpec("_P")
_R = TypeVar("_R")

IGNORE = 255  # value of the pixels of a mask that count neither as object nor as background


def check_mask(mask: npt.NDArray[np.generic] | Tensor, name: str = "mask") -> None:
    """Refuse masks that would silently be misread: of 0 and 255, soft, or of classes.

    Args:
        mask: Any shape; a batch is one mask here.
        name: Name of the argument.

    Raises:
        ValueError: If there are values besides 0, 1 and 255, or 0 and 255 alone.
    """
    inside, outside, ignored = mask == 1, mask == 0, mask == IGNORE
    if not bool((inside | outside | ignored).all()):
        odd = mask[~(inside | outside | ignored)].reshape(-1)[0]
        raise ValueError(
            f"`{name}` must have the values 0, 1 and {IGNORE} (ignored) alone, got {odd}; compare "
            "soft masks with a threshold, and masks of several objects with the number of one"
        )
    if bool(ignored.any()) and bool(outside.any()) and not bool(inside.any()):
        raise ValueError(
            f"`{name}` must be 1 on the object, got 0 and {IGNORE} alone, where {IGNORE} means "
            f"ignored: pass `{name} // 255` if it means the object. Where there is no object, "
            "leave the ignored pixels out"
        )


def takes_tensors(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function of arrays take tensors of PyTorch in their place."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        def as_array(value: Any) -> Any:  # noqa: ANN401
            if not hasattr(value, "detach"):
                return value
            on_cpu = value.detach().cpu()  # NumPy has no bfloat16
            return (on_cpu.float() if "bfloat16" in str(on_cpu.dtype) else on_cpu).numpy()

        named = {key: as_array(value) for key, value in kwargs.items()}
        return function(*map(as_array, args), **named)

    return call


def read_only(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Return a view of an array that cannot be written to, for arrays that an object hands out."""
    view = array.view()
    view.flags.writeable = False
    return view


class Click(NamedTuple):
    """One click of an annotator.

    Args:
        x: Column in pixels, `0 <= x < width`.
        y: Row in pixels, `0 <= y < height`.
        positive: True on the object, False on the background.
    """

    x: float
    y: float
    positive: bool = True


class BoxStep(NamedTuple):
    """A box around the object; it replaces an earlier one.

    Args:
        box: `(x0, y0, x1, y1)`, half-open; answered as whole pixels, rounded outwards.
    """

    box: tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class MaskStep:
    """An initial mask; earlier steps no longer count.

    Args:
        probability: Of the object, float32 in [0, 1], shape `(H, W)`; the attribute is read-only.
    """

    probability: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", read_only(self.probability))


class Stroke(NamedTuple):
    """A stroke of a round brush; its pixels keep their label whatever the model answers.

    Args:
        points: Corners `(x, y)` of the stroke, continuous: (0, 0) is the upper left corner of the
            first pixel. They may lie outside of the image.
        radius: Of the brush, in pixels.
        positive: True on the object, False on the background.
    """

    points: tuple[tuple[float, float], ...]
    radius: float
    positive: bool = True


@dataclass(frozen=True, eq=False)
class Patch:
    """Pixels that keep their label whatever the model answers, like those of a stroke.

    Args:
        pixels: bool, shape `(H, W)`; the attribute is read-only.
        positive: True on the object, False on the background.
    """

    pixels: npt.NDArray[np.bool_]
    positive: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", read_only(self.pixels))


class ScaleStep(NamedTuple):
    """The first click answered at another of the scales at which a zoom answers it.

    Where the answer has no such scale, it stays as it is.

    Args:
        number: Of the scale in `Zoom.first`.
    """

    number: int


# what an annotator did, the same for the page, files, the command line and tools
Step = Click | BoxStep | MaskStep | Stroke | Patch | ScaleStep


class Prompts(NamedTuple):
    """Clicks, boxes and previous masks of a batch of images, as tensors on the model's device.

    Args:
        points: Click positions `(x, y)` in pixels, float, shape `(B, S, 2)`; S may be 0.
        labels: Integer, shape `(B, S)`: 1 positive, 0 negative, -1 padding (no click).
        boxes: Boxes `(x0, y0, x1, y1)`, float, shape `(B, 4)`; a row of NaN means no box.
        previous: Probability of the object in the last answer or the initial mask, float, shape
            `(B, 1, H, W)`; None where the protocol does not pass it on.
    """

    points: Tensor
    labels: Tensor
    boxes: Tensor
    previous: Tensor | None = None

    @property
    def has_prompt(self) -> Tensor:
        """Return whether each image has a click or a box, bool, shape `(B,)`."""
        return (self.labels >= 0).any(dim=1) | ~self.boxes.isnan().any(dim=1)

    def at(self, rows: slice) -> Prompts:
        """Return the prompts of some of the images."""
        previous = None if self.previous is None else self.previous[rows]
        return Prompts(self.points[rows], self.labels[rows], self.boxes[rows], previous)


class Sample(NamedTuple):
    """One object of one image.

    Args:
        image: RGB, uint8, shape `(H, W, 3)`.
        mask: uint8, shape `(H, W)`: 1 object, 0 background, 255 ignored.
        name: Identifies the object within its data set.
        dataset: Name of the data set, as it appears in log names.
        photo: Identifies the photograph, which several objects may share; None where every object
            has its own.
        scribbles: Strokes to begin with, uint8, shape `(H, W)`: 1 on the object, 0 on the
            background, 255 where there is none; None without.
        initial: A mask to begin with and to correct, bool, shape `(H, W)`; None without.
    """

    image: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.uint8]
    name: str
    dataset: str
    photo: str | None = None
    scribbles: npt.NDArray[np.uint8] | None = None
    initial: npt.NDArray[np.bool_] | None = None


class FeatureInfo(NamedTuple):
    """Describes a list of feature maps, finest first.

    Args:
        channels: Number of channels of each map.
        strides: Size of the image over the size of each map.
        aligned: Whether the maps are resized with their outermost samples on each other
            (`align_corners=True` of PyTorch), and the image is not padded; False resizes them as
            areas of whole cells.
    """

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = False
