"""Additive attention: the logit of a pair is a small network of its query and key.

`a(q, k) = w_v · tanh(W_q q + W_k k)` (Bahdanau et al., 2015, §A.1.2, without bias). It is no dot
product and enters `attend` as a prior of pairs, with dot products of zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probseg.ops.attention import LogPrior
from probseg.ops.backends.interface import Block, PairwisePrior
from probseg.ops.checks import as_terms, check_shape, check_units
from probseg.ops.edges import SoftmaxEdges
from probseg.ops.numerics import full_precision, working_dtype


@dataclass(frozen=True, eq=False)
class AdditiveScores(PairwisePrior):
    """`a_ij = w_v · tanh(q_i + k_j)`, computed block by block; gradients flow to all three.

    The backend "flex" does not serve it: it would compute H hyperbolic tangents of each single
    pair.

    Args:
        queries: `W_q q`, `(B, G, N, H)`, float32 or float64.
        keys: `W_k k`, `(B, G, M, H)`.
        weights: `w_v`, `(G, H)`.

    Raises:
        ValueError: If a shape or a device is wrong.
        TypeError: If a dtype is wrong.
    """

    queries: Tensor
    keys: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        check_units(self.queries, self.keys, self.keys, payload_name="keys", payload_of="keys")
        expected = (self.queries.shape[1], self.queries.shape[-1])
        check_shape("weights", self.weights, expected, "(G, H)")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `PairwisePrior`."""
        batch, heads, count, _ = self.queries.shape
        return batch, heads, count, self.keys.shape[-2]

    @property
    def numbers_per_pair(self) -> int:
        """See `PairwisePrior`: the sums and their hyperbolic tangents."""
        return 2 * max(1, self.queries.shape[-1])

    def part(self, name: str, batch: slice, heads: slice) -> tuple[slice, ...]:
        """See `PairwisePrior`."""
        return (heads,) if name == "weights" else (batch, heads)

    def block(self, block: Block) -> Tensor:
        """See `PairwisePrior`."""
        rows = self.queries[block.batch, block.heads][:, :, block.rows].mT  # (b, g, H, n)
        columns = self.keys[block.batch, block.heads][:, :, block.columns].mT  # (b, g, H, m)
        hidden = torch.tanh(rows.unsqueeze(-1) + columns.unsqueeze(-2))  # (b, g, H, n, m)
        weights = self.weights[block.heads].unsqueeze(1)  # (g, 1, H)
        with full_precision(hidden.device):
            scores = weights @ hidden.flatten(-2)  # (b, g, 1, n m)
        return scores.reshape(*hidden.shape[:2], *hidden.shape[3:])  # (b, g, n, m)


def additive_edges(
    queries: Tensor, keys: Tensor, weights: Tensor, *, log_mask: LogPrior | None = None
) -> SoftmaxEdges:
    """Build the posterior over edges of additive attention.

    `p(E_i = j) = softmax_j(w_v · tanh(q_i + k_j) + log_mask_ij)`, where queries and keys are
    already projected to the H hidden units. Its expectation costs `N M H` operations, and memory
    that is linear in N and M.

    Args:
        queries: `W_q q`, `(B, G, N, H)`.
        keys: `W_k k`, `(B, G, M, H)`.
        weights: `w_v`, `(G, H)`.
        log_mask: Added to the logits, as `log_prior` of `attend`: 0 for keys that a query sees
            and -inf for others.

    Raises:
        ValueError: If a shape or a device is wrong.
        TypeError: If a dtype is wrong.
    """
    dtype = working_dtype(queries.dtype)
    check_units(queries, keys, keys, payload_name="keys", payload_of="keys")
    scores = AdditiveScores(queries.to(dtype), keys.to(dtype), weights.to(dtype))
    nothing = queries.new_zeros(*queries.shape[:-1], 1, dtype=dtype)  # (B, G, N, 1)
    zeros = keys.new_zeros(*keys.shape[:-1], 1, dtype=dtype)  # (B, G, M, 1)
    return SoftmaxEdges(nothing, zeros, (scores, *as_terms("log_mask", log_mask, queries, keys)))
