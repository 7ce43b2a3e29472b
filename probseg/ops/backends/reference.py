"""The specification: both primitives with their N x M logits written out.

Slow and quadratic in memory, but each line is an equation and everything can be differentiated
twice. The other backends are tested against this one.
"""

from __future__ import annotations

from math import inf

from torch import Tensor

from probseg.ops.backends.interface import EVERYTHING, Assigned, Attended, Terms, take_block

HALF_PRECISION: frozenset[str] = frozenset()


def refuse(queries: Tensor, keys: Tensor, payload: Tensor, terms: Terms) -> None:
    """Return None: this backend supports every call."""
    del queries, keys, payload, terms


def attend(queries: Tensor, keys: Tensor, values: Tensor, terms: Terms, scale: float) -> Attended:
    """Average the values of the keys by each query's responsibilities.

    `S = scale Q Kᵀ + log_prior`, `L_i = log sum_j exp S_ij`,
    `o_i = sum_j exp(S_ij - L_i) v_j`.
    """
    logits = _logits(queries, keys, terms, scale)  # (B, G, N, M)
    log_weights, log_evidence = _normalise(logits, dim=-1)
    return Attended(log_weights.exp() @ values, log_evidence)


def assign(
    queries: Tensor, keys: Tensor, observations: Tensor, terms: Terms, scale: float
) -> Assigned:
    """Average the observations of the queries by each key's responsibilities.

    `w_ik = exp(S_ik - L_i)`, `log N_k = log sum_i w_ik`, `m_k = sum_i w_ik o_i / N_k`. The
    mass is never formed: it underflows float32 for a key far from all queries, whose mean is
    well defined nevertheless.
    """
    logits = _logits(queries, keys, terms, scale)  # (B, G, N, M)
    log_responsibilities, _ = _normalise(logits, dim=-1)
    log_shares, log_mass = _normalise(log_responsibilities, dim=-2)
    return Assigned(log_shares.exp().mT @ observations, log_mass)


def _logits(queries: Tensor, keys: Tensor, terms: Terms, scale: float) -> Tensor:
    logits = scale * (queries @ keys.mT)  # (B, G, N, M)
    for term in terms:
        logits = logits + take_block(term, EVERYTHING, logits.dtype)
    return logits


def _normalise(logits: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Subtract the log-sum-exp along a dimension; lines of -inf stay -inf and get no gradient."""
    alive = (logits > -inf).any(dim, keepdim=True)
    # -inf - (-inf) is NaN, in the gradient too: dead lines are replaced before, not only after.
    safe = logits.where(alive, 0.0)
    total = safe.logsumexp(dim, keepdim=True)
    log_weights = (safe - total).where(alive, -inf)
    return log_weights, total.where(alive, -inf).squeeze(dim)
