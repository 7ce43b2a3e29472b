"""Gathering of the few tokens with fixed values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from probseg.ops.backends.interface import Block, Term, Terms


class FixedTokens(NamedTuple):
    """Tokens with fixed values, at most S for each item of the batch, and S at least 1.

    Args:
        rows: Indices of the tokens among the N queries, `(B, S)`; items with fewer are padded
            with other indices.
        valid: True for real rows, False for padding, bool, `(B, S)`.
    """

    rows: Tensor
    valid: Tensor


def fixed_tokens(mask: Tensor) -> FixedTokens:
    """Find the fixed tokens of a mask `(B, N)`, N > 0; their largest number is read on the host.

    An exported graph reads nothing on the host: there, all tokens are rows, most of them padding.
    """
    if torch.compiler.is_exporting():
        rows = torch.arange(mask.shape[1], device=mask.device).expand(len(mask), -1)
        return FixedTokens(rows, mask)
    count = max(1, int(mask.sum(dim=1).max())) if len(mask) else 1
    rows = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
    return FixedTokens(rows, mask.gather(1, rows))


def take_tokens(tensor: Tensor, fixed: FixedTokens) -> Tensor:
    """Take the fixed rows of a tensor `(B, G, N, C)`, whose other sizes may be 1."""
    return torch.take_along_dim(tensor, fixed.rows[:, None, :, None], dim=-2)  # (B, G, S, C)


def take_terms(terms: Terms, fixed: FixedTokens) -> tuple[Tensor, ...]:
    """Take the fixed rows of a prior; written out, they broadcast to `(B, G, S, M)`."""
    return tuple(_take_term(term, fixed) for term in terms)


def _take_term(term: Term, fixed: FixedTokens) -> Tensor:
    if isinstance(term, Tensor):
        return term if term.shape[-2] == 1 else take_tokens(term, fixed)
    whole = slice(None)
    batch = term.shape[0]
    items = [
        term.block(Block(slice(min(b, batch - 1), min(b, batch - 1) + 1), whole, rows, whole))
        for b, rows in enumerate(fixed.rows)
    ]
    if not items:
        return fixed.rows.new_zeros(0, 1, fixed.rows.shape[1], term.shape[3], dtype=torch.float32)
    return torch.cat(items)  # (B, G, S, M), G may be 1
