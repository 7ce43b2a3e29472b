"""Adaptation of the mixture: keys to queries, value means to fixed values.

Each step is an M step of EM with the responsibilities of the previous mixture. The means move
first and the precisions follow with the new means, so that no step lowers the posterior of a
mixture whose prior is fixed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from probseg.ops.attention import assign_checked
from probseg.ops.backends.interface import Assigned
from probseg.ops.fixed import FixedTokens, backend_of_few, fixed_tokens, take_terms, take_tokens
from probseg.ops.mixture import (
    LogJoint,
    Mixture,
    Precision,
    fix_prior,
    fixed_terms,
    in_full,
    log_precision,
    query_logits,
    value_logits,
)
from probseg.ops.updates import DirichletPrior, GammaPrior, KeyAdaptation, ValuePropagation


def adapt_keys(mixture: Mixture, queries: Tensor, update: KeyAdaptation, backend: str) -> Mixture:
    """Move the keys to the queries they are responsible for (Eqs. 18, 34 and 36)."""
    initial = mixture.keys
    if update.precision_prior is not None:
        mixture = in_full(mixture)  # squared distances cannot be had from half-precision products
    for _ in range(update.iterations):
        prior_mean = initial if update.prior_mean == "initial" else mixture.keys
        joint = query_logits(mixture, queries)
        step = _em_step(joint, queries, prior_mean, mixture.query_precision, update, backend)
        mixture = mixture._replace(keys=step.means, query_precision=step.precision)
    return mixture


def propagate_values(
    mixture: Mixture,
    queries: Tensor,
    fixed_values: Tensor,
    fixed_mask: Tensor,
    update: ValuePropagation,
    backend: str,
) -> Mixture:
    """Move the value means to the fixed values they are responsible for (Eqs. 23, 24, 37, 38).

    Only the S fixed tokens are observations; their pairs with the M units are written out.

    Args:
        mixture: The M units.
        queries: `(B, G, N, D)`.
        fixed_values: `(B, G, N, V)`, finite everywhere.
        fixed_mask: Bool, `(B, N)`.
        update: Number of iterations and priors.
        backend: As in `attend`.
    """
    if update.iterations == 0:
        return mixture
    fixed = fixed_tokens(fixed_mask)
    dirichlet = update.dirichlet_prior
    weights: tuple[Tensor, ...] = ()
    few = in_full(mixture)
    if dirichlet is not None:
        mixture = fix_prior(mixture)
        weights = take_terms(fixed_terms(mixture), fixed)
        few = in_full(mixture)._replace(log_prior=())
    # The logits of the queries are the same in all iterations.
    base = _pair_logits(query_logits(few, queries, values_follow=True), fixed)
    base = base.masked_fill(~fixed.valid[:, None, :, None], -math.inf)  # (B, G, S, M)
    backend = backend_of_few(backend, base.numel())
    observed = take_tokens(fixed_values, fixed)  # (B, G, S, V)
    initial = mixture.values
    for _ in range(update.iterations):
        prior_mean = initial if update.prior_mean == "initial" else mixture.values
        joint = value_logits(in_full(mixture), observed)
        joint = joint._replace(log_prior=(base, *weights, *joint.log_prior))
        step = _em_step(joint, observed, prior_mean, mixture.value_precision, update, backend)
        mixture = mixture._replace(values=step.means, value_precision=step.precision)
        if dirichlet is not None:
            weights = (_weight_mode(step.log_mass, dirichlet),)
    return mixture if dirichlet is None else mixture._replace(log_prior=weights)


def _pair_logits(joint: LogJoint, fixed: FixedTokens) -> Tensor:
    """Write out the logits of the fixed tokens, `(B, G, S, M)`."""
    pairs = joint.scale * (take_tokens(joint.queries, fixed) @ joint.keys.mT)
    for term in take_terms(joint.log_prior, fixed):
        pairs = pairs + term
    return pairs


class _Step(NamedTuple):
    """One Gaussian for each unit after a step of EM."""

    means: Tensor  # (B, G, M, C)
    precision: Precision
    log_mass: Tensor  # (B, G, M)


def _em_step(
    joint: LogJoint,
    observations: Tensor,
    prior_mean: Tensor,
    precision: Precision,
    update: KeyAdaptation | ValuePropagation,
    backend: str,
) -> _Step:
    """Assign the observations `(B, G, N, C)` to the units and fit a Gaussian to each."""
    if update.precision_prior is None:
        assigned = _assign(joint, observations, backend)
        means = _posterior_mode(assigned, precision, prior_mean, update.prior_precision)
        return _Step(means, precision, assigned.log_mass)
    # Distances do not depend on the origin: near the means, their squares lose fewest digits.
    centre = prior_mean.mean(-2, keepdim=True).detach()  # (B, G, 1, C)
    centred = observations - centre
    squares = centred.square().sum(-1, keepdim=True)
    moments, log_mass = _assign(joint, torch.cat([centred, squares], dim=-1), backend)
    mean, square = moments[..., :-1] + centre, moments[..., -1]
    fitted = _posterior_mode(
        Assigned(mean, log_mass), precision, prior_mean, update.prior_precision
    )
    # E_k = m(|x|²) - 2 x_k·m_k + |x_k|²; the variance in it is not negative but for rounding.
    variance = (square - moments[..., :-1].square().sum(-1)).clamp_min(0.0)
    error = variance + (mean - fitted).square().sum(-1)  # (B, G, M)
    fitted_precision = _precision_mode(
        log_mass, error, observations.shape[-1], update.precision_prior
    )
    return _Step(fitted, fitted_precision, log_mass)


def _assign(joint: LogJoint, observations: Tensor, backend: str) -> Assigned:
    dtype = joint.queries.dtype  # half only where the backend multiplies in half precision
    assigned = assign_checked(
        joint.queries, joint.keys, observations.to(dtype), joint.log_prior, joint.scale, backend
    )
    return Assigned(assigned.means.to(observations.dtype), assigned.log_mass)


def _posterior_mode(
    assigned: Assigned, precision: Precision, prior_mean: Tensor, prior_precision: Precision
) -> Tensor:
    """Maximise each unit's expected log posterior over its mean (Eqs. 18 and 23).

    `(theta m0_k + p_k N_k m_k) / (theta + p_k N_k)` written with a gate, which needs the mass in
    the log only and is therefore safe where it underflows.
    """
    means, log_mass = assigned
    if not isinstance(prior_precision, Tensor) and prior_precision == 0.0:
        seen = (log_mass > -math.inf).unsqueeze(-1)  # (B, G, M, 1)
        return means.where(seen, prior_mean)
    log_odds = log_precision(precision) + log_mass - log_precision(prior_precision)
    gate = torch.sigmoid(log_odds)  # (B, G, M)
    return prior_mean + gate.unsqueeze(-1) * (means - prior_mean)


def _precision_mode(log_mass: Tensor, error: Tensor, width: int, prior: GammaPrior) -> Tensor:
    """Maximise each unit's expected log posterior over its precision (Eqs. 36 and 37).

    `(theta_1 + C/2 N_k - 1) / (theta_2 + N_k E_k / 2)` for C channels and a mean squared error
    `E_k`, all of shape `(B, G, M)`.
    """
    mass = log_mass.exp()
    return (prior.shape - 1.0 + width / 2 * mass) / (prior.rate + mass * error / 2)


def _weight_mode(log_mass: Tensor, prior: DirichletPrior) -> Tensor:
    """Maximise the expected log posterior over the mixture weights, and return their log (Eq. 38).

    `(N_k + theta_k - 1) / sum_k (N_k + theta_k - 1)`, of shape `(B, G, 1, M)`.
    """
    counts = log_mass.unsqueeze(-2)  # (B, G, 1, M)
    pseudo = prior.concentration - 1.0
    if isinstance(pseudo, Tensor):
        pseudo = pseudo.unsqueeze(-2)  # (B, G, 1, M)
        added = torch.logaddexp(counts, pseudo.where(pseudo > 0.0, 1.0).log())
        counts = added.where(pseudo > 0.0, counts)  # log(0) would have no gradient
    elif pseudo > 0.0:
        counts = torch.logaddexp(counts, torch.full_like(counts, math.log(pseudo)))
    # Rows without any responsibility or pseudo-count keep weights that hide nothing.
    alive = (counts > -math.inf).any(-1, keepdim=True)
    return counts.where(alive, 0.0).log_softmax(-1)
