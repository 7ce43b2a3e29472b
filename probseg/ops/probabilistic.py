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
from probseg.ops.adaptation import adapt_keys, propagate_values
from probseg.ops.attention import LogPrior, attend_checked
from probseg.ops.backends.interface import Attended, Terms
from probseg.ops.checks import (
    as_precision,
    as_terms,
    check_device,
    check_like,
    check_shape,
    check_units,
)
from probseg.ops.mixture import (
    PRIOR_NAMES,
    Mixture,
    Precision,
    PriorName,
    fixed_terms,
    has_value_likelihood,
    logits,
    prior_scores,
)
from probseg.ops.numerics import full_precision, product_dtype, working_dtype
from probseg.ops.relative_position import RelativePosition, check_position
from probseg.ops.updates import KeyAdaptation, ValuePropagation, check_update


class ProbabilisticAttention(NamedTuple):
    """Result of ``probabilistic_attention``.

    Args:
        values: Inferred values of the queries, shape ``(B, G, N, V)``.
        keys: Key means after adaptation, shape ``(B, G, M, D)``.
        unit_values: Value means after propagation, shape ``(B, G, M, V)``.
        query_precision: ``alpha``, shape ``(B, G, M)``.
        value_precision: ``beta``, shape ``(B, G, M)``.
        log_prior: ``log pi`` of the read-out without the mask, shape ``(B, G, M)`` or, if it was
            given for pairs, ``(B, G, N, M)``; a ``PairwisePrior`` or several terms as they were
            given. The named priors are normalised over the units, a given one is not. The share of
            position embeddings in the prior is left out.
        log_evidence: ``log p_i(q)`` under the mixture of the read-out, shape ``(B, G, N)``, or
            ``log p_i(q, v)`` if its last iteration weighed by values ``v`` too; -inf for a query
            that sees no unit. The prior is not normalised again over the units that a mask leaves,
            nor with what position embeddings add to it.
    """

    values: Tensor
    keys: Tensor
    unit_values: Tensor
    query_precision: Tensor
    value_precision: Tensor
    log_prior: Tensor | Terms
    log_evidence: Tensor


def probabilistic_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    query_precision: float | Tensor | None = None,
    value_precision: float | Tensor = 0.0,
    log_prior: PriorName | LogPrior = "magnitude",
    log_mask: LogPrior | None = None,
    value_iterations: int = 1,
    initial_values: Tensor | None = None,
    key_adaptation: KeyAdaptation | None = None,
    value_propagation: ValuePropagation | None = None,
    fixed_values: Tensor | None = None,
    fixed_mask: Tensor | None = None,
    clamp_fixed: bool = False,
    position: RelativePosition | None = None,
    backend: str = "auto",
) -> ProbabilisticAttention:
    """Infer the most likely value of each query in a mixture of M units.

    First the keys adapt to the queries, then the fixed values propagate to the units' value means,
    then the values are read out: ``v <- sum_j w_ij beta_j mu_j / sum_j w_ij beta_j``, the plain
    mean for uniform ``beta``. The posterior ``w`` of the units is given the queries alone at first,
    and ``v`` too in later iterations (Gabbur et al., 2021, Eqs. 5, 30-32). It has both Gaussian
    normalisers, where Eq. 28 has ``beta_j`` instead; that is the same for uniform precisions.
    With all defaults this is standard scaled dot-product attention.

    Precision is as in ``attend``: half precision is used for nothing but products, on CUDA.

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
            value term, "uniform" is the same for all units. A tensor is held fixed: ``(M,)``,
            ``(N, M)``, ``(B, G, M)`` or ``(B, G, N, M)``; so is a ``PairwisePrior`` such as
            ``DistancePrior``, which is never written out, and a tuple of both kinds. While keys or
            values move, EM never lowers the posterior under a fixed prior; under a named one that
            moves along, as in the paper's experiments, it may.
        log_mask: Added to the log prior of any kind: 0 where a query sees a unit, -inf where it
            does not. ``(N, M)``, or anything that ``log_prior`` may be.
        value_iterations: Number of EM iterations of the read-out.
        initial_values: Values that the first posterior is given, ``(B, G, N, V)``; None weighs by
            the queries alone, after value propagation too. Without a value precision they say
            nothing about the units.
        key_adaptation: None leaves the keys and their precisions as they are.
        value_propagation: None leaves the value means as they are. Only the fixed rows are
            observations, so that its cost grows with their number S and not with N.
        fixed_values: What the annotator said, ``(B, G, N, V)``; read only where ``fixed_mask``.
        fixed_mask: Where, bool, ``(B, N)``. The largest number in the batch is read on the host.
        clamp_fixed: Return ``fixed_values`` themselves where ``fixed_mask``.
        position: Relative position embeddings in the likelihood and the prior (Eqs. 25-26), for
            tokens that are both queries and units of a map, and a prior that follows the keys. The
            M step of the keys stays that of Eq. 18.
        backend: As in ``attend``, for the passes over all pairs.

    Returns:
        The values and the mixture they were read from. Values and means have the dtype of the
        arguments; precisions, log prior and log evidence are float32 (float64 for float64).

    Raises:
        ValueError: If a shape, a range or a combination of arguments is wrong.
        TypeError: If a dtype is wrong.
        UnknownNameError: If a prior or a backend of this name does not exist.
        BackendError: If the named backend cannot serve these arguments.
    """
    mixture, tokens, initial_values = _as_mixture(
        queries,
        keys,
        values,
        query_precision,
        value_precision,
        log_prior,
        log_mask,
        initial_values,
        position,
    )
    if value_iterations < 1:
        msg = f"value_iterations must be at least 1 (the read-out itself), got {value_iterations}"
        raise ValueError(msg)
    if key_adaptation is not None:
        key_adaptation = check_update(key_adaptation, keys)
    if value_propagation is not None:
        value_propagation = check_update(value_propagation, keys)
    fixed = _as_fixed(fixed_values, fixed_mask, queries, values)
    _check_fixed(fixed is not None, clamp_fixed, value_propagation, mixture)

    with full_precision(queries.device):
        if key_adaptation is not None:
            mixture = adapt_keys(mixture, tokens, key_adaptation, backend)
        if value_propagation is not None and fixed is not None:
            mixture = propagate_values(mixture, tokens, *fixed, value_propagation, backend)
        inferred = _infer_values(mixture, tokens, initial_values, value_iterations, backend)
    if clamp_fixed and fixed is not None:
        clamped = fixed[0].where(fixed[1][:, None, :, None], inferred.values)
        inferred = inferred._replace(values=clamped)
    return _result(inferred, mixture, queries.dtype)


def _as_mixture(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_precision: float | Tensor | None,
    value_precision: float | Tensor,
    log_prior: PriorName | LogPrior,
    log_mask: LogPrior | None,
    initial_values: Tensor | None,
    position: RelativePosition | None,
) -> tuple[Mixture, Tensor, Tensor | None]:
    """Check arguments of `probabilistic_attention`; return mixture, queries and initial values.

    All in the working dtype.
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
        as_terms("log_mask", log_mask, queries, keys),
        None if position is None else position.to(dtype),
        product_dtype(queries),
    )
    if keys.shape[-2] == 0:
        msg = "keys must be at least one unit, got none: nothing explains the queries"
        raise ValueError(msg)
    if initial_values is not None:
        check_like("initial_values", initial_values, queries)
        shape = (*queries.shape[:-1], values.shape[-1])
        check_shape("initial_values", initial_values, shape, "(B, G, N, V)")
        initial_values = initial_values.to(dtype)
    if position is not None:
        check_position(position, queries, keys)
        if log_prior not in ("magnitude", "key_magnitude"):
            msg = (
                "position embeddings are half of a prior that follows the keys (Eq. 26): log_prior "
                f"must be 'magnitude' or 'key_magnitude' with them, got {_in_words(log_prior)}"
            )
            raise ValueError(msg)
    return mixture, queries.to(dtype), initial_values


def _result(inferred: Attended, mixture: Mixture, dtype: torch.dtype) -> ProbabilisticAttention:
    """Return what was inferred and the mixture, values and means in the dtype of the arguments."""
    final_prior, log_normaliser = _final_prior(mixture)
    units = mixture.keys.shape[:-1]  # (B, G, M)
    alpha, beta = (
        torch.as_tensor(precision, dtype=mixture.keys.dtype, device=mixture.keys.device)
        for precision in (mixture.query_precision, mixture.value_precision)
    )
    return ProbabilisticAttention(
        inferred.values.to(dtype),
        mixture.keys.to(dtype),
        mixture.values.to(dtype),
        alpha.expand(units),
        beta.expand(units),
        final_prior,
        inferred.log_evidence - log_normaliser,
    )


def _infer_values(
    mixture: Mixture, queries: Tensor, observed: Tensor | None, iterations: int, backend: str
) -> Attended:
    """Read out the values ``(B, G, N, V)`` and the log evidence ``(B, G, N)`` (Eqs. 30-32)."""
    beta = mixture.value_precision
    units = mixture.values
    per_unit = isinstance(beta, Tensor) and beta.shape[-1] > 1
    if isinstance(beta, Tensor) and per_unit:
        # sum_j w_j beta_j mu_j / sum_j w_j beta_j needs both sums; relative to the largest beta,
        # because a common factor cancels.
        largest = beta.amax(-1, keepdim=True)
        weight = (beta / largest.where(largest > 0.0, 1.0)).where(largest > 0.0, 1.0)
        weight = weight.unsqueeze(-1)  # (B, G, M, 1), sizes may be 1
        weight = weight.expand(*units.shape[:-1], 1)
        units = torch.cat([weight * units, weight], dim=-1)  # (B, G, M, V + 1)
    if not has_value_likelihood(mixture):
        iterations = 1
    for _ in range(iterations):
        joint = logits(mixture, queries, observed)
        attended = attend_checked(
            joint.queries,
            joint.keys,
            units.to(joint.queries.dtype),
            joint.log_prior,
            joint.scale,
            backend,
        )
        inferred = attended.values.to(units.dtype)  # (B, G, N, V)
        if per_unit:
            total = inferred[..., -1:]  # (B, G, N, 1)
            inferred = inferred[..., :-1] / total.where(total > 0.0, 1.0)
        observed = inferred
    return Attended(inferred, attended.log_evidence + joint.offset)


def _final_prior(mixture: Mixture) -> tuple[Tensor | Terms, Precision]:
    """Return ``log pi`` and the log normaliser, ``(B, G, 1)``, which the logits left out."""
    terms = fixed_terms(mixture)
    if isinstance(mixture.log_prior, str):
        scores = prior_scores(mixture)  # (B, G, M)
        log_normaliser = scores.logsumexp(-1, keepdim=True)
        return scores - log_normaliser, log_normaliser
    if len(terms) != 1 or not isinstance(terms[0], Tensor):
        return terms, 0.0
    prior = terms[0]
    sizes = (*mixture.keys.shape[:2], *prior.shape[-2:-1], mixture.keys.shape[-2])
    expanded = prior.expand(sizes)  # (B, G, N, M); N is 1 if it was given per unit
    return expanded.squeeze(-2) if prior.shape[-2] == 1 else expanded, 0.0


def _as_prior(prior: PriorName | LogPrior, queries: Tensor, keys: Tensor) -> PriorName | Terms:
    if prior is None:
        msg = f"log_prior must be one of {PRIOR_NAMES} or a tensor, got None; see 'uniform'"
        raise TypeError(msg)
    if not isinstance(prior, str):
        return as_terms("log_prior", prior, queries, keys)
    if prior not in PRIOR_NAMES:
        raise UnknownNameError(kind="log prior", name=prior, known=PRIOR_NAMES)
    return prior


def _in_words(prior: PriorName | LogPrior) -> str:
    return repr(prior) if isinstance(prior, str) else f"a {type(prior).__name__}"


def _check_fixed(
    given: bool, clamp_fixed: bool, update: ValuePropagation | None, mixture: Mixture
) -> None:
    """Check that the fixed values and what is to be done with them belong together."""
    if not given and (update is not None or clamp_fixed):
        msg = "value_propagation and clamp_fixed need fixed_values and fixed_mask, got None"
        raise ValueError(msg)
    if given and update is None and not clamp_fixed:
        msg = (
            "fixed_values have no effect without value_propagation or clamp_fixed=True; set one of "
            "them or leave fixed_values and fixed_mask out"
        )
        raise ValueError(msg)
    if update is not None and not has_value_likelihood(mixture):
        msg = (
            "value_propagation needs a value_precision above 0, got 0: without a value likelihood "
            "nothing propagates (Gabbur et al., 2021, use 0.1)"
        )
        raise ValueError(msg)
    if update is not None and update.dirichlet_prior is not None and mixture.position is not None:
        msg = (
            "dirichlet_prior updates a prior that position embeddings tie to the keys (Eq. 26); "
            "leave one of them out"
        )
        raise ValueError(msg)


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
