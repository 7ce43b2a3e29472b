"""Key adaptation and value propagation: M steps of EM with the responsibilities of the mixture.

Updates maximise the expected log posterior of a unit's parameters (Gabbur et al., 2021, Eqs. 18, 23
and 36-38). Masses `N_k = sum_i w_ik` come in the log, as they may underflow. The means move first
and the precisions follow with the new means, so that no step lowers the posterior of a mixture
with a fixed prior.

Fixed values propagate to the units in the span of the initial and the fixed values.
An M step (Gabbur et al., 2021, Eq. 23; Movellan & Gabbur, 2020, Eq. 35) moves the value mean of a
unit towards the mean of the S fixed values that it explains::

    mu_k <- mu'_k + g_k (m_k - mu'_k)      g_k = beta_k N_k / (theta + beta_k N_k)
    N_k = sum_s w_sk                       m_k = sum_s p_sk v_s      p_sk = w_sk / N_k

`mu'` is the initial mean or the previous one, and `w` are the responsibilities of Eq. 24: a softmax
over the units of the log joint of a clicked query, whose share of the logits stays as it is, and
its fixed value. Every mean is therefore an average of its initial value and the fixed ones, with
weights that sum to 1::

    mu_k = a_k mu0_k + sum_s c_sk v_s      a_k  <- (1 - g_k) a'_k
                                           c_sk <- (1 - g_k) c'_sk + g_k p_sk

The distance to an average is the average distance, less that of the averaged points to it. With
`D_sk = |v_s - mu0_k|² / 2` and `E_st = |v_s - v_t|² / 2`, which stay as they are::

    |v_s - mu_k|² / 2 = d_sk - r_k         d_sk = a_k D_sk + sum_t E_st c_tk
                                           r_k  = sum_s c_sk (a_k D_sk + sum_t E_st c_tk / 2)

That is all the E step needs (Eqs. 9 and 24), and the M step of the precisions: the mean squared
error of a unit (Eq. 37) is `2 (sum_s p_sk d_sk - r_k)` with the new mean. A tied prior (Eq. 10)
adds `|mu_k|² / 2 = a_k |mu0_k|² / 2 + sum_s c_sk |v_s|² / 2 - r_k`, where `r_k` cancels. So an
iteration goes through S x M numbers; the M x V of the means are formed once, at the end.
Responsibilities given the queries alone leave `d_sk - r_k` out, and keep this term of a tied prior.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.ops.attention import assign_checked
from probseg.ops.backends.interface import EVERYTHING, Assigned, Block, Terms
from probseg.ops.mixture import (
    TIED_TO_VALUES,
    LogJoint,
    Mixture,
    Precision,
    fix_prior,
    in_full,
    log_precision,
    query_logits,
)
from probseg.ops.settings import DirichletPrior, GammaPrior, KeyAdaptation, ValuePropagation


def mean_gate(log_mass: Tensor, precision: Precision, prior_precision: Precision) -> Tensor:
    """Return how far the mode of a unit's mean lies from the prior's mean, in [0, 1], `(B, G, M)`.

    The mode `(theta m0_k + p_k N_k m_k) / (theta + p_k N_k)` (Eqs. 18 and 23) is `m0_k + g_k (m_k -
    m0_k)` with this gate, `g_k = p_k N_k / (theta + p_k N_k)`, for the mean `m_k` of the
    observations. It is 0 for a unit that explains nothing; a `theta` of 0 is maximum likelihood.
    """
    if not isinstance(prior_precision, Tensor) and prior_precision == 0.0:
        return (log_mass > -math.inf).to(log_mass.dtype)
    return torch.sigmoid(log_precision(precision) + log_mass - log_precision(prior_precision))


def precision_mode(log_mass: Tensor, error: Tensor, width: int, prior: GammaPrior) -> Tensor:
    """Return the mode of each unit's precision (Eqs. 36 and 37).

    `(theta_1 + C/2 N_k - 1) / (theta_2 + N_k E_k / 2)` for C channels and a mean squared error
    `E_k` about the new mean, all of shape `(B, G, M)`.
    """
    mass = log_mass.exp()
    return (prior.shape - 1.0 + width / 2 * mass) / (prior.rate + mass * error / 2)


def log_weight_mode(log_mass: Tensor, prior: DirichletPrior) -> Tensor:
    """Return the log of the mode of the mixture weights (Eq. 38), `(B, G, 1, M)`.

    `(N_k + theta_k - 1) / sum_k (N_k + theta_k - 1)`.
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


def adapt_keys(mixture: Mixture, queries: Tensor, update: KeyAdaptation, backend: str) -> Mixture:
    """Move the keys to the queries `(B, G, N, D)` that they explain (Eqs. 18, 34 and 36)."""
    initial, gamma = mixture.keys, update.precision_prior
    if gamma is not None:
        mixture = in_full(mixture)  # squared distances cannot be had from half-precision products
    for _ in range(update.iterations):
        prior_mean = initial if update.prior_mean == "initial" else mixture.keys
        joint = query_logits(mixture, queries)
        if gamma is None:
            means, log_mass = _assign(joint, queries, backend)
            mixture = mixture._replace(keys=_mode(means, log_mass, prior_mean, mixture, update))
            continue
        # Distances do not depend on the origin: near the means, their squares lose fewest digits.
        centre = prior_mean.mean(-2, keepdim=True).detach()  # (B, G, 1, D)
        centred = queries - centre
        squares = centred.square().sum(-1, keepdim=True)
        moments, log_mass = _assign(joint, torch.cat([centred, squares], dim=-1), backend)
        means, square = moments[..., :-1] + centre, moments[..., -1]
        keys = _mode(means, log_mass, prior_mean, mixture, update)
        # E_k = m(|x|²) - 2 x_k·m_k + |x_k|²; the variance in it is not negative but for rounding.
        variance = (square - moments[..., :-1].square().sum(-1)).clamp_min(0.0)
        error = variance + (means - keys).square().sum(-1)  # (B, G, M)
        alpha = precision_mode(log_mass, error, queries.shape[-1], gamma)
        mixture = mixture._replace(keys=keys, query_precision=alpha)
    return mixture


def _assign(joint: LogJoint, observations: Tensor, backend: str) -> Assigned:
    dtype = joint.queries.dtype  # half only where the backend multiplies in half precision
    assigned = assign_checked(*joint[:2], observations.to(dtype), *joint[2:], backend)
    return Assigned(assigned.means.to(observations.dtype), assigned.log_mass)


def _mode(
    means: Tensor, log_mass: Tensor, prior_mean: Tensor, mixture: Mixture, update: KeyAdaptation
) -> Tensor:
    gate = mean_gate(log_mass, mixture.query_precision, update.prior_precision)  # (B, G, M)
    return torch.lerp(prior_mean, means, gate.unsqueeze(-1))  # (B, G, M, D)


class FixedTokens(NamedTuple):
    """Tokens with fixed values, at most S for each item of the batch, and S at least 1."""

    rows: Tensor | None  # (B, S), indices among the N queries, padded with others; None: all N
    valid: Tensor  # (B, S), bool, False for padding


def fixed_tokens(mask: Tensor) -> FixedTokens:
    """Find the fixed tokens of a mask `(B, N)`, N > 0; their largest number is read on the host.

    An exported graph reads nothing on the host: there, all tokens are rows, most of them padding.
    """
    if torch.compiler.is_exporting() or mask.is_meta:
        return FixedTokens(None, mask)
    least = 2 if torch.compiler.is_compiling() else 1  # inductor must know that it is not one row
    count = max(least, int(mask.sum(dim=1).max())) if mask.shape[0] else 1
    rows = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
    return FixedTokens(rows, mask.gather(1, rows))


def take_tokens(tensor: Tensor, fixed: FixedTokens) -> Tensor:
    """Take the fixed rows of a tensor `(B, G, N, C)`, whose other sizes may be 1."""
    if fixed.rows is None:
        return tensor
    return torch.take_along_dim(tensor, fixed.rows[:, None, :, None], dim=-2)  # (B, G, S, C)


def take_terms(terms: Terms, fixed: FixedTokens) -> tuple[Tensor, ...]:
    """Take the fixed rows of a prior; written out, they broadcast to `(B, G, S, M)`."""
    taken: list[Tensor] = []
    for term in terms:
        if isinstance(term, Tensor):
            taken.append(term if term.shape[-2] == 1 else take_tokens(term, fixed))
            continue
        if fixed.rows is None:
            taken.append(term.block(EVERYTHING))
            continue
        whole, last = slice(None), term.shape[0] - 1
        items = [
            term.block(Block(slice(min(b, last), min(b, last) + 1), whole, rows, whole))
            for b, rows in enumerate(fixed.rows)
        ]
        if not items:
            empty = (0, 1, fixed.rows.shape[1], term.shape[3])
            items = [fixed.rows.new_zeros(empty, dtype=torch.float32)]
        taken.append(torch.cat(items))  # (B, G, S, M), G may be 1
    return tuple(taken)


HIDDEN = -1e30
"""Logit in the place of -inf: a column of -inf has no softmax, and a gradient of NaN."""


def propagate_values(
    mixture: Mixture,
    queries: Tensor,
    fixed_values: Tensor,
    fixed_mask: Tensor,
    update: ValuePropagation,
) -> Mixture:
    """Move the value means to the fixed values that they explain (Eqs. 23, 24, 37 and 38).

    Queries are `(B, G, N, D)`; fixed values `(B, G, N, V)` are read where the mask `(B, N)` is
    true.
    """
    if update.iterations == 0 or queries.shape[-2] == 0:
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
    # Padding may be anything, NaN too.
    observed = take_tokens(fixed_values, fixed).where(fixed.valid[:, None, :, None], 0.0)
    # Neither distances nor means depend on the origin: near the fixed values, they lose the fewest
    # digits.
    origin = observed.mean(-2, keepdim=True).detach()  # (B, G, 1, V)
    values, units = observed - origin, mixture.values - origin
    from_units, between = _half_distances(values, units)
    half_norms = None
    if mixture.prior in TIED_TO_VALUES:
        half_norms = _half_norms(mixture.values), _half_norms(observed)
    beta, width = mixture.value_precision, observed.shape[-1]
    # a (B, G, 1, M) and c (B, G, S, M) of the means; d (B, G, S, M) and r (B, G, 1, M).
    rest, shares = torch.ones_like(from_units[:, :, :1]), torch.zeros_like(from_units)
    distances, spread = from_units, torch.zeros_like(rest)
    for left in reversed(range(update.iterations)):
        level = spread if half_norms is None else rest * half_norms[0] + half_norms[1] @ shares
        if update.given == "queries_and_values":
            logits = _add_log_density(clicked, distances - level, beta, width)
        elif half_norms is None:
            logits = clicked
        else:  # what a tied prior adds, which no value cancels
            each = beta.unsqueeze(-2) if isinstance(beta, Tensor) else beta  # (B, G, 1, M)
            logits = clicked + each * (level - spread)
        for term in weights:
            logits = logits + term.clamp_min(HIDDEN)
        log_weights = _log_responsibilities(logits)
        moved = _shares(log_weights, beta, update.prior_precision)
        if update.prior_mean == "previous":
            moved = moved[0] * rest, torch.addcmul(moved[1], moved[0], shares)
        rest, shares = moved
        if dirichlet is not None:
            weights = (log_weight_mode(_log_mass(log_weights), dirichlet),)
        if left == 0 and gamma is None:
            break
        among = functools.reduce(lambda last, factor: factor @ last, reversed(between), shares)
        halfway = torch.addcmul(among, rest, from_units)
        distances = halfway + among
        spread = (shares * halfway).sum(-2, keepdim=True)
        if gamma is not None:
            explained, log_mass = log_weights.softmax(-2), _log_mass(log_weights)
            error = (explained * distances).sum(-2) - spread.squeeze(-2)
            # Not negative but for rounding.
            beta = precision_mode(log_mass, 2.0 * error.clamp_min(0.0), width, gamma)
    if dirichlet is not None:
        mixture = mixture._replace(log_prior=weights)
    moves = torch.addcmul(shares.mT @ values, (rest - 1.0).mT, units)  # (B, G, M, V)
    return mixture._replace(values=mixture.values + moves, value_precision=beta)


def _query_logits(mixture: Mixture, queries: Tensor, fixed: FixedTokens) -> Tensor:
    """Write out the logits of the fixed tokens given their queries alone, `(B, G, S, M)`."""
    joint = query_logits(in_full(mixture), queries, values_follow=True)
    logits = joint.scale * take_tokens(joint.queries, fixed) @ joint.keys.mT
    if joint.log_prior:
        terms = take_terms(joint.log_prior, fixed)
        logits = functools.reduce(torch.add, terms, logits).clamp_min(HIDDEN)
    return logits + torch.where(fixed.valid, 0.0, HIDDEN)[:, None, :, None]


def _half_norms(vectors: Tensor) -> Tensor:
    """Return half the squared norms of `(B, G, C, V)` in a row, `(B, G, 1, C)`."""
    return vectors.square().sum(-1).unsqueeze(-2) / 2


def _half_distances(fixed: Tensor, units: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    """Return D, `(B, G, S, M)`, and the factors of `E / 2`, `(B, G, S, S)`.

    Half the squared distances of the fixed values `(B, G, S, V)` to the units `(B, G, M, V)`, a
    quarter of those to each other: `E / 2` alone, or two factors where it is larger than these.
    """
    ones = fixed.new_ones(*fixed.shape[:-1], 1)
    norms = _half_norms(fixed)  # (B, G, 1, S)
    from_units = norms.mT + _half_norms(units) - fixed @ units.mT
    # |x - y|² / 2 is [|x|² / 2, 1, -x]·[1, |y|² / 2, y].
    left = torch.cat([norms.mT, ones, -fixed], dim=-1) / 2  # (B, G, S, V + 2)
    right = torch.cat([ones, norms.mT, fixed], dim=-1).mT  # (B, G, V + 2, S)
    # A graph is for any number of rows.
    few = not torch.compiler.is_compiling() and left.shape[-2] <= left.shape[-1]
    return from_units, (left @ right,) if few else (left, right)


def _add_log_density(logits: Tensor, half_distances: Tensor, beta: Precision, width: int) -> Tensor:
    """Add `log N(v_s | mu_k, 1 / beta_k)` but for a constant to logits `(B, G, S, M)` (Eq. 9)."""
    if isinstance(beta, float):
        return torch.sub(logits, half_distances, alpha=beta)
    log_normaliser = (width / 2 * log_precision(beta)).clamp_min(HIDDEN)  # (B, G, M)
    return torch.addcmul(
        logits + log_normaliser.unsqueeze(-2), half_distances, beta.unsqueeze(-2), value=-1.0
    )


def _log_responsibilities(logits: Tensor) -> Tensor:
    """Normalise logits `(B, G, S, M)` over the units; of what is hidden, all are below `HIDDEN`."""
    dead = logits.amax(-1, keepdim=True) < HIDDEN / 2  # sees no unit, or is padding
    return logits.log_softmax(-1) + torch.where(dead, HIDDEN, 0.0)


def _log_mass(log_weights: Tensor) -> Tensor:
    """Return `log N_k`, `(B, G, M)`; -inf for a unit that explains nothing."""
    log_mass = log_weights.logsumexp(-2)
    return log_mass.where(log_mass > HIDDEN / 2, -math.inf)


def _shares(
    log_weights: Tensor, beta: Precision, prior_precision: Precision
) -> tuple[Tensor, Tensor]:
    """Return `1 - g_k`, `(B, G, 1, M)`, and `g_k p_sk`, `(B, G, S, M)`.

    They are one softmax, over `theta` and all `beta_k w_sk`, in which no mass underflows. A unit
    that explains nothing keeps its mean, also with a `theta` of 0.
    """
    if not isinstance(prior_precision, Tensor) and prior_precision == 0.0:
        prior: Precision = HIDDEN / 2
    else:
        prior = log_precision(prior_precision) - log_precision(beta)
    if isinstance(prior, Tensor):
        first = prior.clamp(HIDDEN / 2, -HIDDEN / 2).unsqueeze(-2)
        first = first.expand(*log_weights.shape[:2], 1, log_weights.shape[-1])
        together = torch.cat([first, log_weights], dim=-2)  # (B, G, 1 + S, M)
    else:
        together = F.pad(log_weights, (0, 0, 1, 0), value=prior)
    shares = together.softmax(-2)
    return shares[:, :, :1], shares[:, :, 1:]
