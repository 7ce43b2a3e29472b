"""Logistic regression by EM: weights of a classifier after a few labelled observations."""

from __future__ import annotations

import torch
from torch import Tensor

from probseg.ops.numerics import full_precision, working_dtype


def logistic_em(
    rows: Tensor, evidence: Tensor, counts: Tensor, prior_mean: Tensor, prior: float, steps: int
) -> Tensor:
    """Move the weights of a logistic classifier towards their posterior mode.

    The weights have the prior `N(prior_mean, I / prior)`, and row `s` was observed
    `counts[s]` times. Pólya-Gamma variables are the hidden ones (Polson, Scott & Windle 2013):
    the E step replaces each observation by a Gaussian one of precision `tanh(z / 2) / (2 z)`,
    `z` being the row's logit, and the M step solves the linear regression that is left. No step
    lowers the posterior; the bound is that of Jaakkola & Jordan (2000).

    Args:
        rows: Features `(B, S, D)`.
        evidence: Positive minus negative observations of each row, divided by two, `(B, S)`.
        counts: Positive plus negative observations, 0 for rows that are padding, `(B, S)`.
        prior_mean: Weights before any observation, `(D,)`.
        prior: Precision of the prior, positive.
        steps: Number of EM steps, at least 0.

    Returns:
        Weights `(B, D)`, float32, or float64 where the rows are.

    Raises:
        ValueError: If `prior` is not positive or `steps` is negative.
    """
    if not prior > 0:
        msg = f"`prior` must be a positive precision, got {prior}"
        raise ValueError(msg)
    if steps < 0:
        msg = f"`steps` must be at least 0, got {steps}"
        raise ValueError(msg)
    dtype = working_dtype(rows.dtype)
    rows, evidence, counts = rows.to(dtype), evidence.to(dtype), counts.to(dtype)
    mean = prior_mean.to(dtype)
    with full_precision(rows.device):
        weights = mean.expand(len(rows), -1)
        target = prior * mean + (evidence[:, None] @ rows)[:, 0]
        precision = prior * torch.eye(rows.shape[2], dtype=dtype, device=rows.device)
        for _ in range(steps):
            logits = (rows @ weights[..., None])[..., 0].abs().clamp(min=_SMALL)
            curvature = counts * (logits / 2).tanh() / (2 * logits)
            weighted = rows * curvature[..., None]
            weights = torch.linalg.solve(precision + weighted.mT @ rows, target)
    return weights


_SMALL = 1e-3
"""Logit below which the precision of an observation is 1/4 to the last digit of float32."""
