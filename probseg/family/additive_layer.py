"""Additive attention among the pixels of a map (Bahdanau et al., 2015)."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Shared
from probseg.family.additive import additive_edges
from probseg.ops.edges import EdgePosterior


class AdditiveAttention2d(Attention2d):
    """The logit of two pixels is `w_v · tanh(W_q q + W_k k)`, learnt for each head.

    `head_channels` is the number of hidden units. Time grows with it for each pair of pixels,
    and memory does not: prefer the axes "height" and "width" on large maps.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        **shared: As in `Attention2d`.
    """

    no_position: ClassVar[str | None] = (
        "its logits are not dot products, to which position embeddings could be added"
    )

    def __init__(self, in_channels: int, out_channels: int, **shared: Unpack[Shared]) -> None:
        super().__init__(in_channels, out_channels, **shared)
        hidden = self.head_channels
        self.score = nn.Parameter(torch.randn(self.num_heads, hidden) * hidden**-0.5)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        del size
        return additive_edges(queries, keys, self.score, log_mask=log_mask)
