"""Hard attention: one edge of each query in the place of the expectation over all of them.

Soft attention is the exact expectation of the values under the posterior over edges; hard attention
takes a single sample of it (Singh & Buckley, 2023, §5.1.1). The information lost by that is
`-log p(E_i = j)` for the edge drawn, on average the entropy of the posterior. A sample has no
gradient. `straight_through` gives it that of the expectation, and `score_function_loss` an
unbiased estimate of the gradient of an expected cost (Deng et al., 2018, "Latent Alignment and
Variational Attention").

What is lost can be measured: `posterior_entropy`, and for other approximations
`posterior_divergence` (Singh & Buckley, 2023, §5.1.2). Everything goes by blocks of rows: in linear
memory, with gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from probseg.attention.base import StandardAttention2d
from probseg.errors import require
from probseg.ops.checks import check_shape
from probseg.ops.edges import EdgePosterior, row_blocks


class Edges(NamedTuple):
    """One edge of each query.

    Args:
        indices: The key at its other end, int64, `(B, G, N)`; -1 for a query that sees none.
        log_probability: `log p(E_i = indices_i)`, `(B, G, N)`, float32 (float64 for float64);
            -inf for a query that sees no key.
    """

    indices: Tensor
    log_probability: Tensor


def sample_edges(posterior: EdgePosterior, generator: torch.Generator | None = None) -> Edges:
    """Draw an edge of each query from its posterior, in linear memory.

    By the Gumbel-max trick, on some rows of the posterior at a time.

    Args:
        posterior: Over the edges from N queries to M keys.
        generator: Source of the random numbers, on the device of the posterior; None is PyTorch's
            own.

    Returns:
        The edges. Their log probabilities are differentiable in the tensors of the posterior; the
        backward pass computes the rows again. Where gradients are switched off, each row is
        computed once.
    """

    def draw(log_probability: Tensor) -> Tensor:
        # The negative log of an exponential variate, which is never 0, is a Gumbel one.
        noise = torch.empty_like(log_probability).exponential_(generator=generator)
        return (log_probability - noise.log()).argmax(-1)

    return _choose(posterior, draw)


def most_probable_edges(posterior: EdgePosterior) -> Edges:
    """Take the most probable edge of each query, or one of them, in linear memory.

    Args:
        posterior: Over the edges from N queries to M keys.

    Returns:
        The edges; as of `sample_edges`, their log probabilities are differentiable.
    """
    return _choose(posterior, lambda log_probability: log_probability.argmax(-1))


def take_values(values: Tensor, indices: Tensor) -> Tensor:
    """Return the values at the ends of some edges.

    Args:
        values: Of the keys, `(B, G, M, V)`.
        indices: Of one key for each query, int64, `(B, G, N)`; -1 for none.

    Returns:
        `(B, G, N, V)`; zero for a query without an edge. Gradients flow to the values.
    """
    missing = (indices < 0).unsqueeze(-1)  # (B, G, N, 1)
    index = indices.unsqueeze(-1).masked_fill(missing, 0)
    taken = values.gather(-2, index.expand(*indices.shape, values.shape[-1]))
    return taken.masked_fill(missing, 0.0)


def straight_through(posterior: EdgePosterior, values: Tensor, edges: Edges) -> Tensor:
    """Return the values at the ends of edges, with the gradient of the expectation.

    The straight-through estimator (Bengio et al., 2013): biased, and of low variance.

    Args:
        posterior: From which the edges were drawn.
        values: Of the keys, `(B, G, M, V)`.
        edges: One edge of each query.

    Returns:
        `take_values(values, edges.indices)`, `(B, G, N, V)`; its gradient is that of
        `posterior.expect(values)`.
    """
    expected = posterior.expect(values)
    # The difference is zero, so that not even a rounding error is added.
    return take_values(values, edges.indices).detach() + (expected - expected.detach())


def score_function_loss(
    cost: Tensor, log_probability: Tensor, baseline: float | Tensor = 0.0
) -> Tensor:
    """Return a loss whose gradient estimates that of the expected cost of sampled edges.

    `sum (cost - baseline) log p(E)`, where cost and baseline are constants: the gradient is an
    unbiased estimate of that of `E[cost]` with respect to the posterior (REINFORCE; Williams,
    1992; Deng et al., 2018, Eq. 5). Other variables of the cost, such as the values, get their
    gradient from the cost itself: minimise the sum of both.

    Args:
        cost: Cost of the edges, floating point, of three dimensions that broadcast to
            `(B, G, N)`: `(B, 1, 1)` where all edges of an item share one cost.
        log_probability: Of edges from `sample_edges`, `(B, G, N)`. Queries that see no key
            (-inf) take no part.
        baseline: Subtracted from the cost to lower the variance: a number, or a tensor like cost.
            It must not depend on the edges whose cost it is subtracted from.

    Returns:
        A scalar; its value means nothing, only its gradient does.

    Raises:
        ValueError: If the cost does not broadcast.
    """
    expected = tuple(log_probability.shape)
    fits = cost.ndim == 3 and all(
        size in (1, wanted) for size, wanted in zip(cost.shape, expected, strict=True)
    )
    remedy = "use (B, 1, 1) for one cost of an item"
    require(fits, "cost", f"of a shape that broadcasts to {expected}", tuple(cost.shape), remedy)
    advantage = cost - baseline
    check_shape("cost - baseline", advantage, cost.shape, "that of cost")
    return (advantage.detach() * log_probability.where(log_probability.isfinite(), 0.0)).sum()


def _choose(posterior: EdgePosterior, choose: Callable[[Tensor], Tensor]) -> Edges:
    """Choose a key `(B, G, n)` for each of some rows `(B, G, n, M)` of log probabilities."""
    chosen: list[Tensor] = []
    log_probabilities: list[Tensor] = []
    prepared = posterior.prepared()
    for rows in row_blocks(prepared):
        with torch.no_grad():
            all_keys = prepared.log_probability(rows)  # (B, G, n, M)
            indices = choose(all_keys)  # (B, G, n)
            log_probability = _pick(all_keys, indices)
        del all_keys
        if torch.is_grad_enabled():
            log_probability = checkpoint(
                lambda part, keys: _pick(prepared.log_probability(part), keys),
                rows,
                indices,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        chosen.append(indices.masked_fill(log_probability.detach() == -torch.inf, -1))
        log_probabilities.append(log_probability)
    return Edges(torch.cat(chosen, dim=-1), torch.cat(log_probabilities, dim=-1))


def _pick(log_probability: Tensor, indices: Tensor) -> Tensor:
    return log_probability.gather(-1, indices.unsqueeze(-1)).squeeze(-1)  # (B, G, n)


class HardAttention2d(StandardAttention2d):
    """Each pixel attends to one other pixel, by the posterior of `StandardAttention2d`.

    In training, that pixel is drawn from the posterior, and the gradient is the one of the
    expectation (`straight_through`). In evaluation, it is the most probable one; gradients then
    flow to the values only. `posterior` is the whole posterior in both modes.

    The other estimator of the gradient, `score_function_loss`, is not a layer: it weighs the
    probabilities of the edges by the loss, which a layer does not know. The arguments are those of
    `Attention2d`.
    """

    def gather(self, edges: EdgePosterior, values: Tensor) -> Tensor:
        """Take the value of one key for each query, see `Attention2d`."""
        with torch.no_grad():
            chosen = sample_edges(edges) if self.training else most_probable_edges(edges)
        if self.training:
            return straight_through(edges, values, chosen)
        return take_values(values, chosen.indices)


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
    same = approximation.shape == exact.shape
    require(same, "approximation", f"over the edges of `exact`, {exact.shape}", approximation.shape)

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
