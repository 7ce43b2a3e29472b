"""Attention to the pixels around: a structural prior over edges."""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor

from probseg.attention.base import Attention2d, Shared, line_size
from probseg.ops.edges import EdgePosterior, gaussian_edges
from probseg.ops.priors import WindowPrior


class LocalAttention2d(Attention2d):
    """Standard attention with a prior that rules out edges longer than a radius.

    What sparse attention leaves out is a prior over edges that is 0 there (Singh & Buckley, 2023,
    §5.1.2). Memory is linear; the time is still that of all pairs.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        radius: A pixel sees those at most this many rows and columns away: a square of side
            `2 radius + 1` with the axis "full", that part of the line with the others.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If the radius is negative.
    """

    no_span: ClassVar[str | None] = "the radius says how far a pixel sees along a line, too"

    def __init__(
        self, in_channels: int, out_channels: int, *, radius: int = 7, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        if radius < 0:
            msg = f"`radius` must be 0 or more pixels of the map, got {radius}"
            raise ValueError(msg)
        self.radius = radius

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        height, width = line_size(self.axis, *size)
        window = WindowPrior.on_map(height, width, self.radius, queries.device)
        return gaussian_edges(queries, keys, log_mask=window, position=self.position_tables(*size))
