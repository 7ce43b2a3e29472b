"""Attention as a posterior over edges (Singh & Buckley, 2023).

Each query has one unknown edge `E_i` to one of the keys. An attention mechanism is the posterior
of that edge, and its output the expectation of the values at the other end:
`o_i = sum_j p(E_i = j | queries, keys) v_j` (Eq. 1). Mechanisms differ in their priors over edges
and in their latent variables.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from probseg.ops.attention import LogPrior, attend
from probseg.ops.backends.interface import (
    TILE,
    WRITTEN_OUT,
    Block,
    Terms,
    numbers_per_pair,
    row_multiple,
    take_block,
)
from probseg.ops.checks import as_terms, check_units
from probseg.ops.mixture import PriorName, query_logits
from probseg.ops.numerics import full_precision, working_dtype
from probseg.ops.position import RelativePosition
from probseg.ops.probabilistic import build_mixture
from probseg.ops.settings import NO_KEY_ADAPTATION, NO_VALUE_PROPAGATION, InferenceSettings


class EdgePosterior(ABC):
    """Posterior of the edges from N queries to M keys; it is never held whole."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """`(B, G, N, M)`."""

    @property
    def numbers_per_pair(self) -> int:
        """Approximate number of values that `log_probability` holds in memory for each pair."""
        return 1

    @property
    def row_multiple(self) -> int:
        """Number of queries that `log_probability` computes together: fewer cost as much."""
        return 1

    def prepared(self) -> EdgePosterior:
        """Return the same posterior with all shared intermediate results computed.

        For many calls of `log_probability`.
        """
        return self

    @abstractmethod
    def expect(self, values: Tensor) -> Tensor:
        """Return the expectation of the values at the ends of the edges (Eq. 1), in linear memory.

        Args:
            values: Of the keys, `(B, G, M, V)`, of no higher precision than the queries: products
                have theirs.

        Returns:
            `(B, G, N, V)`, in the dtype of the values.

        Raises:
            TypeError: If the dtype of the queries cannot hold the values.
            ValueError: If a shape or a device is wrong.
        """

    @abstractmethod
    def log_probability(self, rows: slice) -> Tensor:
        """Write out `log p(E_i = j)` for some queries.

        Args:
            rows: Which queries.

        Returns:
            `(B, G, n, M)`, float32 (float64 for float64); -inf for all keys of a query that sees
            none.
        """


@dataclass(frozen=True, eq=False)
class SoftmaxEdges(EdgePosterior):
    """`p(E_i = j) = softmax_j(scale q_i·k_j + log_prior_ij)`: an independent edge for each query.

    The posterior of cross- and self-attention (Singh & Buckley, 2023, §3.0.3 and §3.0.4), for any
    structural prior over the edges: 0 and -inf for a sparse or local graph, numbers between for
    weighted edges.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        log_prior: As in `attend`; None is uniform.
        scale: Factor of the dot products.
    """

    queries: Tensor
    keys: Tensor
    log_prior: LogPrior | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_units(self.queries, self.keys, self.keys, payload_name="keys", payload_of="keys")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `EdgePosterior`."""
        batch, heads, count, _ = self.queries.shape
        return batch, heads, count, self.keys.shape[-2]

    @property
    def numbers_per_pair(self) -> int:
        """See `EdgePosterior`: those of the prior."""
        return numbers_per_pair(self._terms())

    @property
    def row_multiple(self) -> int:
        """See `EdgePosterior`: that of the prior."""
        return row_multiple(self._terms())

    def expect(self, values: Tensor) -> Tensor:
        """See `EdgePosterior`."""
        return attend(
            self.queries,
            self.keys,
            widened(values, self.queries),
            log_prior=self.log_prior,
            scale=self.scale,
        ).values.to(values.dtype)

    def log_probability(self, rows: slice) -> Tensor:
        """See `EdgePosterior`."""
        dtype = working_dtype(self.queries.dtype)
        everything = slice(None)
        with full_precision(self.queries.device):
            some = self.queries[:, :, rows].to(dtype)
            logits = self.scale * (some @ self.keys.to(dtype).mT)  # (B, G, n, M)
            for term in self._terms():
                block = Block(everything, everything, rows, everything)
                logits = logits + take_block(term, block, dtype)
            return log_softmax(logits)

    def _terms(self) -> Terms:
        return as_terms("log_prior", self.log_prior, self.queries, self.keys)


def gaussian_edges(
    queries: Tensor,
    keys: Tensor,
    *,
    query_precision: float | Tensor | None = None,
    log_prior: PriorName | LogPrior = "key_magnitude",
    log_mask: LogPrior | None = None,
    position: RelativePosition | None = None,
) -> SoftmaxEdges:
    """Build the posterior of edges to Gaussian units, whose means are the keys.

    `log p(E_i = j) = log pi_j + D/2 log alpha_j - alpha_j/2 |q_i - k_j|² - L_i` (Gabbur et al.,
    2021, Eq. 2). With the default prior, which cancels the norms of the keys, and the default
    precision, it is the posterior of scaled dot-product attention.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        query_precision: `alpha`: positive float, or positive tensor that broadcasts to
            `(B, G, M)`; None is `1 / sqrt(D)`.
        log_prior: `log pi`: "key_magnitude" (or "magnitude", which is the same without a value
            likelihood), "uniform", or a `log_prior` of `attend`.
        log_mask: Added to the prior, as in `probabilistic_attention`.
        position: Relative position embeddings, as in `probabilistic_attention`.
    """
    check_units(queries, keys, keys, payload_name="keys", payload_of="keys")
    settings = InferenceSettings(
        query_precision=query_precision,
        log_prior=log_prior,
        key_adaptation=NO_KEY_ADAPTATION,  # compilers cannot trace defaults that are objects
        value_propagation=NO_VALUE_PROPAGATION,
    )
    mask = as_terms("log_mask", log_mask, queries, keys)
    no_values = keys.new_zeros(*keys.shape[:-1], 0)
    mixture = build_mixture(queries, keys, no_values, settings, mask, position)
    with full_precision(queries.device):
        joint = query_logits(mixture, queries.to(mixture.keys.dtype))
    return SoftmaxEdges(joint.queries, joint.keys, joint.log_prior, joint.scale)


def row_blocks(*posteriors: EdgePosterior) -> Iterator[slice]:
    """Yield blocks of rows, at least one, with as many numbers as a tile of the backends."""
    batch, heads, count, keys = posteriors[0].shape
    numbers = max(posterior.numbers_per_pair for posterior in posteriors)
    together = max(posterior.row_multiple for posterior in posteriors)
    for_all_sizes = not isinstance(batch * count, int)  # such a graph has no loop, and no bound
    if for_all_sizes or (
        torch.compiler.is_compiling() and batch * heads * count * keys <= WRITTEN_OUT
    ):
        yield slice(None)
        return
    size = TILE // max(1, batch * heads * keys * numbers)
    size = max(1, size // together) * together
    for start in range(0, max(1, count), size):
        yield slice(start, min(start + size, count))


def log_softmax(logits: Tensor) -> Tensor:
    """Normalise along the last dimension; lines of -inf stay so and get no gradient."""
    alive = (logits > -math.inf).any(-1, keepdim=True)
    return logits.where(alive, 0.0).log_softmax(-1).where(alive, -math.inf)


def widened(values: Tensor, queries: Tensor) -> Tensor:
    """Bring values to the dtype of the queries, which autocast may have left alone."""
    if torch.promote_types(values.dtype, queries.dtype) != queries.dtype:
        raise TypeError(
            f"`values` must not be more precise than `queries`, got {values.dtype} and "
            f"{queries.dtype}; convert one of them"
        )
    return values.to(queries.dtype)
