"""Propagation of fixed values to the units, in the span of the initial and the fixed values.

An M step (Gabbur et al., 2021, Eq. 23; Movellan & Gabbur, 2020, Eq. 35) moves the value mean of a
unit towards the mean of the S fixed values that it explains::

    mu_k <- mu'_k + g_k (m_k - mu'_k)      g_k = beta_k N_k / (theta + beta_k N_k)
    N_k = sum_s w_sk                       m_k = sum_s p_sk v_s      p_sk = w_sk / N_k

`mu'` is the initial mean or the previous one, and `w` are the responsibilities of Eq. 24: a softmax
over the units of the log joint of a clicked query, whose share of the logits stays as it is, and
its fixed value. Every mean is therefore a combination whose coefficients sum to 1::

    mu_k = a_k mu0_k + sum_s c_sk v_s

All that an iteration needs of the means are the products `x_sk = v_s·mu_k` and the squares
`n_k = |mu_k|²`, and both follow from their last values and from the Gram matrix `G_st = v_s·v_t`::

    P = G p                                (S x M)
    x_k  <- (1 - g_k) x'_k + g_k P_k
    n_k  <- (1 - g_k)² n'_k + 2 g_k (1 - g_k) sum_s p_sk x'_sk + g_k² sum_s p_sk P_sk
    a_k  <- (1 - g_k) a'_k                 c_sk <- (1 - g_k) c'_sk + g_k p_sk

The E step needs `|v_s - mu_k|² = |v_s|² - 2 x_sk + n_k`. The precision of a unit (Eq. 37) needs the
mean squared error about its new mean, the variance about `m_k` and the squared way from there::

    E_k = sum_s p_sk |v_s|² - |m_k|² + (1 - g_k)² (|m_k|² - 2 m_k·mu'_k + n'_k)
    |m_k|² = sum_s p_sk P_sk               m_k·mu'_k = sum_s p_sk x'_sk

So an iteration goes through S x M numbers; the M x V of the means are formed once, at the end.
Distances do not depend on the origin: that of all products is the mean of the initial values, where
they lose the fewest digits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from probseg.ops.fixed import FixedTokens, fixed_tokens, take_terms, take_tokens
from probseg.ops.mixture import (
    TIED_TO_VALUES,
    Mixture,
    Precision,
    fix_prior,
    in_full,
    log_precision,
    query_logits,
)
from probseg.ops.modes import log_weight_mode, mean_gate, precision_mode
from probseg.ops.updates import ValuePropagation

HIDDEN = -1e30
"""Logit in the place of -inf: a column of -inf has no softmax, and a gradient of NaN."""


def propagate_values(
    mixture: Mixture,
    queries: Tensor,
    fixed_values: Tensor,
    fixed_mask: Tensor,
    update: ValuePropagation,
) -> Mixture:
    """Move the value means to the fixed values they are responsible for (Eqs. 23, 24, 37, 38).

    Args:
        mixture: The M units.
        queries: `(B, G, N, D)`.
        fixed_values: `(B, G, N, V)`, finite everywhere.
        fixed_mask: Bool, `(B, N)`.
        update: Number of iterations and priors.
    """
    if update.iterations == 0:
        return mixture
    gamma, dirichlet = update.precision_prior, update.dirichlet_prior
    fixed = fixed_tokens(fixed_mask)
    weights: tuple[Tensor, ...] = ()
    if dirichlet is None:
        clicked = _query_logits(mixture, queries, fixed)  # (B, G, S, M)
    else:
        mixture = fix_prior(mixture)
        clicked = _query_logits(mixture._replace(log_prior=()), queries, fixed)
        weights = take_terms(mixture.log_prior, fixed)
    observed = take_tokens(fixed_values, fixed)  # (B, G, S, V)
    beta, tied = mixture.value_precision, mixture.prior in TIED_TO_VALUES
    # All but a tied prior needs distances alone.
    origin = 0.0 if tied else mixture.values.mean(-2, keepdim=True).detach()  # (B, G, 1, V)
    values = _fixed_values(observed - origin)
    initial = means = _initial_means(mixture.values - origin, values)
    for _ in range(update.iterations):
        logits = _value_likelihood(means, values, beta, tied=tied) + clicked
        for term in weights:
            logits = logits + term.clamp_min(HIDDEN)
        shares, log_mass = _responsibilities(logits)
        prior = initial if update.prior_mean == "initial" else means
        gate = mean_gate(log_mass, beta, update.prior_precision)  # (B, G, M)
        step = _explained(shares, values, prior)
        means = _between(prior, step, gate.unsqueeze(-2))
        if gamma is not None:
            error = _mean_squared_error(prior, step, gate.unsqueeze(-2), values)  # (B, G, M)
            beta = precision_mode(log_mass, error, observed.shape[-1], gamma)
        if dirichlet is not None:
            weights = (log_weight_mode(log_mass, dirichlet),)
    if dirichlet is not None:
        mixture = mixture._replace(log_prior=weights)
    moved = means.kept.mT * mixture.values + means.shares.mT @ observed  # (B, G, M, V)
    return mixture._replace(values=moved, value_precision=beta)


class _FixedValues(NamedTuple):
    """The fixed values and their products."""

    values: Tensor  # (B, G, S, V)
    squares: Tensor  # (B, G, S, 1)
    gram: Tensor | None  # (B, G, S, S); None where S is large


class _Means(NamedTuple):
    """The means `mu_k = a_k mu0_k + sum_s c_sk v_s`, and what an E step needs of them."""

    kept: Tensor  # a, (B, G, 1, M)
    shares: Tensor  # c, (B, G, S, M)
    products: Tensor  # v_s·mu_k, (B, G, S, M)
    squares: Tensor  # |mu_k|², (B, G, 1, M)


class _Step(NamedTuple):
    """The means `m_k = sum_s p_sk v_s` of the fixed values that each unit explains."""

    shares: Tensor  # p, (B, G, S, M)
    products: Tensor  # P = v_s·m_k, (B, G, S, M)
    squares: Tensor  # |m_k|², (B, G, 1, M)
    prior_products: Tensor  # mu'_k·m_k, (B, G, 1, M)


def _query_logits(mixture: Mixture, queries: Tensor, fixed: FixedTokens) -> Tensor:
    """Write out the logits of the fixed tokens given their queries alone, `(B, G, S, M)`."""
    joint = query_logits(in_full(mixture), queries, values_follow=True)
    logits = joint.scale * (take_tokens(joint.queries, fixed) @ joint.keys.mT)
    for term in take_terms(joint.log_prior, fixed):
        logits = logits + term
    return logits.clamp_min(HIDDEN).masked_fill(~fixed.valid[:, None, :, None], HIDDEN)


def _fixed_values(values: Tensor) -> _FixedValues:
    squares = values.square().sum(-1, keepdim=True)
    # An exported graph has as many rows as there are tokens.
    few = not torch.compiler.is_exporting() and values.shape[-2] <= values.shape[-1]
    return _FixedValues(values, squares, values @ values.mT if few else None)


def _initial_means(units: Tensor, fixed: _FixedValues) -> _Means:
    products = fixed.values @ units.mT  # (B, G, S, M)
    squares = units.square().sum(-1).unsqueeze(-2)  # (B, G, 1, M)
    return _Means(torch.ones_like(squares), torch.zeros_like(products), products, squares)


def _value_likelihood(means: _Means, fixed: _FixedValues, beta: Precision, *, tied: bool) -> Tensor:
    """Return `log N(v_s | mu_k, 1 / beta_k)` up to a constant, `(B, G, S, M)` (Eq. 9).

    Args:
        means: The means.
        fixed: The fixed values.
        beta: Value precision.
        tied: Whether the prior adds `beta_k/2 |mu_k|²`, which cancels.
    """
    squares = fixed.squares if tied else fixed.squares + means.squares
    distances = torch.sub(squares, means.products, alpha=2.0)
    if isinstance(beta, float):
        return -beta / 2 * distances
    log_normaliser = fixed.values.shape[-1] / 2 * log_precision(beta)  # (B, G, M)
    return log_normaliser.clamp_min(HIDDEN).unsqueeze(-2) - beta.unsqueeze(-2) / 2 * distances


def _responsibilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise over the units, and then over the fixed tokens (Eq. 24).

    Args:
        logits: `(B, G, S, M)`, `HIDDEN` in the place of -inf.

    Returns:
        The shares `p_sk = w_sk / N_k`, which mean nothing for a unit that explains nothing, and
        `log N_k`, `(B, G, M)`, which is -inf there.
    """
    alive = logits.amax(-1, keepdim=True) > HIDDEN / 2  # sees a unit, and is no padding
    log_weights = logits.log_softmax(-1).where(alive, HIDDEN)
    log_mass = log_weights.logsumexp(-2, keepdim=True)
    shares = (log_weights - log_mass).exp()
    return shares, log_mass.where(log_mass > HIDDEN / 2, -math.inf).squeeze(-2)


def _explained(shares: Tensor, fixed: _FixedValues, prior: _Means) -> _Step:
    if fixed.gram is None:
        products = fixed.values @ (fixed.values.mT @ shares)
    else:
        products = fixed.gram @ shares
    return _Step(
        shares,
        products,
        (shares * products).sum(-2, keepdim=True),
        (shares * prior.products).sum(-2, keepdim=True),
    )


def _between(prior: _Means, step: _Step, gate: Tensor) -> _Means:
    """Move means from the prior's towards what they explain, `gate` of the way, `(B, G, 1, M)`."""
    rest = 1.0 - gate
    squares = rest * (rest * prior.squares + 2.0 * gate * step.prior_products)
    return _Means(
        rest * prior.kept,
        torch.lerp(prior.shares, step.shares, gate),
        torch.lerp(prior.products, step.products, gate),
        squares + gate.square() * step.squares,
    )


def _mean_squared_error(prior: _Means, step: _Step, gate: Tensor, fixed: _FixedValues) -> Tensor:
    """Return `E_k` about the means that `_between` gives, `(B, G, M)`."""
    # Neither of the two parts is negative but for rounding.
    variance = ((step.shares * fixed.squares).sum(-2, keepdim=True) - step.squares).clamp_min(0.0)
    way = (step.squares - 2.0 * step.prior_products + prior.squares).clamp_min(0.0)
    return (variance + (1.0 - gate).square() * way).squeeze(-2)
