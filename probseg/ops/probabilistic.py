"""Probabilistic attention: inference and adaptation in a mixture of Gaussians.

Value inference, key adaptation and value propagation of Gabbur, Bilkhu and Movellan, "Probabilistic
Attention for Interactive Segmentation", 2021. Each step is one of the two primitives: ``assign``
for the updates of the units, ``attend`` for the read-out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from probseg.errors import UnknownNameError
from probseg.ops.adaptation import KeyAdaptation, ValuePropagation, adapt_keys, propagate_values
from probseg.ops.attention import attend
from probseg.ops.checks import (
    as_precision,
    check_device,
    check_like,
    check_shape,
    check_units,
    pairwise,
)
from probseg.ops.mixture import (
    PRIOR_NAMES,
    Mixture,
    Precision,
    PriorName,
    has_value_likelihood,
    logits,
    prior_scores,
)
from probseg.ops.numerics import working_dtype


class ProbabilisticAttention(NamedTuple):
    """Result of ``probabilistic_attention``.

    Args:
        values: Inferred values of the queries, shape ``(B, G, N, V)``.
        keys: Key means after adaptation, shape ``(B, G, M, D)``.
        unit_values: Value means after propagation, shape ``(B, G, M, V)``.
        query_precision: ``alpha``, shape ``(B, G, M)``.
        value_precision: ``beta``, shape ``(B, G, M)``.
        log_prior: ``log pi`` of the read-out without the mask, shape ``(B, G, M)``, or
            ``(B, G, N, M)`` if it was given for pairs. The named priors are normalised over the
            units, a given one is not.
        log_evidence: ``log p_i(q)`` under the mixture of the read-out, shape ``(B, G, N)``, or
            ``log p_i(q, v)`` if its last iteration weighed by values ``v`` too; -inf for a query
            that sees no unit. The prior is not normalised again over the units that a mask leaves.
    """

    values: Tensor
    keys: Tensor
    unit_values: Tensor
    query_precision: Tensor
    value_precision: Tensor
    log_prior: Tensor
    log_evidence: Tensor


def probabilistic_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    query_precision: float | Tensor | None = None,
    value_precision: float | Tensor = 0.0,
    log_prior: PriorName | Tensor = "magnitude",
    log_mask: Tensor | None = None,
    value_iterations: int = 1,
    initial_values: Tensor | None = None,
    key_adaptation: KeyAdaptation | None = None,
    value_propagation: ValuePropagation | None = None,
    fixed_values: Tensor | None = None,
    fixed_mask: Tensor | None = None,
    clamp_fixed: bool = False,
    backend: str = "auto",
) -> ProbabilisticAttention:
    """Infer the most likely value of each query in a mixture of M units.

    First the keys adapt to the queries, then the fixed values propagate to the units' value means,
    then the values are read out: ``v <- sum_j w_ij beta_j mu_j / sum_j w_ij beta_j``, the plain
    mean for uniform ``beta``. The posterior ``w`` of the units is given the queries alone at first,
    and ``v`` too in later iterations (Gabbur et al., 2021, Eqs. 5, 30-32). It has both Gaussian
    normalisers, where Eq. 28 has ``beta_j`` instead; that is the same for uniform precisions.
    With all defaults this is standard scaled dot-product attention.

    Half-precision arguments are computed in float32, also under autocast.

    Args:
        queries: ``(B, G, N, D)``.
        keys: Key means of the units, ``(B, G, M, D)``.
        values: Value means of the units, ``(B, G, M, V)``.
        query_precision: ``alpha``: positive float, or positive tensor that broadcasts to
            ``(B, G, M)``; None is ``1 / sqrt(D)``.
        value_precision: ``beta``: float, or positive tensor that broadcasts to ``(B, G, M)``. The
            float 0 leaves the values without likelihood: one iteration is exact then.
        log_prior: ``log pi``. "magnitude" follows the keys and values (Eq. 10; it favours units
            with large values if ``beta > 0`` and no value is observed), "key_magnitude" has no
            value term, "uniform" is the same for all units; a tensor is held fixed: ``(M,)``,
            ``(N, M)``, ``(B, G, M)`` or ``(B, G, N, M)``.
        log_mask: Added to the log prior of any kind: 0 where a query sees a unit, -inf where it
            does not. ``(N, M)``, or any shape that ``log_prior`` may have.
        value_iterations: Number of EM iterations of the read-out.
        initial_values: Values that the first posterior is given, ``(B, G, N, V)``; None weighs by
            the queries alone, after value propagation too.
        key_adaptation: None leaves the keys as they are.
        value_propagation: None leaves the value means as they are. Only the fixed rows are
            observations, so that its cost grows with their number S and not with N.
        fixed_values: What the annotator said, ``(B, G, N, V)``; read only where ``fixed_mask``.
        fixed_mask: Where, bool, ``(B, N)``. The largest number in the batch is read on the host.
        clamp_fixed: Return ``fixed_values`` themselves where ``fixed_mask``.
        backend: Name in ``probseg.ops.attention.BACKENDS``, or ``"auto"``.

    Returns:
        The values and the mixture they were read from. Values and means have the dtype of the
        arguments; precisions, log prior and log evidence are float32 (float64 for float64).
    """
    check_units(queries, keys, values, payload_name="values", payload_of="keys")
    dtype = working_dtype(queries.dtype)
    if query_precision is None:
        query_precision = queries.shape[-1] ** -0.5
    mixture = Mixture(
        keys.to(dtype),
        values.to(dtype),
        as_precision("query_precision", query_precision, keys, zero=False),
        as_precision("value_precision", value_precision, keys, zero=True),
        _as_prior(log_prior, queries, keys),
        None if log_mask is None else pairwise("log_mask", log_mask, queries, keys).to(dtype),
    )
    if value_iterations < 1:
        msg = f"value_iterations must be at least 1 (the read-out itself), got {value_iterations}"
        raise ValueError(msg)
    if initial_values is not None:
        check_like("initial_values", initial_values, queries)
        shape = (*queries.shape[:-1], values.shape[-1])
        check_shape("initial_values", initial_values, shape, "(B, G, N, V)")
        initial_values = initial_values.to(dtype)
    fixed = _as_fixed(fixed_values, fixed_mask, queries, values)
    if fixed is None and (value_propagation is not None or clamp_fixed):
        msg = "value_propagation and clamp_fixed need fixed_values and fixed_mask, got None"
        raise ValueError(msg)
    if fixed is not None and value_propagation is None and not clamp_fixed:
        msg = (
            "fixed_values have no effect without value_propagation or clamp_fixed=True; set one of "
            "them or leave fixed_values and fixed_mask out"
        )
        raise ValueError(msg)
    if value_propagation is not None and not has_value_likelihood(mixture):
        msg = (
            "value_propagation needs a value_precision above 0, got 0: without a value likelihood "
            "nothing propagates (Gabbur et al., 2021, use 0.1)"
        )
        raise ValueError(msg)

    # Autocast lowers products only, and all products are in the primitives, which switch it off.
    tokens = queries.to(dtype)
    if key_adaptation is not None:
        mixture = adapt_keys(mixture, tokens, key_adaptation, backend)
    if value_propagation is not None and fixed is not None:
        mixture = propagate_values(mixture, tokens, *fixed, value_propagation, backend)
    inferred, log_evidence = _infer_values(
        mixture, tokens, initial_values, value_iterations, backend
    )
    if clamp_fixed and fixed is not None:
        inferred = fixed[0].where(fixed[1][:, None, :, None], inferred)
    final_prior, log_normaliser = _final_prior(mixture)
    units = keys.shape[:-1]  # (B, G, M)
    return ProbabilisticAttention(
        inferred.to(queries.dtype),
        mixture.keys.to(queries.dtype),
        mixture.values.to(queries.dtype),
        torch.as_tensor(mixture.query_precision, dtype=dtype, device=keys.device).expand(units),
        torch.as_tensor(mixture.value_precision, dtype=dtype, device=keys.device).expand(units),
        final_prior,
        log_evidence - log_normaliser,
    )


def _infer_values(
    mixture: Mixture, queries: Tensor, observed: Tensor | None, iterations: int, backend: str
) -> tuple[Tensor, Tensor]:
    """Read out the values ``(B, G, N, V)`` and the log evidence ``(B, G, N)`` (Eqs. 30-32)."""
    beta = mixture.value_precision
    units = mixture.values
    per_unit = isinstance(beta, Tensor) and beta.shape[-1] > 1
    if isinstance(beta, Tensor) and per_unit:
        # sum_j w_j beta_j mu_j / sum_j w_j beta_j needs both sums; relative to the largest beta,
        # because a common factor cancels.
        weight = (beta / beta.amax(-1, keepdim=True)).unsqueeze(-1)  # (B, G, M, 1), sizes may be 1
        weight = weight.expand(*units.shape[:-1], 1)
        units = torch.cat([weight * units, weight], dim=-1)  # (B, G, M, V + 1)
    if not has_value_likelihood(mixture):
        iterations = 1
    for _ in range(iterations):
        joint = logits(mixture, queries, observed)
        attended = attend(
            joint.queries,
            joint.keys,
            units,
            log_prior=joint.log_prior,
            scale=joint.scale,
            backend=backend,
        )
        inferred = attended.values  # (B, G, N, V)
        if per_unit:
            total = inferred[..., -1:]  # (B, G, N, 1)
            inferred = inferred[..., :-1] / total.where(total > 0.0, 1.0)
        observed = inferred
    return inferred, attended.log_evidence + joint.offset


def _final_prior(mixture: Mixture) -> tuple[Tensor, Precision]:
    """Return ``log pi`` and the log normaliser, ``(B, G, 1)``, which the logits left out."""
    prior = mixture.log_prior
    if isinstance(prior, Tensor):
        sizes = (*mixture.keys.shape[:2], *prior.shape[-2:-1], mixture.keys.shape[-2])
        expanded = prior.expand(sizes)  # (B, G, N, M); N is 1 if it was given per unit
        return expanded.squeeze(-2) if prior.shape[-2] == 1 else expanded, 0.0
    scores = prior_scores(mixture)  # (B, G, M)
    log_normaliser = scores.logsumexp(-1, keepdim=True)
    return scores - log_normaliser, log_normaliser


def _as_prior(prior: PriorName | Tensor, queries: Tensor, keys: Tensor) -> PriorName | Tensor:
    if isinstance(prior, Tensor):
        return pairwise("log_prior", prior, queries, keys).to(working_dtype(queries.dtype))
    if prior not in PRIOR_NAMES:
        raise UnknownNameError(kind="log prior", name=prior, known=PRIOR_NAMES)
    return prior


def _as_fixed(
    fixed_values: Tensor | None, fixed_mask: Tensor | None, queries: Tensor, values: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Check the fixed values and their mask."""
    if fixed_values is None and fixed_mask is None:
        return None
    if fixed_values is None or fixed_mask is None:
        msg = "fixed_values and fixed_mask belong together, got one without the other"
        raise ValueError(msg)
    check_like("fixed_values", fixed_values, queries)
    shape = (*queries.shape[:-1], values.shape[-1])
    check_shape("fixed_values", fixed_values, shape, "(B, G, N, V)")
    check_device("fixed_mask", fixed_mask, queries.device)
    check_shape("fixed_mask", fixed_mask, (queries.shape[0], queries.shape[2]), "(B, N)")
    if fixed_mask.dtype != torch.bool:
        msg = f"fixed_mask must be bool, got {fixed_mask.dtype}; compare it, e.g. mask > 0"
        raise TypeError(msg)
    # Elsewhere the values may be anything, NaN too, and padding of the clicked rows reads them.
    read = fixed_values.where(fixed_mask[:, None, :, None], 0.0)  # (B, G, N, V)
    return read.to(working_dtype(queries.dtype)), fixed_mask
