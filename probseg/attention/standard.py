"""Scaled dot-product attention (Vaswani et al., 2017)."""

from __future__ import annotations

from torch import Tensor

from probseg.attention.base import Attention2d
from probseg.ops.edges import EdgePosterior, gaussian_edges


class StandardAttention2d(Attention2d):
    """Softmax attention with scale `1 / sqrt(D)`, with the arguments of `Attention2d`."""

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        return gaussian_edges(
            queries, keys, log_mask=log_mask, position=self.position_tables(*size)
        )
