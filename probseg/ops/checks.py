"""Checks of the arguments of public functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from probseg.ops.backends.interface import PairwisePrior, Term
from probseg.ops.numerics import working_dtype


def check_units(
    queries: Tensor, keys: Tensor, payload: Tensor, *, payload_name: str, payload_of: str
) -> None:
    """Check the three tensors of a primitive.

    The payload, of this name in the caller's signature, belongs to the "keys" (`(B, G, M, V)`) or
    to the "queries" (`(B, G, N, V)`).
    """
    count = "M" if payload_of == "keys" else "N"
    named = {"queries": queries, "keys": keys, payload_name: payload}
    layout = {
        "queries": "(B, G, N, D)",
        "keys": "(B, G, M, D)",
        payload_name: f"(B, G, {count}, V)",
    }
    for name, tensor in named.items():
        if tensor.ndim != 4:
            raise ValueError(
                f"`{name}` must have shape {layout[name]}, got {tuple(tensor.shape)}; "
                "add the missing batch or head dimension with unsqueeze"
            )
        if not tensor.dtype.is_floating_point:
            raise TypeError(
                f"`{name}` must be floating point, got {tensor.dtype}; convert it with .float()"
            )
        if tensor is queries:
            continue
        check_like(name, tensor, queries)
        if tensor.shape[:2] != queries.shape[:2]:
            raise ValueError(
                f"`{name}` must have the batch and head sizes {tuple(queries.shape[:2])} of "
                f"`queries`, got {tuple(tensor.shape[:2])}; expand it to them"
            )
    if keys.shape[-1] != queries.shape[-1]:
        raise ValueError(
            f"`keys` must have the {queries.shape[-1]} channels of `queries`, got "
            f"{keys.shape[-1]}; project both to the same width"
        )
    if payload.shape[-2] != named[payload_of].shape[-2]:
        raise ValueError(
            f"`{payload_name}` must have one row for each of the {named[payload_of].shape[-2]} "
            f"`{payload_of}`, got {payload.shape[-2]}; its dimensions are {layout[payload_name]}"
        )


def check_like(name: str, tensor: Tensor, queries: Tensor) -> None:
    """Check that a tensor has the dtype and the device of the queries."""
    if tensor.dtype != queries.dtype:
        raise TypeError(
            f"`{name}` must have the dtype {queries.dtype} of `queries`, got {tensor.dtype}; "
            "convert it with .to(queries.dtype)"
        )
    check_device(name, tensor, queries.device)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Check that a tensor is where the queries are."""
    if tensor.device != device:
        raise ValueError(
            f"`{name}` must be on the device {device} of `queries`, got {tensor.device}; "
            "move it with .to(queries.device)"
        )


def check_bool(name: str, mask: Tensor, queries: Tensor) -> None:
    """Check a mask of the queries: bool, `(B, N)`, on their device."""
    check_device(name, mask, queries.device)
    check_shape(name, mask, (queries.shape[0], queries.shape[2]), "(B, N)")
    if mask.dtype != torch.bool:
        raise TypeError(f"`{name}` must be bool, got {mask.dtype}; compare it, e.g. mask > 0")


def check_shape(name: str, tensor: Tensor, expected: Sequence[int], letters: str) -> None:
    """Check that a tensor has exactly the expected shape, e.g. `(B, G, N, V)` in letters."""
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(
            f"`{name}` must have shape {letters} = {tuple(expected)}, got {tuple(tensor.shape)}; "
            "permute or expand it"
        )


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether each size of a shape equals the target's or is 1."""
    return len(shape) == len(target) and all(
        size in (1, wanted) for size, wanted in zip(shape, target, strict=True)
    )


def pairwise(name: str, prior: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Bring a log prior or log mask to a view that broadcasts to `(B, G, N, M)`.

    It is `(M,)`, `(N, M)`, `(B, G, M)` or `(B, G, N, M)`; sizes may be 1.
    """
    target = (*queries.shape[:-1], keys.shape[-2])  # (B, G, N, M)
    if not prior.dtype.is_floating_point:
        raise TypeError(
            f"`{name}` must be floating point, got {prior.dtype}; turn a mask of visible keys into "
            "0 and -inf, e.g. with torch.where(visible, 0.0, -torch.inf)"
        )
    check_device(name, prior, queries.device)
    if prior.ndim == 3:
        view = prior.unsqueeze(-2)  # (B, G, 1, M)
    elif 1 <= prior.ndim <= 4:
        view = prior[(None,) * (4 - prior.ndim)]
    else:
        view = prior
    if not _broadcasts(view.shape, target):
        raise ValueError(
            f"`{name}` must have shape (M,), (N, M), (B, G, M) or (B, G, N, M) with "
            f"(B, G, N, M) = {target}, got {tuple(prior.shape)}; use size 1 where it is constant"
        )
    return view


def as_terms(
    name: str, prior: Term | tuple[Term, ...] | None, queries: Tensor, keys: Tensor
) -> tuple[Term, ...]:
    """Bring a log prior to the terms that the backends add to the logits.

    It is None, a tensor as for `pairwise`, a `PairwisePrior`, or a tuple of them. Tensors among the
    terms have four dimensions; they and those of a `PairwisePrior` have the working dtype.
    """
    if prior is None:
        return ()
    target = (*queries.shape[:-1], keys.shape[-2])  # (B, G, N, M)
    terms: list[Term] = []
    for term in prior if isinstance(prior, tuple) else (prior,):
        if isinstance(term, Tensor):
            terms.append(pairwise(name, term, queries, keys).to(working_dtype(queries.dtype)))
            continue
        if not isinstance(term, PairwisePrior):
            raise TypeError(
                f"`{name}` must be a tensor, a PairwisePrior or a tuple of them, got "
                f"{type(term).__name__}"
            )
        if term.shape[2:] != target[2:] or not _broadcasts(term.shape, target):
            raise ValueError(
                f"`{name}` must broadcast to (B, G, N, M) = {target}, got a {type(term).__name__} "
                f"of shape {term.shape}; build it for this number of tokens"
            )
        for field, tensor in term.tensors.items():
            check_device(f"{name}.{field}", tensor, queries.device)
        dtype = working_dtype(queries.dtype)
        moved = {field: tensor.to(dtype) for field, tensor in term.tensors.items()}
        alike = all(tensor is term.tensors[field] for field, tensor in moved.items())
        terms.append(term if alike else term.with_tensors(moved))
    return tuple(terms)


def as_precision(
    name: str, precision: float | Tensor, keys: Tensor, *, zero: bool
) -> float | Tensor:
    """Check a precision; return the float, or `(B, G, M)` in the working dtype, sizes may be 1.

    Tensors are not searched for zeros, which would wait for the device.
    """
    if not isinstance(precision, Tensor):
        if not (0.0 <= precision < math.inf) or (precision == 0.0 and not zero):
            wanted = "0 or more" if zero else "above 0"
            raise ValueError(
                f"`{name}` must be finite and {wanted}, got {precision}; it is an inverse variance"
            )
        return float(precision)
    check_device(name, precision, keys.device)
    view = precision[(None,) * max(0, 3 - precision.ndim)]
    if not _broadcasts(view.shape, keys.shape[:-1]):
        raise ValueError(
            f"`{name}` must broadcast to (B, G, M) = {tuple(keys.shape[:-1])}, got "
            f"{tuple(precision.shape)}; use size 1 where it is shared"
        )
    return view.to(working_dtype(keys.dtype))
