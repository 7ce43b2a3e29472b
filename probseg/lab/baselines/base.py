"""Base class of the baselines: prompts in, probabilities out, one image at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probseg.clicks.boxes import Box
from probseg.types import Click, Prompts

Image = npt.NDArray[np.uint8]
FloatMap = npt.NDArray[np.float32]

EPSILON = 1e-6
"""Probabilities are kept this far from 0 and 1, so that logits are finite: at most 13.8."""


class ClassicalModel(ABC):
    """A segmentation method without learnt weights, evaluated like a network.

    Subclasses segment one image. The same prompts always give the same answer, in any order and
    any batch.
    """

    @abstractmethod
    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Segment one image.

        Images of one call are segmented in threads: the method must not change what they share.

        Args:
            image: RGB, uint8, shape `(H, W, 3)`.
            clicks: All clicks so far, at whole pixels of the image; there may be none.
            box: The annotator's box, at least one pixel of the image, or None.
            previous: Probability that was answered before, or that the annotator began with,
                shape `(H, W)`; None where it is not handed on.

        Returns:
            Probability of the object in [0, 1], float32, shape `(H, W)`. What it says about
            the pixels that were clicked does not count.
        """

    def grid(self, size: tuple[int, int]) -> tuple[()]:
        """Return the same for all sizes `(H, W)`: they may come in one call."""
        return ()

    def encode_each(self, images: Sequence[Tensor]) -> list[Image]:
        """Turn images in [0, 1], float, `(3, H, W)`, into RGB uint8 `(H, W, 3)`."""
        return [
            (image * 255).round().clamp(0, 255).byte().permute(1, 2, 0).cpu().numpy().copy()
            for image in images
        ]

    def decode_each(
        self, encoded: Sequence[Image], prompts: Sequence[Prompts]
    ) -> tuple[list[Tensor], None]:
        """Answer the prompts on each image.

        A clicked pixel has the label of its last click. Clicks outside of the image, as under a
        zoom, are left out; boxes are cut to the image.

        Args:
            encoded: Images of `encode_each`.
            prompts: All clicks so far and the box of each image, as a batch of 1.

        Returns:
            Logits `(H, W)` of each image, float32, on the device of its prompts; and no quality.
        """
        with ThreadPoolExecutor() as threads:
            return list(threads.map(self._answer, encoded, prompts)), None

    def _answer(self, image: Image, prompts: Prompts) -> Tensor:
        size = image.shape[0], image.shape[1]
        clicks = _clicks(prompts, size)
        previous = prompts.previous
        given = None if previous is None else previous[0, 0].float().cpu().numpy()
        probability = self.segment(image, clicks, _box(prompts, size), given).astype(np.float64)
        for click in clicks:
            probability[int(click.y), int(click.x)] = click.positive
        logits = torch.from_numpy(probability).logit(eps=EPSILON)
        return logits.to(prompts.points.device, torch.float32)


def _clicks(prompts: Prompts, size: tuple[int, int]) -> tuple[Click, ...]:
    """Return the clicks inside the image, at the nearest pixels.

    A zoom that shrinks scales the last column to between the last pixel's centre and the width.
    """
    height, width = size
    rows = zip(prompts.points[0].tolist(), prompts.labels[0].tolist(), strict=True)
    return tuple(
        Click(min(math.floor(x + 0.5), width - 1), min(math.floor(y + 0.5), height - 1), label == 1)
        for (x, y), label in rows
        if label >= 0 and -0.5 <= x < width and -0.5 <= y < height
    )


def _box(prompts: Prompts, size: tuple[int, int]) -> Box | None:
    """Return the part of the box inside the image, in whole pixels, or None."""
    corners = prompts.boxes[0].tolist()
    if any(corner != corner for corner in corners):  # NaN
        return None
    limits = (size[1], size[0]) * 2
    x0, y0, x1, y1 = (
        min(max(round(corner), 0), limit) for corner, limit in zip(corners, limits, strict=True)
    )
    return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None
