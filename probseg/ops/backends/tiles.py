"""How the pairs of queries and keys are cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from probseg.ops.backends.interface import Block, PairwisePrior, Terms

TILE = 2**20
"""Number of pairs in a tile: larger ones leave the caches, and the allocator asks the system for
each of them anew."""

ROWS = 64
"""Number of rows below which products lose their speed; with many keys, tiles are larger for it."""


def tile_size(terms: Terms) -> int:
    """Return the number of pairs of which a tile consists."""
    numbers = [term.numbers_per_pair for term in terms if isinstance(term, PairwisePrior)]
    return TILE // max(numbers, default=1)


def tiles(sizes: Sequence[int], terms: Terms) -> Iterator[Block]:
    """Cut ``(B, G, N, M)`` into blocks with all keys each, of whole heads or else of some rows."""
    batch_size, heads, rows, columns = sizes
    if rows * columns == 0:
        return
    size = tile_size(terms)
    some_rows = min(rows, max(ROWS, size // columns))
    for term in terms:
        if isinstance(term, PairwisePrior) and some_rows < rows:
            some_rows = max(1, some_rows // term.row_multiple) * term.row_multiple
    some_heads = min(heads, max(1, size // (rows * columns))) if some_rows >= rows else 1
    some_batch = max(1, size // (heads * rows * columns)) if some_heads == heads else 1
    for b in range(0, batch_size, some_batch):
        for g in range(0, heads, some_heads):
            for i in range(0, rows, some_rows):
                yield Block(
                    slice(b, min(b + some_batch, batch_size)),
                    slice(g, min(g + some_heads, heads)),
                    slice(i, min(i + some_rows, rows)),
                    slice(0, columns),
                )


def rows_of(block: Block) -> tuple[slice, slice, slice | Tensor]:
    """Index of a block in a tensor ``(B, G, N, ...)``."""
    return block.batch, block.heads, block.rows


def units_of(block: Block) -> tuple[slice, slice]:
    """Index of a block in a tensor ``(B, G, ...)`` that is not cut further."""
    return block.batch, block.heads
