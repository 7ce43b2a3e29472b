"""Expectation-maximisation attention (Li et al., 2019): attention to a few fitted bases.

The E step gives each basis its responsibility for each token, the M step moves the bases to the
means of the tokens they are responsible for, and the tokens are read out from the bases. Nothing is
as large as tokens x tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.errors import check_least
from probseg.ops.attention import LogPrior, assign_checked, attend_checked, checked_terms
from probseg.ops.backends.interface import Terms
from probseg.ops.checks import check_units
from probseg.ops.edges import SoftmaxEdges
from probseg.ops.numerics import full_precision, working_dtype

SHORTEST = 1e-6
"""Smallest divisor in `l2_normalise`; the gradient is below its inverse.

Means of features are shorter only for bases without responsibility.
"""

SMALLEST_VARIANCE = 1e-5
"""Added to the variance in `layer_normalise`."""

FEW = 4
"""With at least this many channels per basis, responsibilities are written out: they are much
smaller than the tokens, and this is up to three times as fast as the other backends."""

Normalise = Callable[[Tensor], Tensor]
"""Maps bases `(..., K, D)` to bases of the same shape."""


class EMAttention(NamedTuple):
    """Result of `em_attention`.

    Args:
        values: Tokens read out from the bases, `(B, G, N, D)`.
        bases: The bases after the last M step, `(B, G, K, D)`.
        previous: The bases before it, `(B, G, K, D)`, of the E step of the read-out.
    """

    values: Tensor
    bases: Tensor
    previous: Tensor


def l2_normalise(bases: Tensor) -> Tensor:
    """Divide each basis by its length, at least `SHORTEST` (Li et al., 2019, §5.3).

    Args:
        bases: `(..., K, D)`.

    Returns:
        Bases of length 1, in the same shape and dtype; a basis of zeros stays as it is.
    """
    return F.normalize(bases, dim=-1, eps=SHORTEST)


def layer_normalise(bases: Tensor) -> Tensor:
    """Give the channels of each basis zero mean and unit variance (Ba et al., 2016).

    Args:
        bases: `(..., K, D)`.

    Returns:
        Bases in the same shape and dtype; a basis of zeros stays as it is.
    """
    return F.layer_norm(bases, bases.shape[-1:], eps=SMALLEST_VARIANCE)


def m_step(
    tokens: Tensor,
    bases: Tensor,
    *,
    scale: float = 1.0,
    normalise: Normalise | None = l2_normalise,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Tensor:
    """Move each basis to the mean of the tokens it is responsible for (Li et al., 2019, Eq. 13).

    Arguments are those of `em_attention`, with the bases of the E step; the new bases `(B, G, K,
    D)` are returned. A basis that no token sees is zero.
    """
    terms, backend = _checked(tokens, bases, log_prior, scale, backend)
    return _m_step(tokens, bases, terms, scale, normalise, backend)


def em_attention(
    tokens: Tensor,
    bases: Tensor,
    *,
    iterations: int = 3,
    scale: float = 1.0,
    normalise: Normalise | None = l2_normalise,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> EMAttention:
    """Fit bases to the tokens by EM and read these out from them (Li et al., 2019, Eqs. 11-14).

    For `t = 1 ... T`, `Z(t) = softmax_k(scale x_n·mu_k(t-1) + log_prior_nk)` and `mu_k(t)` is
    the mean of the tokens weighted by `z_nk(t)`, normalised. The values are `Z(T) mu(T)`.

    With `l2_normalise`, no step lowers `sum_n log sum_k exp(scale x_n·mu_k + log_prior_nk)` if
    the scale is above 0 and the initial bases are not longer than 1. For tokens of unit length it
    is then EM in a mixture of von Mises-Fisher distributions of concentration `scale`.

    Special cases: without iterations, bases are as given; with the tokens as bases, that is
    self-attention, the non-local block of Li et al. (2019, §6.2.2). One iteration without
    normalisation is double attention as they read it (§5.4); the A2-Net as published (Chen et al.,
    2018) normalises its gathering softmax over the pixels instead, and is not among these.

    Args:
        tokens: `(B, G, N, D)`, floating.
        bases: Initial bases `mu(0)`, `(B, G, K, D)`, of the same dtype; used as they are.
        iterations: Number `T` of E and M steps, at least 0.
        scale: `lambda` of Eq. 12: inverse temperature of the responsibilities.
        normalise: Applied to the bases after each M step; None leaves the means.
        log_prior: Added to the logits in each E step, see `attend`; the bases are its keys.
        backend: See `attend`; with few bases (`FEW`), "auto" is "reference".

    Returns:
        Values and bases, in the dtype of the arguments; all of it is differentiable.

    Raises:
        ValueError: If `iterations` is negative; and as `attend` does.
    """
    check_least("iterations", iterations, 0)
    terms, backend = _checked(tokens, bases, log_prior, scale, backend)
    previous = bases
    for _ in range(iterations):
        previous = bases
        bases = _m_step(tokens, previous, terms, scale, normalise, backend)
    read = attend_checked(tokens, previous, bases, terms, scale, backend)
    return EMAttention(read.values, bases, previous)


def responsibilities(
    tokens: Tensor, bases: Tensor, scale: float = 1.0, log_prior: LogPrior | None = None
) -> Tensor:
    """Write out the E step (Li et al., 2019, Eq. 12), `(B, G, N, K)`, float32 (or float64).

    They sum to 1 over the bases, or to 0 for a token that sees none.
    """
    return SoftmaxEdges(tokens, bases, log_prior, scale).log_probability(slice(None)).exp()


def _checked(
    tokens: Tensor, bases: Tensor, log_prior: LogPrior | None, scale: float, backend: str
) -> tuple[Terms, str]:
    """Check the arguments of EM; return the terms of the prior, and the backend."""
    check_units(tokens, bases, bases, payload_name="bases", payload_of="keys")
    few = FEW * bases.shape[-2] <= bases.shape[-1]
    chosen = "reference" if backend == "auto" and few else backend
    return checked_terms(tokens, bases, log_prior, scale), chosen


def _m_step(
    tokens: Tensor,
    bases: Tensor,
    terms: Terms,
    scale: float,
    normalise: Normalise | None,
    backend: str,
) -> Tensor:
    """Compute `m_step` for arguments that are known to fit together."""
    means = assign_checked(tokens, bases, tokens, terms, scale, backend).means
    return means if normalise is None else normalise(means)


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
        raise ValueError(f"`prior` must be a positive precision, got {prior}")
    check_least("steps", steps, 0)
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
