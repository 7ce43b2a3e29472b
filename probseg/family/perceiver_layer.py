"""Attention through latents that query the pixels (Jaegle et al., 2021)."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Shared
from probseg.family.perceiver import latent_edges
from probseg.ops.checks import check_iterations
from probseg.ops.edges import EdgePosterior


class PerceiverAttention2d(Attention2d):
    """A few learnt latents read from all pixels, and pixels read from the latents.

    Its cost is linear in the pixels. Latents are inferred for each line of each map. There is no
    transformer among the latents, and no residual path around the cross-attention. Dot products of
    the `D` channels of unit variance are unscaled, as in `SlotAttention2d` and for the same reason:
    with `1 / sqrt(D)` all latents of a new layer would become the mean of the map.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        num_latents: Number `K` of latents in each head, at least 1.
        iterations: Number of cross-attentions from the latents to the pixels, at least 1. With 1,
            pixels compare themselves with the learnt latents, and otherwise with what these read.
        **shared: As in `Attention2d`; there is no position and no span.

    Raises:
        ValueError: If `num_latents` or `iterations` is below 1; and as `Attention2d` does.
    """

    no_position: ClassVar[str | None] = (
        "its pixels look at latents, which do not lie anywhere in the map"
    )
    no_span: ClassVar[str | None] = "its latents are shared by all pixels of a line"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_latents: int = 8,
        iterations: int = 2,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        check_iterations(iterations)
        if num_latents < 1:
            msg = (
                f"`num_latents` must be at least 1, got {num_latents}; pixels look at nothing else"
            )
            raise ValueError(msg)
        self.iterations = iterations
        self.latents = nn.Parameter(torch.randn(self.num_heads, num_latents, self.head_channels))

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the latents and the posterior of edges through them, see `Attention2d`."""
        del log_mask, size
        latents = self.latents.to(queries.dtype).expand(len(queries), -1, -1, -1)
        return latent_edges(queries, keys, latents, iterations=self.iterations)
