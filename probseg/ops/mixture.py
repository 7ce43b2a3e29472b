"""The mixture of Gaussians behind probabilistic attention, and its log joint as a dot product.

Unit j has a prior ``pi_ij``, a key mean ``xi_j`` with precision ``alpha_j`` and a value mean
``mu_j`` with precision ``beta_j`` (Gabbur et al., 2021, Eqs. 7-9)::

    log p_i(q, v, u_j) = log pi_ij + D/2 log(alpha_j / 2pi) - alpha_j/2 |q - xi_j|²
                                   + V/2 log(beta_j / 2pi) - beta_j/2 |v - mu_j|²

Expanding the squares gives ``scale queries·keys + log_prior + offset`` with a few more channels,
and that is what ``attend`` and ``assign`` take.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Precision = float | Tensor
"""A float, or a tensor that broadcasts to ``(B, G, M)``, of last size 1 if the units share it."""

PriorName = Literal["magnitude", "key_magnitude", "uniform"]
PRIOR_NAMES: tuple[PriorName, ...] = ("magnitude", "key_magnitude", "uniform")


class Mixture(NamedTuple):
    """Parameters of the M units.

    Args:
        keys: Key means ``xi``, shape ``(B, G, M, D)``.
        values: Value means ``mu``, shape ``(B, G, M, V)``.
        query_precision: ``alpha``.
        value_precision: ``beta``; the float 0.0 means that values carry no likelihood.
        log_prior: A name that ties ``log pi`` to the means, or a tensor of four dimensions.
        log_mask: None, or four dimensions: 0 where a query sees a unit, -inf where it does not.
    """

    keys: Tensor
    values: Tensor
    query_precision: Precision
    value_precision: Precision
    log_prior: PriorName | Tensor
    log_mask: Tensor | None


class Logits(NamedTuple):
    """Arguments of the primitives whose logits are the log joint up to ``offset``.

    Args:
        queries: Augmented queries, shape ``(B, G, N, C)``.
        keys: Augmented keys, shape ``(B, G, M, C)``.
        log_prior: None, or four dimensions that broadcast to ``(B, G, N, M)``.
        scale: Factor of the dot products.
        offset: What is the same for all units, broadcasts to ``(B, G, N)``.
    """

    queries: Tensor
    keys: Tensor
    log_prior: Tensor | None
    scale: float
    offset: Precision


class _Expansion(NamedTuple):
    """``log N(x_i | m_j, 1/p_j) = scale left_i·right_j + unit_j + offset_i``."""

    left: Tensor  # (B, G, N, C) or with one more channel
    right: Tensor  # (B, G, M, C) or with one more channel
    unit: Precision  # broadcasts to (B, G, M)
    offset: Precision  # broadcasts to (B, G, N)


def has_value_likelihood(mixture: Mixture) -> bool:
    """Tell whether ``beta`` can differ from 0."""
    return isinstance(mixture.value_precision, Tensor) or mixture.value_precision > 0.0


def prior_scores(mixture: Mixture) -> Tensor:
    """Return a named ``log pi_j`` before it is normalised over the units, shape ``(B, G, M)``.

    "magnitude" is Gabbur et al., 2021, Eq. 10; "key_magnitude" leaves its values out.
    """
    scores = torch.zeros_like(mixture.keys[..., 0])  # (B, G, M)
    if _keys_tied(mixture):
        scores = scores + mixture.query_precision * _half_norms(mixture.keys)
    if _values_tied(mixture) and has_value_likelihood(mixture):
        scores = scores + mixture.value_precision * _half_norms(mixture.values)
    return scores


def logits(mixture: Mixture, queries: Tensor, observed_values: Tensor | None = None) -> Logits:
    """Expand the log joint of the units with queries and, where given, values.

    The normaliser of a named prior is left out: it is the same for all units.

    Args:
        mixture: The M units.
        queries: ``(B, G, N, D)``.
        observed_values: ``(B, G, N, V)``, or None to weigh by the queries alone.
    """
    # A float precision becomes the scale: in half precision that is exact, scaled keys are not.
    alpha = mixture.query_precision
    scale = alpha if isinstance(alpha, float) else 1.0
    # A tied prior cancels the norms of the keys: neither of the two is ever computed.
    expanded = _expand(queries, mixture.keys, alpha, scale, tied=_keys_tied(mixture))
    left, right = expanded.left, expanded.right
    unit, offset = expanded.unit, expanded.offset
    if has_value_likelihood(mixture):
        beta, values_tied = mixture.value_precision, _values_tied(mixture)
        if observed_values is not None:
            seen = _expand(observed_values, mixture.values, beta, scale, tied=values_tied)
            left = torch.cat([left, seen.left], dim=-1)  # (B, G, N, D + V + ...)
            right = torch.cat([right, seen.right], dim=-1)  # (B, G, M, D + V + ...)
            unit, offset = unit + seen.unit, offset + seen.offset
        elif values_tied:
            unit = unit + beta * _half_norms(mixture.values)
    log_prior = unit.unsqueeze(-2) if isinstance(unit, Tensor) else None  # (B, G, 1, M)
    given = mixture.log_prior if isinstance(mixture.log_prior, Tensor) else None
    for term in (given, mixture.log_mask):
        if term is not None:
            log_prior = term if log_prior is None else log_prior + term
    return Logits(left, right, log_prior, scale, offset)


def _expand(
    points: Tensor, means: Tensor, precision: Precision, scale: float, *, tied: bool
) -> _Expansion:
    """Expand Gaussian log densities; if tied, ``precision/2 |mean|²`` is added and cancels."""
    if not tied:
        # Distances do not change with the origin, but the cancellation of their expanded norms
        # costs digits if the origin is far away.
        centre = means.mean(-2, keepdim=True).detach()  # (B, G, 1, C)
        points, means = points - centre, means - centre
    width = means.shape[-1]
    half_norms = _half_norms(points)  # (B, G, N)
    unit: Precision = 0.0 if tied else -precision * _half_norms(means)
    if isinstance(precision, float):
        offset = width / 2 * math.log(precision / (2 * math.pi)) - precision * half_norms
        return _Expansion(points, precision / scale * means, unit, offset)
    log_normaliser = width / 2 * (precision / (2 * math.pi)).log()
    factor = (precision / scale).unsqueeze(-1)  # (B, G, M, 1), sizes may be 1
    if precision.shape[-1] == 1:
        offset = log_normaliser - precision * half_norms
        return _Expansion(points, factor * means, unit, offset)
    left = torch.cat([points, half_norms.unsqueeze(-1)], dim=-1)  # (B, G, N, C + 1)
    spread = -factor.expand(*means.shape[:-1], 1)  # (B, G, M, 1)
    right = torch.cat([factor * means, spread], dim=-1)  # (B, G, M, C + 1)
    return _Expansion(left, right, unit + log_normaliser, 0.0)


def _keys_tied(mixture: Mixture) -> bool:
    named = not isinstance(mixture.log_prior, Tensor)
    return named and mixture.log_prior in ("magnitude", "key_magnitude")


def _values_tied(mixture: Mixture) -> bool:
    return not isinstance(mixture.log_prior, Tensor) and mixture.log_prior == "magnitude"


def _half_norms(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1) / 2
