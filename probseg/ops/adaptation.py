"""Adaptation of the mixture to what was observed: keys to queries, value means to fixed values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from probseg.errors import UnknownNameError
from probseg.ops.attention import assign
from probseg.ops.backends.interface import Assigned
from probseg.ops.mixture import Mixture, Precision, logits

PriorMean = Literal["initial", "previous"]


@dataclass(frozen=True)
class KeyAdaptation:
    """EM updates of the keys from all queries (Gabbur et al., 2021, Eqs. 18 and 34).

    Args:
        iterations: Number of EM iterations; 0 changes nothing.
        prior_precision: ``theta``, the precision of the Gaussian prior of each key; 0 is maximum
            likelihood, the default of the paper's appendix C.4.
        prior_mean: Centre of that prior: the "initial" keys (its mode is the fixed point), or the
            "previous" iteration's (as printed in Eq. 18; converges to maximum likelihood). The
            two agree for one iteration.
    """

    iterations: int = 1
    prior_precision: float = 0.0
    prior_mean: PriorMean = "initial"

    def __post_init__(self) -> None:
        _check_update(self)


@dataclass(frozen=True)
class ValuePropagation:
    """EM updates of the value means from the fixed values (Gabbur et al., 2021, Eqs. 23 and 24).

    Args:
        iterations: Number of EM iterations; 0 changes nothing.
        prior_precision: ``theta``, the precision of the Gaussian prior of each value mean; the
            paper searches {0.1, 1, 10, 100}. 0 is maximum likelihood.
        prior_mean: Centre of that prior: the "initial" value means, or the "previous" iteration's
            (as printed in Eq. 23). The two agree for one iteration.
    """

    iterations: int = 1
    prior_precision: float = 1.0
    prior_mean: PriorMean = "initial"

    def __post_init__(self) -> None:
        _check_update(self)


def adapt_keys(mixture: Mixture, queries: Tensor, update: KeyAdaptation, backend: str) -> Mixture:
    """Move the keys to the queries they are responsible for (Eqs. 18 and 34)."""
    initial = mixture.keys
    for _ in range(update.iterations):
        joint = logits(mixture, queries)
        assigned = assign(
            joint.queries,
            joint.keys,
            queries,
            log_prior=joint.log_prior,
            scale=joint.scale,
            backend=backend,
        )
        prior_mean = initial if update.prior_mean == "initial" else mixture.keys
        adapted = _posterior_mode(
            assigned, mixture.query_precision, prior_mean, update.prior_precision
        )
        mixture = mixture._replace(keys=adapted)
    return mixture


def propagate_values(
    mixture: Mixture,
    queries: Tensor,
    fixed_values: Tensor,
    fixed_mask: Tensor,
    update: ValuePropagation,
    backend: str,
) -> Mixture:
    """Move the value means to the fixed values they are responsible for (Eqs. 23 and 24)."""
    rows, valid = _fixed_rows(fixed_mask)
    queries = _take(queries, rows)  # (B, G, S, D)
    observed = _take(fixed_values, rows)  # (B, G, S, V)
    padding = torch.zeros_like(valid, dtype=queries.dtype).masked_fill(~valid, -math.inf)
    mask = padding[:, None, :, None]  # (B, 1, S, 1)
    if mixture.log_mask is not None:
        mask = mask + _take_pairs(mixture.log_mask, rows)  # (B, G, S, M), sizes may be 1
    prior = mixture.log_prior
    clicked = mixture._replace(
        log_mask=mask, log_prior=_take_pairs(prior, rows) if isinstance(prior, Tensor) else prior
    )
    for _ in range(update.iterations):
        joint = logits(clicked, queries, observed)
        assigned = assign(
            joint.queries,
            joint.keys,
            observed,
            log_prior=joint.log_prior,
            scale=joint.scale,
            backend=backend,
        )
        prior_mean = mixture.values if update.prior_mean == "initial" else clicked.values
        propagated = _posterior_mode(
            assigned, clicked.value_precision, prior_mean, update.prior_precision
        )
        clicked = clicked._replace(values=propagated)
    return mixture._replace(values=clicked.values)


def _posterior_mode(
    assigned: Assigned, precision: Precision, prior_mean: Tensor, prior_precision: float
) -> Tensor:
    """Maximise each unit's expected log posterior over its mean.

    ``(theta m0_k + p_k N_k m_k) / (theta + p_k N_k)`` written with a gate, which needs the mass in
    the log only and is therefore safe where it underflows.
    """
    means, log_mass = assigned
    if prior_precision == 0.0:
        seen = (log_mass > -math.inf).unsqueeze(-1)  # (B, G, M, 1)
        return means.where(seen, prior_mean)
    log_precision = math.log(precision) if isinstance(precision, float) else precision.log()
    gate = torch.sigmoid(log_precision + log_mass - math.log(prior_precision))  # (B, G, M)
    return prior_mean + gate.unsqueeze(-1) * (means - prior_mean)


def _fixed_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the fixed values, ``(B, S)``, and which of them are no padding."""
    count = int(mask.sum(dim=1).max())
    rows = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
    return rows, mask.gather(1, rows)


def _take(tensor: Tensor, rows: Tensor) -> Tensor:
    """Take rows ``(B, S)`` of a tensor ``(B, G, N, C)``, whose other sizes may be 1."""
    return torch.take_along_dim(tensor, rows[:, None, :, None], dim=-2)  # (B, G, S, C)


def _take_pairs(prior: Tensor, rows: Tensor) -> Tensor:
    """Take rows ``(B, S)`` of a prior ``(B, G, N, M)``, which may be one row for all queries."""
    return prior if prior.shape[-2] == 1 else _take(prior, rows)


def _check_update(update: KeyAdaptation | ValuePropagation) -> None:
    name = type(update).__name__
    if update.iterations < 0:
        msg = f"{name}.iterations must be 0 or more, got {update.iterations}"
        raise ValueError(msg)
    if not 0.0 <= update.prior_precision < math.inf:
        msg = (
            f"{name}.prior_precision must be finite and not negative, got "
            f"{update.prior_precision}; 0 is maximum likelihood"
        )
        raise ValueError(msg)
    if update.prior_mean not in ("initial", "previous"):
        kind = f"{name}.prior_mean"
        raise UnknownNameError(kind, update.prior_mean, ("initial", "previous"))
