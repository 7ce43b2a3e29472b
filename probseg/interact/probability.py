"""Probabilities of an object in a box of an image, and clicks that hold in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probseg.clicks.boxes import Box, mask_box
from probseg.interact.photograph import box_size, fitted, places, positions, sampled
from probseg.models.network import Size
from probseg.types import Click, read_only

MARGIN = 0.1
"""Smallest logit of a clicked pixel, towards its label."""

LENGTH = 4 / 384
"""Length of the kernel, a squared exponential of the distance, as a fraction of the longer side."""

REACH = 6
"""Lengths beyond which the kernel, below 2e-8, is taken as 0."""

JITTER = 1e-8
"""Variance of the noise of a clicked pixel, for the sake of the linear system."""

NEGLIGIBLE = 1e-6
"""Weight of an observation below which it changes no logit."""

CLAMPED = 1e-7
"""Probabilities count as no nearer to 0 and 1, where logits are infinite."""


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
        """Return the probabilities in any box of the image, resized, float32 `(1, h, w)`."""
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


def keep_clicks(answer: ProbabilityMap, clicks: Sequence[Click]) -> ProbabilityMap:
    """Return an answer in which each clicked pixel has the label of its click.

    The logits of an answer are taken as the mean of a Gaussian process, which is conditioned on the
    clicked pixels: it changes around the clicks that it does not obey, and as little as the kernel
    allows.

    Of several clicks on one pixel the last one counts. Clicks outside of the answer's box do not
    count. Where the answer has fewer values than the box has pixels, all values between which
    the clicked pixel is interpolated get its label. An answer that obeys all clicks by `MARGIN`
    stays as it is.
    """
    labels = _labels(answer, clicks)
    if not labels:
        return answer
    samples = torch.tensor(list(labels))
    signs = torch.tensor(list(labels.values()), dtype=torch.float64)
    rows, columns = samples.to(answer.values.device).unbind(dim=1)
    logits = _logits(answer.values[rows, columns].cpu())
    fails = logits * signs < MARGIN
    if not fails.any():
        return answer
    length = LENGTH * max(answer.values.shape)
    obeying = torch.where(fails, MARGIN * signs, logits)
    changed = conditioned(answer.values.cpu(), samples, obeying, length)
    return replace(answer, values=changed.to(answer.values.device))


def conditioned(values: Tensor, samples: Tensor, logits: Tensor, length: float) -> Tensor:
    """Return probabilities whose logits, the mean of a Gaussian process, meet observations.

    `f(x) + k(x, X) K(X, X)^-1 (y - f(X))`, the posterior mean (Rasmussen and Williams, 2006,
    Eq. 2.38), with `k(x, x') = exp(-|x - x'|^2 / (2 length^2))`.

    Args:
        values: Probabilities, float, shape `(h, w)`, on the CPU.
        samples: Rows and columns `X` of the observed values, all different, int64, shape `(n, 2)`.
        logits: The observations `y`, float64, shape `(n,)`.
        length: In samples.
    """
    at = samples.double()

    def kernel(steps: Tensor, axis: int) -> Tensor:
        """Return the kernel's factor of an axis, shape `(steps, n)`."""
        return torch.exp(-((steps[:, None] - at[:, axis]) / length).square() / 2)

    covariance = kernel(at[:, 0], 0) * kernel(at[:, 1], 1)
    covariance += JITTER * torch.eye(len(samples), dtype=torch.float64)
    residuals = logits - _logits(values[samples[:, 0], samples[:, 1]])
    weights = torch.linalg.solve(covariance, residuals)
    reach = math.ceil(REACH * length)
    result = values.clone()
    for row, column in samples[weights.abs() > NEGLIGIBLE].tolist():
        top, left = max(0, row - reach), max(0, column - reach)
        bottom = min(values.shape[0], row + reach + 1)
        right = min(values.shape[1], column + reach + 1)
        rows = kernel(torch.arange(top, bottom, dtype=torch.float64), 0)
        columns = kernel(torch.arange(left, right, dtype=torch.float64), 1)
        before = _logits(values[top:bottom, left:right])
        after = before + (rows * weights) @ columns.mT
        result[top:bottom, left:right] = after.sigmoid().to(values)
    # What jitter, reach and rounding leave, above all where clicks of both signs are neighbours.
    result[samples[:, 0], samples[:, 1]] = logits.sigmoid().to(values)
    return result


def _labels(answer: ProbabilityMap, clicks: Sequence[Click]) -> dict[tuple[int, int], int]:
    """Return 1 or -1 for the rows and columns of the values that belong to a clicked pixel."""
    labels: dict[tuple[int, int], int] = {}
    x0, y0, x1, y1 = answer.box
    size = answer.values.shape[0], answer.values.shape[1]
    for click in clicks:
        x, y = math.floor(click.x), math.floor(click.y)
        if not (x0 <= x < x1 and y0 <= y < y1):
            continue
        ((column, row),) = places(np.array([[x, y]], float), answer.box, size)
        around = {
            (int(r), int(c))
            for r in (math.floor(row), math.ceil(row))
            for c in (math.floor(column), math.ceil(column))
        }
        labels.update(dict.fromkeys(around, 1 if click.positive else -1))
    return labels


def _logits(values: Tensor) -> Tensor:
    """Return the logits of probabilities, float64."""
    return torch.logit(values.double(), CLAMPED)


def _pixel(index: int, first: int, length: int, count: int) -> int:
    """Return the pixel nearest to one of `count` samples of an interval."""
    return first + round(index * (length - 1) / max(1, count - 1))
