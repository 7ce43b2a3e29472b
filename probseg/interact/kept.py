"""Clicks that hold: clicked pixels get the label of their click, whatever the model answers.

The logits of an answer are taken as the mean of a Gaussian process, which is conditioned on the
clicked pixels (Rasmussen and Williams, 2006, Eqs. 2.19 and 2.38): where an answer obeys all clicks
it stays as it is; else it changes around the clicks that it does not obey, and as little as the
kernel allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from probseg.interact.probability import ProbabilityMap
from probseg.interact.sampling import places
from probseg.types import Click

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


def keep_clicks(answer: ProbabilityMap, clicks: Sequence[Click]) -> ProbabilityMap:
    """Return an answer in which each clicked pixel has the label of its click.

    Of several clicks on one pixel the last one counts. Clicks outside of the answer's box do not
    count. Where the answer has fewer values than the box has pixels, all values between which
    the clicked pixel is interpolated get its label.

    Args:
        answer: The answer of a model.
        clicks: All clicks so far, in order, in pixels of the image.

    Returns:
        `answer` itself where it obeys all clicks by `MARGIN`.
    """
    labels = _labels(answer, clicks)
    if not labels:
        return answer
    samples = torch.tensor(list(labels))
    signs = torch.tensor(list(labels.values()), dtype=torch.float64)
    rows, columns = samples.to(answer.values.device).unbind(dim=1)
    given = _logits(answer.values[rows, columns].cpu())
    fails = given * signs < MARGIN
    if not fails.any():
        return answer
    wanted = torch.where(fails, MARGIN * signs, given)
    length = LENGTH * max(answer.values.shape)
    changed = conditioned(answer.values.cpu(), samples, wanted, length)
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

    Returns:
        Of the type and shape of `values`.
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
