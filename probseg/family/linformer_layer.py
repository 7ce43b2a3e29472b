"""Attention to pooled pixels (Wang et al., 2020)."""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor

from probseg.attention.base import Attention2d, Shared, line_size
from probseg.family.linformer import pooling_log_projection, projected_edges
from probseg.ops.edges import EdgePosterior


class LinformerAttention2d(Attention2d):
    """Pixels attend to the means of keys and values over the bins of a grid.

    Means are the projection of Wang et al. (2020, §4) that fits lines and maps of any size;
    learnt matrices fit one. Dot products have the factor `1 / sqrt(D)`. A map no larger than the
    grid gets standard attention.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        bins: Bins along height and width, at least 1; smaller maps have one for each pixel.
        **shared: As in `Attention2d`; there is no position and no span.

    Raises:
        ValueError: If `bins` is below 1; and as `Attention2d` does.
    """

    no_position: ClassVar[str | None] = "its keys are means over pixels, which have no one offset"
    no_span: ClassVar[str | None] = "bins are shared by all pixels of a line"

    def __init__(
        self, in_channels: int, out_channels: int, *, bins: int = 8, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        if bins < 1:
            msg = f"`bins` must be at least 1, got {bins}; pixels look at nothing else"
            raise ValueError(msg)
        self.bins = bins

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges through the bins, see `Attention2d`."""
        del log_mask
        height, width = line_size(self.axis, *size)
        bins = (min(self.bins, height), min(self.bins, width))
        projection = pooling_log_projection(height, width, bins, queries.device)
        return projected_edges(queries, keys, projection, scale=self.head_channels**-0.5)
