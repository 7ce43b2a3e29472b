"""The two primitives of which every attention mechanism of this package is made.

Both share the logits ``S = scale Q Kᵀ + log_prior`` and their row softmax, the responsibilities
``w_ij`` of the keys (the units of a mixture) for the queries.
"""

from __future__ import annotations

from torch import Tensor

from probseg.errors import UnknownNameError
from probseg.ops.backends import reference
from probseg.ops.backends.interface import Assigned, Attended, Backend
from probseg.ops.checks import check_units, pairwise
from probseg.ops.numerics import full_precision, working_dtype

BACKENDS: dict[str, Backend] = {
    "reference": reference,
}


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    log_prior: Tensor | None = None,
    scale: float = 1.0,
    backend: str = "auto",
) -> Attended:
    """Average the values of the keys by each query's posterior over the keys.

    ``S_ij = scale q_i·k_j + log_prior_ij``, ``L_i = log sum_j exp S_ij`` and
    ``o_i = sum_j exp(S_ij - L_i) v_j``. Standard attention (Vaswani et al., 2017, Eq. 1) is
    ``scale=D**-0.5`` without a prior.

    Half-precision arguments are computed in float32, also under autocast.

    Args:
        queries: ``(B, G, N, D)``.
        keys: ``(B, G, M, D)``.
        values: ``(B, G, M, V)``.
        log_prior: Added to the logits: ``(M,)``, ``(N, M)``, ``(B, G, M)`` or ``(B, G, N, M)``;
            sizes may be 1, None is zero everywhere, -inf hides a key.
        scale: Factor of the dot products.
        backend: Name in ``BACKENDS``, or ``"auto"``.

    Returns:
        The values ``(B, G, N, V)`` in the dtype of the arguments, and the log evidence
        ``(B, G, N)`` in float32 (float64 for float64 arguments). A query that sees no key has
        zero values and log evidence -inf. Both are differentiable.
    """
    implementation = _find_backend(backend)
    check_units(queries, keys, values, payload_name="values", payload_of="keys")
    prior = None if log_prior is None else pairwise("log_prior", log_prior, queries, keys)
    dtype = working_dtype(queries.dtype)
    with full_precision(queries.device):
        attended = implementation.attend(
            queries.to(dtype),
            keys.to(dtype),
            values.to(dtype),
            None if prior is None else prior.to(dtype),
            scale,
        )
    return Attended(attended.values.to(queries.dtype), attended.log_evidence)


def assign(
    queries: Tensor,
    keys: Tensor,
    observations: Tensor,
    *,
    log_prior: Tensor | None = None,
    scale: float = 1.0,
    backend: str = "auto",
) -> Assigned:
    """Average the observations of the queries by each key's responsibilities.

    With the responsibilities ``w_ik`` of ``attend`` (normalised over the keys),
    ``log N_k = log sum_i w_ik`` and ``m_k = sum_i w_ik o_i / N_k``: the M step of a mixture whose
    means are the keys.

    Half-precision arguments are computed in float32, also under autocast.

    Args:
        queries: ``(B, G, N, D)``.
        keys: ``(B, G, M, D)``.
        observations: ``(B, G, N, V)``; the queries themselves for an update of the keys.
        log_prior: Added to the logits: ``(M,)``, ``(N, M)``, ``(B, G, M)`` or ``(B, G, N, M)``;
            sizes may be 1, None is zero everywhere, -inf hides a key.
        scale: Factor of the dot products.
        backend: Name in ``BACKENDS``, or ``"auto"``.

    Returns:
        The means ``(B, G, M, V)`` in the dtype of the arguments, and the log mass ``(B, G, M)``
        in float32 (float64 for float64 arguments). A key that no query sees has a zero mean
        and log mass -inf. Both are differentiable.
    """
    implementation = _find_backend(backend)
    check_units(queries, keys, observations, payload_name="observations", payload_of="queries")
    prior = None if log_prior is None else pairwise("log_prior", log_prior, queries, keys)
    dtype = working_dtype(queries.dtype)
    with full_precision(queries.device):
        assigned = implementation.assign(
            queries.to(dtype),
            keys.to(dtype),
            observations.to(dtype),
            None if prior is None else prior.to(dtype),
            scale,
        )
    return Assigned(assigned.means.to(queries.dtype), assigned.log_mass)


def _find_backend(name: str) -> Backend:
    if name == "auto":
        return BACKENDS["reference"]
    if name not in BACKENDS:
        raise UnknownNameError(kind="backend", name=name, known=[*BACKENDS, "auto"])
    return BACKENDS[name]
