"""Probabilities of an object in a box of an image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probseg.clicks.boxes import Box, mask_box
from probseg.interact.sampling import box_size, fitted, positions, sampled
from probseg.models.encoded import Size
from probseg.types import read_only


@dataclass(frozen=True, eq=False)
class ProbabilityMap:
    """Probability of each pixel to be of the object; 0 outside of a box.

    Rows and columns of `values` are those of the box, or fewer, spread evenly from its first to
    its last pixel: between them the probability is interpolated.

    Args:
        values: float32, shape `(h, w)`; never changed.
        box: The box in pixels of the image.
        size: `(H, W)` of the image.
        quality: IoU of the mask with the part of the object in the box, as a network predicts it,
            from 0 to 1; None where none did.
    """

    values: Tensor
    box: Box
    size: Size
    quality: float | None = None

    @classmethod
    def of(cls, probability: npt.NDArray[np.float32]) -> ProbabilityMap:
        """Return the map of the probabilities of all pixels, shape `(H, W)`, which are copied."""
        height, width = probability.shape
        values = torch.tensor(probability, dtype=torch.float32)
        return cls(values, (0, 0, width, height), (height, width))

    @classmethod
    def zero(cls, size: Size) -> ProbabilityMap:
        """Return the map of an image `(H, W)` in which nothing is object."""
        return cls(torch.zeros(0, 0), (0, 0, 0, 0), size)

    @property
    def nbytes(self) -> int:
        """Bytes of its values and of the array of all pixels."""
        full = 4 * self.size[0] * self.size[1]
        return full if tuple(self.values.shape) == self.size else full + self.values.nbytes

    def array(self) -> npt.NDArray[np.float32]:
        """Return the values, float32, shape `(h, w)`, read-only."""
        return read_only(self.values.cpu().numpy())

    def any(self) -> bool:
        """Return whether a pixel has a probability above 0."""
        return bool(self.values.any())

    def full(self) -> npt.NDArray[np.float32]:
        """Return the probabilities of all pixels, float32, shape `(H, W)`, read-only."""
        x0, y0, x1, y1 = self.box
        if not self.values.numel():
            return read_only(np.zeros(self.size, np.float32))
        part = fitted(self.values[None], box_size(self.box))[0].cpu().numpy()
        if part.shape == self.size:
            return read_only(part)
        whole = np.zeros(self.size, np.float32)
        whole[y0:y1, x0:x1] = part
        return read_only(whole)

    def object_box(self, threshold: float) -> Box | None:
        """Return the smallest box of the image around all above a threshold; None for nothing."""
        above = self.array() > threshold
        if not above.any():
            return None
        left, top, right, bottom = mask_box(above)
        (x0, y0, _, _), (height, width) = self.box, box_size(self.box)
        (rows, columns) = above.shape
        return (
            _pixel(left, x0, width, columns),
            _pixel(top, y0, height, rows),
            _pixel(right - 1, x0, width, columns) + 1,
            _pixel(bottom - 1, y0, height, rows) + 1,
        )

    def part(self, box: Box, size: Size) -> Tensor:
        """Return the probabilities in a box of the image, resized.

        Args:
            box: The box; it may reach over `self.box`.
            size: `(h, w)` that it is resized to.

        Returns:
            float32, shape `(1, h, w)`, on the device of the values.
        """
        if not self.values.numel():
            return self.values.new_zeros(1, *size)
        (x0, y0, x1, y1), values = self.box, self.values[None]
        height, width = values.shape[-2:]
        if (height, width) == box_size(self.box):
            return fitted(self._pixels(box), size)
        if box == self.box:
            return fitted(values, size)
        columns = positions(box[0], box[2] - box[0], size[1])
        rows = positions(box[1], box[3] - box[1], size[0])
        return sampled(
            values,
            (columns - x0) * ((width - 1) / max(1, x1 - x0 - 1)),
            (rows - y0) * ((height - 1) / max(1, y1 - y0 - 1)),
            "zeros",
        )

    def _pixels(self, box: Box) -> Tensor:
        """Return the probabilities `(1, h, w)` in a box, of values that are one for each pixel."""
        if box == self.box:
            return self.values[None]
        x0, y0, x1, y1 = (
            max(box[0], self.box[0]),
            max(box[1], self.box[1]),
            min(box[2], self.box[2]),
            min(box[3], self.box[3]),
        )
        part = self.values.new_zeros(1, *box_size(box))
        if x0 < x1 and y0 < y1:
            inside = self.values[
                y0 - self.box[1] : y1 - self.box[1], x0 - self.box[0] : x1 - self.box[0]
            ]
            part[0, y0 - box[1] : y1 - box[1], x0 - box[0] : x1 - box[0]] = inside
        return part


def _pixel(index: int, first: int, length: int, count: int) -> int:
    """Return the pixel nearest to one of `count` samples of an interval."""
    return first + round(index * (length - 1) / max(1, count - 1))
