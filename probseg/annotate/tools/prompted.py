"""A model for tools that send all prompts of an object with each request."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from probseg.geometry import OVERHANG
from probseg.interact.loop import InteractionState
from probseg.interact.mask import Mask
from probseg.interact.photograph import as_photograph
from probseg.interact.session import Answer, answer_steps, build_loop, encode_image, prepare_model
from probseg.types import BoxStep, Click, Step
from probseg.zoo import create_interactive

Point = Sequence[float]

MAX_POINTS = 1000
"""Maximum points of an object: what the model computes grows faster than their number."""

MEMORY = 256 << 20
"""Bytes of the encoded images that are kept; half of it while another one is read."""


class PromptedModel:
    """Answers complete sets of prompts on images that are encoded once.

    Nothing is kept between calls: an encoded image can be asked about any number of objects in any
    order, also from several threads.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        self.name, self._device = name, torch.device(device)
        self._model = prepare_model(create_interactive(name, pretrained=True), self._device)
        self._loop = build_loop(self._model, zoom=None)

    def encode(self, image: npt.NDArray[np.uint8]) -> InteractionState:
        """Return an image without prompts, encoded if that does not depend on prompts."""
        return encode_image(self._model, as_photograph(image, self._device))

    def answer(
        self,
        encoded: InteractionState,
        positive: Sequence[Point],
        negative: Sequence[Point] = (),
        box: Sequence[float] | None = None,
    ) -> Mask:
        """Segment an object by all its prompts.

        Coordinates are continuous: (0, 0) is the upper left corner of the first pixel.
        """
        if len(positive) + len(negative) > MAX_POINTS:
            raise ValueError(f"an object must have at most {MAX_POINTS} points; clear some")
        size = encoded.photograph.size
        steps: list[Step] = [pixel_click(point, True, size) for point in positive]
        steps += [pixel_click(point, False, size) for point in negative]
        if box is not None:
            x0, y0, x1, y1 = box
            steps.append(BoxStep((x0, y0, x1, y1)))
        elif not positive:
            return Mask(np.zeros(size, np.float32))
        return Mask(answer_steps(self._loop, Answer(encoded), steps).state.answer)


class Encodings:
    """Encoded images by name; the last ones are kept, as many as fit into `MEMORY`."""

    def __init__(self, model: PromptedModel) -> None:
        self._model = model
        self._kept: OrderedDict[Hashable, InteractionState] = OrderedDict()

    def find(self, name: Hashable, read: Callable[[], npt.NDArray[np.uint8]]) -> InteractionState:
        """Return an image from memory, or else read and encode it."""
        if name not in self._kept:
            self._drop(MEMORY // 2)
            self._kept[name] = self._model.encode(read())
        self._kept.move_to_end(name)
        encoded = self._kept[name]
        self._drop(max(MEMORY, _nbytes(encoded)))
        return encoded

    def _drop(self, most: int) -> None:
        """Drop the images that were asked about first, until the rest fits into the memory."""
        while sum(map(_nbytes, self._kept.values())) > most:
            self._kept.popitem(last=False)


def _nbytes(state: InteractionState) -> int:
    return state.photograph.nbytes + Answer(state).nbytes


def pixel_click(point: Point, positive: bool, size: tuple[int, int]) -> Click:
    """Return a click on the pixel under a point, or on the nearest one."""
    (x, y), (height, width) = point, size
    if not is_inside(point, size):
        raise ValueError(
            f"`point` must be inside the image of {width} x {height} pixels, got ({x}, {y})"
        )
    column, row = math.floor(x), math.floor(y)
    return Click(min(max(column, 0), width - 1), min(max(row, 0), height - 1), positive)


def is_inside(point: Point, size: tuple[int, int]) -> bool:
    """Say whether a point is at most `OVERHANG` over the edge of an image `(H, W)`."""
    (x, y), (height, width) = point, size
    return -OVERHANG <= x <= width + OVERHANG and -OVERHANG <= y <= height + OVERHANG


def confidence(mask: Mask) -> float:
    """Return the mean probability of the pixels of a mask, 0 for an empty one."""
    inside = mask.binary
    return float(mask.probability.mean(where=inside, dtype=np.float64)) if inside.any() else 0.0
