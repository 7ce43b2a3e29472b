"""Interface of the backends of the two attention primitives, and tiles of pairs that they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from math import inf
from typing import Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

Primitive = Literal["attend", "assign"]


class Attended(NamedTuple):
    """Result of `attend`.

    Args:
        values: Posterior mean of the values of each query, shape `(B, G, N, V)`; zero for a
            query that sees no key.
        log_evidence: Row log-sum-exp of the logits, shape `(B, G, N)`; -inf for a query that
            sees no key.
    """

    values: Tensor
    log_evidence: Tensor


class Assigned(NamedTuple):
    """Result of `assign`.

    Args:
        means: Mean of the observations of each key, weighted by its responsibilities, shape
            `(B, G, M, V)`; zero for a key that no query sees.
        log_mass: Logarithm of each key's summed responsibilities, shape `(B, G, M)`; -inf for
            a key that no query sees.
    """

    means: Tensor
    log_mass: Tensor


class Block(NamedTuple):
    """A part of the `(B, G, N, M)` pairs.

    `block[:3]` is the index of its rows in a tensor `(B, G, N, ...)`, `block[:2]` that of its units
    in a tensor `(B, G, M, ...)` where it has all columns.
    """

    batch: slice
    heads: slice
    rows: slice | Tensor  # a tensor holds the indices of some rows
    columns: slice | Tensor


EVERYTHING = Block(slice(None), slice(None), slice(None), slice(None))


class PairwisePrior(ABC):
    """A log prior of pairs that is computed block by block, so that it is never held whole.

    Subclasses are frozen dataclasses. Gradients flow to their fields that are floating-point
    tensors.
    """

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The fields that gradients can flow to."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return {
            name: value
            for name, value in named
            if isinstance(value, Tensor) and value.is_floating_point()
        }

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """Return a copy with other tensors in the place of `tensors`."""
        return replace(self, **tensors)  # type: ignore[type-var]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """Shape that broadcasts to `(B, G, N, M)`; the last two sizes are `N` and `M`."""

    @property
    def numbers_per_pair(self) -> int:
        """Approximate number of values that `block` holds in memory for each pair."""
        return 1

    @property
    def row_multiple(self) -> int:
        """Number of rows that are cheaper together than apart."""
        return 1

    @abstractmethod
    def block(self, block: Block) -> Tensor:
        """Compute the log prior of some pairs, in a shape that broadcasts to theirs."""

    def part(self, name: str, batch: slice, heads: slice) -> tuple[slice, ...] | None:
        """Return the part of a tensor that a block needs, to limit the cost of gradients.

        Args:
            name: Name of one of the `tensors`.
            batch: The block's items.
            heads: The block's heads.

        Returns:
            Index of the part; with the parts of all tensors in their place, `block` computes the
            same for all items and heads. None, the default, if it is not known.
        """
        del name, batch, heads
        return None


class ScoredPrior(PairwisePrior):
    """A log prior of pairs that can also be computed pair by pair, for kernels that need it."""

    @abstractmethod
    def score(self, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Compute the log prior of a single pair from its indices, which are scalars."""


Term = Tensor | PairwisePrior
"""One summand of a log prior: a tensor of four dimensions that broadcasts to `(B, G, N, M)`, or a
prior that is computed where it is needed."""

Terms = tuple[Term, ...]


def is_unit(term: Term) -> bool:
    """Return whether a term is the same for all queries."""
    return isinstance(term, Tensor) and term.shape[-2] == 1


def needs_gradient(term: Term) -> bool:
    """Return whether autograd will ask for the gradient of a term."""
    tensors = (term,) if isinstance(term, Tensor) else term.tensors.values()
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def take_block(term: Term, block: Block, dtype: torch.dtype) -> Tensor:
    """Return a term for some pairs, in a shape that broadcasts to theirs."""
    if not isinstance(term, Tensor):
        return term.block(block).to(dtype)
    # Sizes of 1 stand for any number of pairs.
    batch, heads, rows, columns = [
        part if size > 1 else slice(None) for part, size in zip(block, term.shape, strict=True)
    ]
    return term[batch, heads][:, :, rows][..., columns].to(dtype)


class Backend(Protocol):
    """A module with both primitives, for arguments that were already checked.

    The tensors share one device. Queries, keys and payload share one dtype: float32 or float64, or
    half precision on the device types in `HALF_PRECISION`. Tensors among the terms of the prior
    are float64 for float64, else float32.
    """

    HALF_PRECISION: frozenset[str]

    def refuse(self, queries: Tensor, keys: Tensor, payload: Tensor, terms: Terms) -> str | None:
        """Return why a call is not supported, in words that follow "because"; None if it is."""
        ...

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, terms: Terms, scale: float
    ) -> Attended:
        """Average the values of the keys by each query's responsibilities."""
        ...

    def assign(
        self, queries: Tensor, keys: Tensor, observations: Tensor, terms: Terms, scale: float
    ) -> Assigned:
        """Average the observations of the queries by each key's responsibilities."""
        ...


class Context(FunctionCtx):
    """Autograd's context between forward and backward, with its undeclared attributes."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


def refuse_double_backward(backend: str) -> None:
    """Raise where autograd records the backward pass to differentiate it again."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"`backend` {backend!r} cannot be differentiated twice (create_graph=True); use "
            "backend='reference', or torch.func, under which functions and layers take it"
        )


TILE = 2**20
"""Number of pairs in a tile: larger ones leave the caches."""

WRITTEN_OUT = 2**24
"""Number of pairs up to which a compiled graph has them all at once: the loop over tiles is in no
graph."""

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
