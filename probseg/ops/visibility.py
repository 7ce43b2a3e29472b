"""Which queries and keys a log prior of -inf leaves anything of."""

from __future__ import annotations

from functools import reduce
from math import inf
from operator import and_
from typing import NamedTuple

import torch
from torch import Tensor

from probseg.ops.backends.interface import Terms, is_unit


class Visible(NamedTuple):
    """What a prior leaves visible.

    Args:
        queries: Whether a query sees any key, bool, broadcasts to `(B, G, N, 1)`.
        keys: Whether any query sees a key, bool, broadcasts to `(B, G, M, 1)`.
    """

    queries: Tensor
    keys: Tensor


def visible(terms: Terms) -> Visible | None:
    """Find what no tensor among the terms hides; None if there is no tensor.

    A `PairwisePrior` is not asked: it is never computed for all pairs at once.
    """
    tensors = [term for term in terms if isinstance(term, Tensor)]
    if not tensors:
        return None
    of_units = [term != -inf for term in tensors if is_unit(term)]
    of_pairs = [term != -inf for term in tensors if not is_unit(term)]
    if not of_pairs:
        units = reduce(and_, of_units)  # (B, G, 1, M)
        return Visible(units.any(-1, keepdim=True), units.mT)
    pairs = reduce(and_, of_pairs)  # (B, G, N, M)
    if not of_units:
        return Visible(pairs.any(-1, keepdim=True), pairs.any(-2, keepdim=True).mT)
    units = reduce(and_, of_units)
    # Sizes of 1 are not expanded, as those of `pairs & units` would be.
    counts = torch.einsum("bgnm,bgkm->bgnk", pairs.float(), units.float())  # (B, G, N, 1)
    return Visible(counts > 0, pairs.any(-2, keepdim=True).mT & units.mT)


def shown(tensor: Tensor, where: Tensor) -> Tensor:
    """Replace hidden rows by 0: whatever they hold, NaN too, they have no effect and no gradient.

    Args:
        tensor: `(B, G, N, C)` or `(B, G, M, C)`.
        where: The visible rows, one of `Visible`.
    """
    return tensor.where(where, 0.0)
