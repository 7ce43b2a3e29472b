"""Entropy of a posterior over edges, and the divergence of an approximation from it.

Singh & Buckley (2023, §5.1.2). Both by blocks of rows: in linear memory, with gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from probseg.ops.edges import EdgePosterior, row_blocks


def posterior_entropy(posterior: EdgePosterior) -> Tensor:
    """Return the entropy of each query's edge, `H_i = -sum_j p_ij log p_ij`.

    In nats: 0 where the edge is certain, `log M` where it may lead to any of M keys. It is the
    average loss of hard attention: a single edge drawn from the posterior loses `-log p_ij`.

    Args:
        posterior: Over the edges of N queries.

    Returns:
        `(B, G, N)`, float32 (float64 for float64); 0 for a query that sees no key.
    """

    def of_rows(rows: slice, prepared: EdgePosterior) -> Tensor:
        log_p = prepared.log_probability(rows)  # (B, G, n, M)
        return -_mean(log_p, log_p)

    return _by_rows(of_rows, posterior)


def posterior_divergence(approximation: EdgePosterior, exact: EdgePosterior) -> Tensor:
    """Return `KL(q_i || p_i) = sum_j q_ij (log q_ij - log p_ij)` of an approximation.

    `D_KL[q || p] = -H[q] - E_q[log p]`; the paper prints it with the other signs and without the
    logarithm.

    Args:
        approximation: `q`, say of local or of EM attention.
        exact: `p`, over the edges between the same tokens.

    Returns:
        In nats, `(B, G, N)`, float32 (float64 for float64); inf where the approximation has edges
        that the exact posterior rules out, 0 for a query that sees no key in the approximation.

    Raises:
        ValueError: If the two differ in shape.
    """
    if approximation.shape != exact.shape:
        msg = (
            "`approximation` and `exact` must be posteriors over the same edges (B, G, N, M), "
            f"got {approximation.shape} and {exact.shape}; ask both layers for the same features"
        )
        raise ValueError(msg)

    def of_rows(rows: slice, cheap: EdgePosterior, full: EdgePosterior) -> Tensor:
        log_q = cheap.log_probability(rows)  # (B, G, n, M)
        return _mean(log_q, log_q - full.log_probability(rows))

    return _by_rows(of_rows, approximation, exact)


def _mean(log_weights: Tensor, values: Tensor) -> Tensor:
    """Average values `(B, G, n, M)`; values of weight 0 do not count, not even NaN."""
    possible = log_weights > -math.inf
    weights = log_weights.where(possible, 0.0).exp()
    # Infinite differences of impossible edges would be NaN times 0, in gradients too.
    return (weights * values.where(possible, 0.0)).where(possible, 0.0).sum(-1)


def _by_rows(of_rows: Callable[..., Tensor], *posteriors: EdgePosterior) -> Tensor:
    """Compute something of each query, with the pairs of a few queries in memory at a time."""
    prepared = [posterior.prepared() for posterior in posteriors]
    blocks = row_blocks(*prepared)
    if torch.is_grad_enabled():
        # The pairs are computed again in the backward pass instead of being kept for it.
        parts = [checkpoint(of_rows, rows, *prepared, use_reentrant=False) for rows in blocks]
        return torch.cat(parts, dim=-1)
    result: Tensor | None = None
    for rows in blocks:
        part = of_rows(rows, *prepared)
        if result is None:  # before the large blocks: small ones between them would pin the heap
            result = part.new_empty(prepared[0].shape[:-1])
        result[..., rows] = part
    assert result is not None, "there is at least one block, if an empty one"
    return result
