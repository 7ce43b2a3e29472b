"""Edges of two steps, through a few tokens in between: posteriors of low rank."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from probseg.family.log_product import log_product
from probseg.ops.edges import EdgePosterior


@dataclass(frozen=True, eq=False)
class ComposedEdges(EdgePosterior):
    """Edges of two steps: `p(E_i = j) = sum_k p(A_i = k) p(B_k = j)`, of rank K.

    Queries have an edge to one of K tokens, and these have one to a key. Memory and time are
    linear in N + M.

    Args:
        first: Posterior of `A`, over the edges from N queries to K tokens.
        second: Posterior of `B`, over the edges from these to M keys.

    Raises:
        ValueError: If the edges of the second do not begin where those of the first end.
    """

    first: EdgePosterior
    second: EdgePosterior

    def __post_init__(self) -> None:
        batch, heads, _, between = self.first.shape
        if self.second.shape[:3] != (batch, heads, between):
            msg = (
                "`second` must be a posterior over edges from the keys of `first`, "
                f"({batch}, {heads}, {between}, M), got {self.second.shape}"
            )
            raise ValueError(msg)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `EdgePosterior`."""
        return *self.first.shape[:3], self.second.shape[-1]

    def prepared(self) -> EdgePosterior:
        """See `EdgePosterior`: both factors."""
        everything = slice(None)
        first, second = (edges.log_probability(everything) for edges in (self.first, self.second))
        return FactoredEdges(self, first, second)

    def expect(self, values: Tensor) -> Tensor:
        """See `EdgePosterior`."""
        return self.first.expect(self.second.expect(values))

    def log_probability(self, rows: slice) -> Tensor:
        """See `EdgePosterior`."""
        return self.prepared().log_probability(rows)


@dataclass(frozen=True, eq=False)
class FactoredEdges(EdgePosterior):
    """A posterior of low rank with both factors of its probabilities.

    Args:
        edges: The same posterior.
        log_first: `(B, G, N, K)`.
        log_second: `(B, G, K, M)`.
    """

    edges: EdgePosterior
    log_first: Tensor
    log_second: Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `EdgePosterior`."""
        return self.edges.shape

    def expect(self, values: Tensor) -> Tensor:
        """See `EdgePosterior`."""
        return self.edges.expect(values)

    def log_probability(self, rows: slice) -> Tensor:
        """See `EdgePosterior`."""
        return log_product(self.log_first[:, :, rows], self.log_second)
