"""Edges that lead through a few bases: the posterior of slot and EM attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from probseg.family.composed import FactoredEdges
from probseg.ops.attention import LogPrior, assign, attend
from probseg.ops.checks import check_units
from probseg.ops.edges import EdgePosterior, SoftmaxEdges, log_softmax, widened


@dataclass(frozen=True, eq=False)
class BasesEdges(EdgePosterior):
    """Edges that lead through one of K bases: `p(E_i = j) = sum_k z_ik z_jk / sum_n z_nk`.

    `z_ik = softmax_k(scale x_i·mu_k + log_prior_ik)` is the responsibility of base k for token i:
    an edge leads from a query to a base, and from there to a token of that base. The posterior of
    slot and EM attention over the tokens themselves. It has rank K, and costs N K.

    Args:
        tokens: Both queries and keys, `(B, G, N, D)`.
        bases: `(B, G, K, D)`.
        log_prior: Of the bases for each token, as in `attend`; None is uniform.
        scale: Factor of the dot products.
    """

    tokens: Tensor
    bases: Tensor
    log_prior: LogPrior | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_units(self.tokens, self.bases, self.bases, payload_name="bases", payload_of="keys")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `EdgePosterior`."""
        batch, heads, count, _ = self.tokens.shape
        return batch, heads, count, count

    def prepared(self) -> EdgePosterior:
        """See `EdgePosterior`: the E step and the masses of the bases."""
        of_bases = SoftmaxEdges(self.tokens, self.bases, self.log_prior, self.scale)
        log_z = of_bases.log_probability(slice(None))  # (B, G, N, K)
        return FactoredEdges(self, log_z, log_softmax(log_z.mT))

    def expect(self, values: Tensor) -> Tensor:
        """See `EdgePosterior`."""
        given = widened(values, self.tokens)
        gathered = assign(
            self.tokens, self.bases, given, log_prior=self.log_prior, scale=self.scale
        )
        read = attend(
            self.tokens, self.bases, gathered.means, log_prior=self.log_prior, scale=self.scale
        )
        return read.values.to(values.dtype)

    def log_probability(self, rows: slice) -> Tensor:
        """See `EdgePosterior`."""
        return self.prepared().log_probability(rows)
