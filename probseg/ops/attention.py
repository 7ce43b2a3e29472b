"""The two primitives that every attention mechanism of this package consists of.

Both share the logits `S = scale Q Kᵀ + log_prior` and their row softmax, the responsibilities
`w_ij` of the keys (the units of a mixture) for the queries.
"""

from __future__ import annotations

import math
from functools import reduce
from math import inf
from operator import and_
from typing import NamedTuple

import torch
from torch import Tensor

from probseg.errors import UnknownNameError
from probseg.ops.backends import BACKENDS, preference
from probseg.ops.backends.interface import (
    Assigned,
    Attended,
    Backend,
    Primitive,
    Term,
    Terms,
    is_unit,
)
from probseg.ops.checks import as_terms, check_units
from probseg.ops.numerics import HALF, full_precision


class Visible(NamedTuple):
    """What a prior leaves visible."""

    queries: Tensor  # whether a query sees any key, bool, broadcasts to (B, G, N, 1)
    keys: Tensor  # whether any query sees a key, bool, broadcasts to (B, G, M, 1)


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
    """Replace the hidden rows of a tensor `(B, G, N, C)` by 0.

    Whatever they hold, NaN too, they have no effect and no gradient.
    """
    return tensor.where(where, 0.0)


LogPrior = Term | tuple[Term, ...]
"""A tensor, a prior that is computed pair by pair, or several of them, which are added."""


class BackendError(ValueError):
    """Raised if a backend selected by name does not support a call."""


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    log_prior: LogPrior | None = None,
    scale: float = 1.0,
    backend: str = "auto",
) -> Attended:
    """Average the values of the keys by each query's posterior over the keys.

    `S_ij = scale q_i·k_j + log_prior_ij`, `L_i = log sum_j exp S_ij` and
    `o_i = sum_j exp(S_ij - L_i) v_j`. Standard attention (Vaswani et al., 2017, Eq. 1) is
    `scale=D**-0.5` without a prior.

    Everything with an exponential or a logarithm is float32 (float64 for float64), also under
    autocast. Half-precision arguments are multiplied as such, with float32 sums, by "sdpa" and
    "flex" on CUDA; elsewhere, and where a prior would be rounded, in float32. Where
    `torch.set_float32_matmul_precision` lets CUDA round float32 products, logits lose digits.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        values: `(B, G, M, V)`.
        log_prior: Added to the logits: `(M,)`, `(N, M)`, `(B, G, M)` or `(B, G, N, M)`;
            sizes may be 1, None is zero everywhere, -inf hides a key. Three dimensions are those of
            the keys, unlike in `torch.nn.functional.scaled_dot_product_attention`. Or a
            `PairwisePrior`, which is never written out, or a tuple of both kinds. Of a key that
            tensors hide from all queries nothing is read, nor of its value, nor of a query from
            which they hide all keys: they may hold anything, NaN too, and get a gradient of 0.
            What any query sees must be finite.
        scale: Factor of the dot products.
        backend: "reference" writes out all N x M logits and can be differentiated twice; "chunked"
            goes through them in tiles; "sdpa" and "flex" use PyTorch's fused kernels. "auto" takes
            the fastest that can serve.

    Returns:
        The values `(B, G, N, V)` in the dtype of the arguments, and the log evidence
        `(B, G, N)` in float32 (float64 for float64 arguments). A query that sees no key has
        zero values and log evidence -inf. Both are differentiable.

    Raises:
        BackendError: If the named backend cannot serve these arguments.
        ValueError: If a shape, a device or the scale is wrong.
        TypeError: If a dtype is wrong.
        UnknownNameError: If there is no backend of this name.
    """
    check_units(queries, keys, values, payload_name="values", payload_of="keys")
    terms = checked_terms(queries, keys, log_prior, scale)
    if (seen := visible(terms)) is not None:
        queries, keys = shown(queries, seen.queries), shown(keys, seen.keys)
        values = shown(values, seen.keys)
    return attend_checked(queries, keys, values, terms, scale, backend)


def assign(
    queries: Tensor,
    keys: Tensor,
    observations: Tensor,
    *,
    log_prior: LogPrior | None = None,
    scale: float = 1.0,
    backend: str = "auto",
) -> Assigned:
    """Average the observations of the queries by each key's responsibilities.

    With the responsibilities `w_ik` of `attend` (normalised over the keys),
    `log N_k = log sum_i w_ik` and `m_k = sum_i w_ik o_i / N_k`: the M step of a mixture whose
    means are the keys. The mean of a key is exact even where its mass underflows.

    Precision is as in `attend`.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        observations: `(B, G, N, V)`; the queries themselves for an update of the keys.
        log_prior: As in `attend`; nothing is read of the observation of a query that sees no key.
        scale: Factor of the dot products.
        backend: As in `attend`.

    Returns:
        The means `(B, G, M, V)` in the dtype of the arguments, and the log mass `(B, G, M)`
        in float32 (float64 for float64 arguments). A key that no query sees has a zero mean
        and log mass -inf. Both are differentiable. Errors are those of `attend`.
    """
    check_units(queries, keys, observations, payload_name="observations", payload_of="queries")
    terms = checked_terms(queries, keys, log_prior, scale)
    if (seen := visible(terms)) is not None:
        queries, keys = shown(queries, seen.queries), shown(keys, seen.keys)
        observations = shown(observations, seen.queries)
    return assign_checked(queries, keys, observations, terms, scale, backend)


def attend_checked(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    terms: Terms = (),
    scale: float = 1.0,
    backend: str = "auto",
) -> Attended:
    """Compute `attend` for arguments that are known to fit together, as in the loops of EM.

    The terms of the log prior are as `probseg.ops.checks.as_terms` returns them. A named backend
    may still refuse.
    """
    return Attended(*_call("attend", queries, keys, values, terms, scale, backend))


def assign_checked(
    queries: Tensor,
    keys: Tensor,
    observations: Tensor,
    terms: Terms = (),
    scale: float = 1.0,
    backend: str = "auto",
) -> Assigned:
    """Compute `assign` for arguments that are known to fit together; see `attend_checked`."""
    return Assigned(*_call("assign", queries, keys, observations, terms, scale, backend))


def _call(
    primitive: Primitive,
    queries: Tensor,
    keys: Tensor,
    payload: Tensor,
    terms: Terms,
    scale: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Find the backend and call it, half precision as float32 where it does not take it."""
    implementation = _find_backend(primitive, backend, queries, keys, payload, terms)
    dtype = queries.dtype
    if dtype in HALF and queries.device.type not in implementation.HALF_PRECISION:
        queries, keys, payload = queries.float(), keys.float(), payload.float()
    call = implementation.attend if primitive == "attend" else implementation.assign
    with full_precision(queries.device):
        averages, log_sums = call(queries, keys, payload, terms, scale)
    return averages.to(dtype), log_sums


def checked_terms(queries: Tensor, keys: Tensor, log_prior: LogPrior | None, scale: float) -> Terms:
    """Check the scale and the log prior of a call; return the terms for `attend_checked`."""
    if isinstance(scale, Tensor) or not math.isfinite(scale):
        raise ValueError(
            f"`scale` must be a finite number, got {scale!r}; multiply `queries` by a tensor "
            "instead"
        )
    return as_terms("log_prior", log_prior, queries, keys)


def _find_backend(
    primitive: Primitive,
    name: str,
    queries: Tensor,
    keys: Tensor,
    payload: Tensor,
    terms: tuple[Term, ...],
) -> Backend:
    if name == "auto":
        batch, heads, count = queries.shape[:3]
        pairs = batch * heads * count * keys.shape[-2]
        for implementation in preference(primitive, queries.device, pairs):
            if implementation.refuse(queries, keys, payload, terms) is None:
                return implementation
    if name not in BACKENDS:
        raise UnknownNameError(kind="backend", name=name, known=[*BACKENDS, "auto"])
    reason = BACKENDS[name].refuse(queries, keys, payload, terms)
    if reason is not None:
        able_names = [
            other
            for other, implementation in BACKENDS.items()
            if implementation.refuse(queries, keys, payload, terms) is None
        ]
        raise BackendError(
            f"`backend` {name!r} cannot serve this call of {primitive}, because {reason}; choose "
            f"one of {able_names}, or 'auto'"
        )
    return BACKENDS[name]
