"""Attention through random features among the pixels of a map (Choromanski et al., 2021)."""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor

from probseg.attention.base import Attention2d, Shared
from probseg.family.performer import random_feature_edges, random_features
from probseg.ops.edges import EdgePosterior


class PerformerAttention2d(Attention2d):
    """Pixels attend as in standard attention, estimated in time linear in the pixels.

    The features are drawn once and kept with the weights. Dot products have the factor
    `1 / sqrt(D)`.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        num_features: Number `R` of random features in each head, at least 1.
        **shared: As in `Attention2d`; there is no position and no span.

    Raises:
        ValueError: If `num_features` is below 1; and as `Attention2d` does.
    """

    no_position: ClassVar[str | None] = (
        "random features see queries and keys one by one, and not the offset between them"
    )
    no_span: ClassVar[str | None] = "all pixels of a line share the sums over its keys"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_features: int = 64,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        self.features: Tensor
        self.register_buffer(
            "features", random_features(num_features, self.head_channels, self.num_heads)
        )

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Estimate the posterior over edges, see `Attention2d`."""
        del log_mask, size
        return random_feature_edges(queries, keys, self.features, scale=self.head_channels**-0.5)
