"""Tiles of the pairs of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from probseg.ops.backends.interface import Block, PairwisePrior, Term, Terms, take_block

TILE = 2**20
"""Number of pairs in a tile: larger ones leave the caches."""

ROWS = 256
"""Number of rows below which products lose their speed; with many keys, tiles are larger for it."""


class Scratch:
    """Memory for the intermediate results of a tile, allocated once for all tiles."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """Multiply stacks of matrices `(..., n, c)` and `(..., c, m)` into the memory of this name.

        The first product of a name is the largest; the next one overwrites it.
        """
        shape = (*left.shape[:-1], right.shape[-1])
        count = math.prod(shape)
        if name not in self._memory or self._memory[name].numel() < count:
            self._memory[name] = left.new_empty(count)
        return torch.matmul(left, right, out=self._memory[name][:count].view(shape))


def tile_size(terms: Terms) -> int:
    """Return the number of pairs of which a tile consists."""
    return TILE // numbers_per_pair(terms)


def numbers_per_pair(terms: Terms) -> int:
    """Return the approximate number of values that the terms hold in memory for each pair."""
    numbers = [term.numbers_per_pair for term in terms if isinstance(term, PairwisePrior)]
    return max(numbers, default=1)


def row_multiple(terms: Terms) -> int:
    """Return the number of rows that are computed together: fewer cost as much."""
    return max((term.row_multiple for term in terms if isinstance(term, PairwisePrior)), default=1)


def tiles(sizes: Sequence[int], terms: Terms) -> list[Block]:
    """Cut `(B, G, N, M)` into blocks with all keys each, of whole heads or else of some rows."""
    batch_size, heads, rows, columns = sizes
    if rows * columns == 0:
        return []
    size = tile_size(terms)
    some_rows = min(rows, max(1, ROWS * size // TILE, size // columns))
    if some_rows < rows:
        together = row_multiple(terms)
        some_rows = max(1, some_rows // together) * together
    some_heads = min(heads, max(1, size // (rows * columns))) if some_rows >= rows else 1
    some_batch = max(1, size // (heads * rows * columns)) if some_heads == heads else 1
    return [
        Block(
            slice(b, min(b + some_batch, batch_size)),
            slice(g, min(g + some_heads, heads)),
            slice(i, min(i + some_rows, rows)),
            slice(0, columns),
        )
        for b in range(0, batch_size, some_batch)
        for g in range(0, heads, some_heads)
        for i in range(0, rows, some_rows)
    ]


class Layout(NamedTuple):
    """The arguments without tensors, which autograd functions take separately."""

    scale: float
    terms: Terms  # detached; their tensors are given separately
    recorded: bool  # whether there can be a backward pass

    def terms_with(self, tensors: Sequence[Tensor]) -> Terms:
        """Return the terms with other tensors in the place of theirs."""
        remaining = iter(tensors)
        return tuple(
            next(remaining)
            if isinstance(term, Tensor)
            else term.with_tensors({name: next(remaining) for name in term.tensors})
            for term in self.terms
        )


def flatten(terms: Terms, scale: float) -> tuple[Layout, list[Tensor]]:
    """Separate the tensors of a prior from the rest."""
    tensors: list[Tensor] = []
    detached: list[Term] = []
    for term in terms:
        if isinstance(term, Tensor):
            tensors.append(term)
            detached.append(term.detach())
        else:
            tensors.extend(term.tensors.values())
            detached.append(
                term.with_tensors({name: value.detach() for name, value in term.tensors.items()})
            )
    return Layout(scale, tuple(detached), torch.is_grad_enabled()), tensors


def logits_of(
    block: Block, terms: Terms, scale: float, queries: Tensor, keys: Tensor, scratch: Scratch
) -> Tensor:
    """Compute the logits of a block in scratch memory, `(b, g, n, m)`."""
    columns = keys[block.batch, block.heads][:, :, block.columns]
    rows = scale * queries[block[:3]]
    logits = scratch.product("logits", rows, columns.mT)  # (b, g, n, m)
    for term in terms:
        logits += take_block(term, block, logits.dtype).detach()
    return logits


def finite(log_sums: Tensor) -> Tensor:
    """Replace -inf, whose lines have logits of -inf, by 0: `-inf - (-inf)` would be NaN."""
    return log_sums.masked_fill(log_sums == -inf, 0.0)
