"""Interface of the backends of the two attention primitives.

Shared parts of the hand-written gradients of the backends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, replace
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
