"""A model for tools that send all prompts of an object with each request."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from probseg.annotate.models import load
from probseg.interact.loop import InteractionLoop
from probseg.interact.predictor import Mask
from probseg.interact.states import (
    OVERHANG,
    InteractionState,
    begin,
    fitted_box,
    image_tensor,
    with_crop,
)
from probseg.types import Click

Point = Sequence[float]


class PromptedModel:
    """Answers complete sets of prompts on images that are encoded once.

    Nothing is kept between calls: an encoded image can be asked about any number of objects in any
    order, also from several threads.

    Args:
        name: Model of the zoo, model folder, or folder of a run.
        device: Where to compute.

    Raises:
        UsageError: If it is a network for semantic segmentation.
        UnknownNameError: If there is no such model.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        self.name, self._device = name, torch.device(device)
        self._model = load(name, self._device)
        self._loop = InteractionLoop(self._model, previous_mask=self._model.previous_mask)

    def encode(self, image: npt.NDArray[np.uint8]) -> InteractionState:
        """Return an image without prompts, encoded if that does not depend on prompts.

        Args:
            image: RGB, uint8, shape `(H, W, 3)`.
        """
        state = begin(image_tensor(image, self._device))
        return self._loop.encode(state) if self._model.prompts == "head" else state

    def answer(
        self,
        encoded: InteractionState,
        positive: Sequence[Point],
        negative: Sequence[Point] = (),
        box: Sequence[float] | None = None,
    ) -> Mask:
        """Segment an object by all its prompts.

        Coordinates are continuous: (0, 0) is the upper left corner of the first pixel.

        Args:
            encoded: The image, from `encode`; it is not changed.
            positive: Points `(x, y)` on the object, at most 2 pixels over the edge of the image
                (`OVERHANG`), where they become clicks on the nearest pixel.
            negative: Points on the background, likewise.
            box: Around the object, `(x0, y0, x1, y1)`; up to 2 pixels over the edge of the image
                are cut off with a warning.

        Returns:
            The mask, which is empty where there is neither a positive point nor a box.

        Raises:
            ValueError: If a prompt is outside of the image.
        """
        size = encoded.image.shape[1], encoded.image.shape[2]
        clicks = [pixel_click(point, True, size) for point in positive]
        clicks += [pixel_click(point, False, size) for point in negative]
        fitted = None if box is None else fitted_box(box, encoded.image)
        if fitted is None and not positive:
            return Mask(np.zeros(size, np.float32))
        state = encoded._replace(clicks=tuple(clicks), box=fitted)
        (answered,) = self._loop.answer([with_crop(state)])
        return Mask(answered.probability)


def pixel_click(point: Point, positive: bool, size: tuple[int, int]) -> Click:
    """Return a click on the pixel under a point, or on the nearest one.

    Raises:
        ValueError: If the point is further than `OVERHANG` over the edge of an image `(H, W)`.
    """
    (x, y), (height, width) = point, size
    if not (-OVERHANG <= x <= width + OVERHANG and -OVERHANG <= y <= height + OVERHANG):
        msg = f"`point` must be inside the image of {width} x {height} pixels, got ({x}, {y})"
        raise ValueError(msg)
    column, row = math.floor(x), math.floor(y)
    return Click(min(max(column, 0), width - 1), min(max(row, 0), height - 1), positive)


def confidence(mask: Mask) -> float:
    """Return the mean probability of the pixels of a mask, 0 for an empty one."""
    inside = mask.probability[mask.binary]
    return float(inside.mean()) if inside.size else 0.0
