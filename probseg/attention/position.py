"""Learnt tables of relative position embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from probseg.ops.edges import EdgePosterior, row_blocks
from probseg.ops.relative_position import FactoredPosition, FullPosition, RelativePosition


class PositionEmbedding(nn.Module, ABC):
    """Tables for a nominal size of the map; other sizes interpolate them.

    Embeddings start with standard deviation `1 / sqrt(channels)`, so that their dot products with
    queries of unit variance have unit variance.

    Args:
        height: Rows of the map whose offsets have an embedding of their own; 1 for lines along the
            width.
        width: Columns of that map; 1 for lines along the height.
        channels: Channels `D` of queries and keys.
    """

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        for name, size in (("height", height), ("width", width)):
            if size < 1:
                msg = (
                    f"`{name}` must be at least 1, got {size}; a line is a map of one row or column"
                )
                raise ValueError(msg)
        self.channels = channels

    def forward(self, height: int, width: int) -> RelativePosition:
        """Return the embeddings for a map of this size."""
        return self.tables().resized(height, width)

    @abstractmethod
    def tables(self) -> RelativePosition:
        """Return the embeddings of the nominal size."""

    def _table(self, *offsets: int) -> nn.Parameter:
        table = torch.randn(*offsets, self.channels) * self.channels**-0.5
        return nn.Parameter(table)


class FactoredPositionEmbedding(PositionEmbedding):
    """A table for the rows and one for the columns, see `FactoredPosition`.

    Args:
        height: See `PositionEmbedding`.
        width: See `PositionEmbedding`.
        channels: See `PositionEmbedding`.
        keys: Whether units have embeddings (`r^k` in Eq. 26), as queries do (`r^q`).
    """

    def __init__(self, height: int, width: int, channels: int, *, keys: bool = True) -> None:
        super().__init__(height, width, channels)
        self.query_height = self._table(2 * height - 1)
        self.query_width = self._table(2 * width - 1)
        self.key_height = self._table(2 * height - 1) if keys else None
        self.key_width = self._table(2 * width - 1) if keys else None

    def tables(self) -> FactoredPosition:
        """Return the embeddings of the nominal size."""
        return FactoredPosition(
            self.query_height, self.query_width, self.key_height, self.key_width
        )


class FullPositionEmbedding(PositionEmbedding):
    """An embedding for each offset, see `FullPosition`; the arguments are the same."""

    def __init__(self, height: int, width: int, channels: int, *, keys: bool = True) -> None:
        super().__init__(height, width, channels)
        self.query = self._table(2 * height - 1, 2 * width - 1)
        self.key = self._table(2 * height - 1, 2 * width - 1) if keys else None

    def tables(self) -> FullPosition:
        """Return the embeddings of the nominal size."""
        return FullPosition(self.query, self.key)


POSITIONS: dict[str, Callable[..., PositionEmbedding]] = {
    "factored": FactoredPositionEmbedding,
    "full": FullPositionEmbedding,
}


def expected_offsets(edges: EdgePosterior, table: Tensor) -> Tensor:
    """Return the expectation of what belongs to the offsets of edges, `sum_j w_ij r_{j-i}`.

    Args:
        edges: From each pixel of a map to all of its pixels, in row-major order.
        table: `r` of the offsets on a map of this size, `(2H-1, 2W-1, V)`.

    Returns:
        `(B, G, N, V)`, in the dtype of the table or of the probabilities, the larger of the two.
    """
    height, width = ((side + 1) // 2 for side in table.shape[:2])
    place = torch.arange(height * width, device=table.device)
    rows, columns = place // width, place % width
    edges, parts = edges.prepared(), []
    for block in row_blocks(edges):
        down = rows - rows[block, None] + height - 1  # (n, N)
        right = columns - columns[block, None] + width - 1
        probability = edges.log_probability(block).exp()  # (B, G, n, N)
        parts.append(torch.einsum("bgnm,nmv->bgnv", probability, table[down, right]))
    return torch.cat(parts, dim=-2)
