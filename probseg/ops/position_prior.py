"""Full relative position embeddings as a prior of pairs that is computed block by block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probseg.ops.backends.interface import Block, PairwisePrior, take_block


@dataclass(frozen=True, eq=False)
class FullPositionPrior(PairwisePrior):
    """`alpha_j (q_i·r^q_{j-i} + xi_j·r^k_{j-i})` for a table of full offsets."""

    queries: Tensor  # (B, G, N, D)
    keys: Tensor  # (B, G, M, D)
    precision: Tensor  # (B, G, M), sizes may be 1
    query_table: Tensor  # (G, 2H-1, 2W-1, D), G may be 1
    key_table: Tensor | None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `PairwisePrior`."""
        batch, heads, count, _ = self.queries.shape
        return batch, heads, count, count

    @property
    def numbers_per_pair(self) -> int:
        """See `PairwisePrior`: two tables, each with twice as many offsets as there are units."""
        return 8

    def part(self, name: str, batch: slice, heads: slice) -> tuple[slice, ...]:
        """See `PairwisePrior`."""
        if name in ("queries", "keys"):
            return batch, heads
        tensor = getattr(self, name)
        if name == "precision":
            return tuple(
                slice(None) if size == 1 else some
                for some, size in zip((batch, heads), tensor.shape[:2], strict=True)
            )
        return (slice(None) if len(tensor) == 1 else heads,)

    @property
    def row_multiple(self) -> int:
        """See `PairwisePrior`: the rows of the map are cheapest as a whole."""
        return self._map_size()[1]

    def block(self, block: Block) -> Tensor:
        """See `PairwisePrior`."""
        if isinstance(block.rows, Tensor) or isinstance(block.columns, Tensor):
            scores = self._some_pairs(block)
        else:
            scores = self._map_rows(block)[..., block.columns]
        precision = take_block(self.precision.unsqueeze(-2), block, scores.dtype)
        return precision * scores  # (b, g, n, m)

    def _some_pairs(self, block: Block) -> Tensor:
        """Look up the embedding of each pair: `D` numbers a pair, for few pairs."""
        height, width = self._map_size()
        everyone = torch.arange(height * width, device=self.queries.device)
        rows, columns = everyone[block.rows, None], everyone[block.columns]
        down = columns // width - rows // width + height - 1  # (n, m)
        right = columns % width - rows % width + width - 1  # (n, m)
        queries = self.queries[block.batch, block.heads][:, :, block.rows]  # (b, g, n, D)
        keys = self.keys[block.batch, block.heads][:, :, block.columns]  # (b, g, m, D)
        table = _take_heads(self.query_table, block)[:, down, right]  # (g, n, m, D)
        scores = torch.einsum("bgnd,gnmd->bgnm", queries, table)
        if self.key_table is None:
            return scores
        table = _take_heads(self.key_table, block)[:, down, right]  # (g, n, m, D)
        return scores + torch.einsum("bgmd,gnmd->bgnm", keys, table)

    def _map_rows(self, block: Block) -> Tensor:
        """Multiply whole rows of the map with the tables and shear the results into place."""
        height, width = self._map_size()
        assert isinstance(block.rows, slice), "single rows are looked up pair by pair"
        first, last, _ = block.rows.indices(height * width)
        top, bottom = first // width, -(-last // width)
        queries = self.queries[block.batch, block.heads]
        keys = self.keys[block.batch, block.heads]
        grid = (*keys.shape[:2], height, width, keys.shape[-1])
        queries = queries.reshape(grid)[:, :, top:bottom]  # (b, g, y, w, D)
        keys = keys.reshape(grid)  # (b, g, h, x, D)
        down = torch.arange(height, device=queries.device) + height - 1
        down = down - torch.arange(top, bottom, device=queries.device)[:, None]  # (y, h)
        right = torch.arange(width, device=queries.device) + width - 1
        right = right - torch.arange(width, device=queries.device)[:, None]  # (w, x)
        sizes = (*queries.shape[:4], height, width)  # (b, g, y, w, h, x)

        table = _take_heads(self.query_table, block)[:, down]  # (g, y, h, 2W-1, D)
        scores = torch.einsum("bgywd,gyhtd->bgywht", queries, table)
        scores = scores.gather(-1, right[:, None, :].expand(sizes))
        if self.key_table is not None:
            table = _take_heads(self.key_table, block)[:, down]  # (g, y, h, 2W-1, D)
            of_keys = torch.einsum("bghxd,gyhtd->bgyhxt", keys, table)
            of_keys = of_keys.permute(0, 1, 2, 5, 3, 4)  # (b, g, y, 2W-1, h, x)
            scores = scores + of_keys.gather(3, right[:, None, :].expand(sizes))
        flat = scores.flatten(4).flatten(2, 3)  # (b, g, y w, M)
        start = first - top * width
        return flat[:, :, start : start + last - first]

    def _map_size(self) -> tuple[int, int]:
        rows, columns = self.query_table.shape[1:3]
        return (rows + 1) // 2, (columns + 1) // 2


def _take_heads(table: Tensor, block: Block) -> Tensor:
    return table[block.heads] if len(table) > 1 else table
