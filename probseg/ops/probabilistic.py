"""Probabilistic attention: inference and adaptation in a mixture of Gaussians.

Value inference, key adaptation and value propagation of Gabbur, Bilkhu and Movellan, "Probabilistic
Attention for Interactive Segmentation", 2021. Each step is one of the two primitives: `assign`
for the updates of the units, `attend` for the read-out.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from probseg.ops.adaptation import adapt_keys, propagate_values
from probseg.ops.attention import LogPrior, attend_checked, shown, visible
from probseg.ops.backends.interface import Terms
from probseg.ops.checks import (
    as_precision,
    as_terms,
    check_bool,
    check_like,
    check_shape,
    check_units,
)
from probseg.ops.mixture import (
    Mixture,
    Precision,
    PriorName,
    has_value_likelihood,
    log_constant,
    logits,
    visible_scores,
)
from probseg.ops.numerics import full_precision, product_dtype, working_dtype
from probseg.ops.position import RelativePosition, check_position
from probseg.ops.settings import (
    NO_KEY_ADAPTATION,
    NO_VALUE_PROPAGATION,
    InferenceSettings,
    KeyAdaptation,
    ValuePropagation,
    with_checked_tensors,
)


class ProbabilisticAttention(NamedTuple):
    """Result of `probabilistic_attention`.

    Args:
        values: Inferred values of the queries, shape `(B, G, N, V)`.
        keys: Key means after adaptation, shape `(B, G, M, D)`.
        unit_values: Value means after propagation, shape `(B, G, M, V)`.
        query_precision: `alpha`, shape `(B, G, M)`.
        value_precision: `beta`, shape `(B, G, M)`.
        log_prior: `log pi` of the read-out without the mask, shape `(B, G, M)` or, if it was
            given for pairs, `(B, G, N, M)`; a `PairwisePrior` or several terms as they were
            given. The named priors are normalised over the units, a given one is not. The share of
            position embeddings in the prior is left out, but for its normaliser `alpha_j^(D/2)`.
        log_evidence: `log p_i(q)` under the mixture of the read-out, shape `(B, G, N)`, or
            `log p_i(q, v)` if its last iteration weighed by values `v` too; -inf for a query
            that sees no unit. A named prior is normalised over the units that any query sees, not
            again for each query, nor with the share of position embeddings.
    """

    values: Tensor
    keys: Tensor
    unit_values: Tensor
    query_precision: Tensor
    value_precision: Tensor
    log_prior: Tensor | Terms
    log_evidence: Tensor


class Inferred(NamedTuple):
    """Result of `infer`, in the working dtype."""

    values: Tensor  # (B, G, N, V)
    log_evidence: Tensor  # (B, G, N), without log_constant and the normaliser of a named prior
    observed: Tensor | None  # values that the last posterior was conditioned on, (B, G, N, V)
    mixture: Mixture  # of the read-out


def probabilistic_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    query_precision: float | Tensor | None = None,
    value_precision: float | Tensor = 0.0,
    log_prior: PriorName | LogPrior = "magnitude",
    log_mask: LogPrior | None = None,
    query_mask: Tensor | None = None,
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

    First the keys adapt to the queries, with responsibilities given the queries alone even where
    there are `initial_values`; then the fixed values propagate to the units' value means; then
    the values are read out: `v <- sum_j w_ij beta_j mu_j / sum_j w_ij beta_j`, the plain mean for
    uniform `beta`. The posterior `w` of the units is given the queries alone at first,
    and `v` too in later iterations (Gabbur et al., 2021, Eqs. 5, 30-32). It has both Gaussian
    normalisers, where Eq. 28 has `beta_j` instead; that is the same for uniform precisions.
    With all defaults this is standard scaled dot-product attention.

    Precision is as in `attend`: half precision is used for nothing but products, on CUDA.

    Args:
        queries: `(B, G, N, D)`.
        keys: Key means of the units, `(B, G, M, D)`.
        values: Value means of the units, `(B, G, M, V)`.
        query_precision: `alpha`: positive float, or positive tensor that broadcasts to
            `(B, G, M)`; None is `1 / sqrt(D)`.
        value_precision: `beta`: float, or positive tensor that broadcasts to `(B, G, M)`. The
            float 0 leaves the values without likelihood: one iteration is exact then.
        log_prior: `log pi`. "magnitude" follows the keys and values (Eq. 10; it favours units
            with large values if `beta > 0` and no value is observed), "key_magnitude" has no
            value term, "uniform" is the same for all units. A tensor is held fixed: `(M,)`,
            `(N, M)`, `(B, G, M)` or `(B, G, N, M)`; so is a `PairwisePrior` such as
            `DistancePrior`, which is never written out, and a tuple of both kinds. While keys or
            values move, EM never lowers the posterior under a fixed prior; under a named one that
            moves along, as in the paper's experiments, it may.
        log_mask: Added to the log prior of any kind: 0 where a query sees a unit, -inf where it
            does not. `(N, M)`, or anything that `log_prior` may be. Of the means of a unit that
            tensors hide from all queries nothing is read, as in `attend`: the others get what they
            get without it. It comes back with the means that it was given and, under a named
            prior, a log prior of -inf. Keys that adapt gather from all queries that see them, as
            values that propagate do: a causal mask, under which the past would read what a key has
            of the future, is refused there. A mask of padded units leaves padded queries, which
            move the keys: hide these by `query_mask`.
        query_mask: True for the queries that take part, bool, `(B, N)`: the others move no unit,
            whatever they hold, and get values of 0. In self-attention, padding needs it and the
            `log_mask` of the padded units. Calls with it are not searched for causal masks.
        value_iterations: Number of EM iterations of the read-out.
        initial_values: Values that the first posterior is given, `(B, G, N, V)`; None weighs by
            the queries alone, after value propagation too. Without a value precision they have no
            effect.
        key_adaptation: None leaves the keys and their precisions as they are.
        value_propagation: None leaves the value means as they are. Only the fixed rows are
            observations, so that its cost grows with their number S and not with N.
        fixed_values: Observed values, `(B, G, N, V)`; read only where `fixed_mask`.
        fixed_mask: Where values are fixed, bool, `(B, N)`. The largest number of them in the
            batch is read on the host.
        clamp_fixed: Return `fixed_values` themselves where `fixed_mask`.
        position: Relative position embeddings in the likelihood and the prior (Eqs. 25-26), for
            tokens that are both queries and units of a map, and a prior that follows the keys. The
            M step of the keys stays that of Eq. 18.
        backend: As in `attend`, for the passes over all pairs.

    Returns:
        The values and the mixture they were read from. Values and means have the dtype of the
        arguments; precisions, log prior and log evidence are float32 (float64 for float64).

    Raises:
        ValueError: If a shape, a range or a combination of arguments is wrong.
        TypeError: If a dtype is wrong.
        UnknownNameError: If a prior or a backend of this name does not exist.
        BackendError: If the named backend cannot serve these arguments.
    """
    settings = InferenceSettings(
        query_precision=query_precision,
        value_precision=value_precision,
        log_prior=log_prior,
        value_iterations=value_iterations,
        key_adaptation=key_adaptation or NO_KEY_ADAPTATION,
        value_propagation=value_propagation or NO_VALUE_PROPAGATION,
        clamp_fixed=clamp_fixed,
        backend=backend,
    )
    check_units(queries, keys, values, payload_name="values", payload_of="keys")
    if fixed_values is None and fixed_mask is None and (settings.propagates or clamp_fixed):
        raise ValueError(
            "`fixed_values` and `fixed_mask` must be given for `value_propagation` and "
            "`clamp_fixed`"
        )
    fixed = as_fixed(fixed_values, fixed_mask, queries, values)
    if fixed is not None and value_propagation is None and not clamp_fixed:
        raise ValueError(
            "`fixed_values` have no effect without `value_propagation` or clamp_fixed=True; set "
            "one of them or leave `fixed_values` and `fixed_mask` out"
        )
    if initial_values is not None:
        check_like("initial_values", initial_values, queries)
        shape = (*queries.shape[:-1], values.shape[-1])
        check_shape("initial_values", initial_values, shape, "(B, G, N, V)")
    mask = as_terms("log_mask", log_mask, queries, keys)
    prior = () if isinstance(log_prior, str) else as_terms("log_prior", log_prior, queries, keys)
    if query_mask is not None:
        check_bool("query_mask", query_mask, queries)
        hidden = torch.zeros_like(query_mask, dtype=working_dtype(queries.dtype))
        mask = (*mask, hidden.masked_fill(~query_mask, -math.inf)[:, None, :, None])
        fixed = None if fixed is None else (fixed[0], fixed[1] & query_mask)
    elif settings.key_adaptation.iterations > 0 or fixed is not None:
        refuse_causal((*prior, *mask), queries, keys)
    hidden_means = keys, values
    if (seen := visible((*prior, *mask))) is not None:
        queries, keys = shown(queries, seen.queries), shown(keys, seen.keys)
        values = shown(values, seen.keys)
        if initial_values is not None:
            initial_values = shown(initial_values, seen.queries)
    inferred = infer(
        queries,
        keys,
        values,
        settings,
        log_mask=mask,
        initial_values=initial_values,
        fixed=fixed,
        position=position,
    )
    result = _result(inferred, queries)
    if seen is None:
        return result
    return result._replace(
        keys=result.keys.where(seen.keys, hidden_means[0]),
        unit_values=result.unit_values.where(seen.keys, hidden_means[1]),
    )


def infer(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    settings: InferenceSettings,
    *,
    log_mask: Terms = (),
    initial_values: Tensor | None = None,
    fixed: tuple[Tensor, Tensor] | None = None,
    position: RelativePosition | None = None,
) -> Inferred:
    """Compute `probabilistic_attention` for tokens and units that are known to fit together.

    The settings are checked here, with the position, against the units. `log_mask` has terms as of
    `probseg.ops.checks.as_terms`; `fixed` is as of `as_fixed`, and None propagates nothing.
    """
    if keys.shape[-2] == 0:
        raise ValueError("`keys` must be at least one unit, got none: nothing explains the queries")
    if position is not None:
        _check_position(position, settings, queries, keys)
    mixture = build_mixture(queries, keys, values, settings, log_mask, position)
    key_adaptation = with_checked_tensors("KeyAdaptation", settings.key_adaptation, keys)
    value_propagation = settings.value_propagation
    if fixed is not None:
        value_propagation = with_checked_tensors("ValuePropagation", value_propagation, keys)
    tokens = queries.to(mixture.keys.dtype)
    if initial_values is not None:
        initial_values = initial_values.to(mixture.keys.dtype)
    backend = settings.backend
    with full_precision(queries.device):
        mixture = adapt_keys(mixture, tokens, key_adaptation, backend)
        if fixed is not None:
            mixture = propagate_values(mixture, tokens, *fixed, value_propagation)
        iterations = settings.value_iterations
        inferred = _infer_values(mixture, tokens, initial_values, iterations, backend)
    if settings.clamp_fixed and fixed is not None:
        clamped = fixed[0].where(fixed[1][:, None, :, None], inferred.values)
        inferred = inferred._replace(values=clamped)
    return inferred


def build_mixture(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    settings: InferenceSettings,
    log_mask: Terms = (),
    position: RelativePosition | None = None,
) -> Mixture:
    """Build the mixture before adaptation, in the working dtype; for arguments see `infer`."""
    alpha, prior = settings.query_precision, settings.log_prior
    named, terms = (prior, ()) if isinstance(prior, str) else (None, prior)
    if alpha is None:
        alpha = queries.shape[-1] ** -0.5
    dtype = working_dtype(queries.dtype)
    return Mixture(
        keys.to(dtype),
        values.to(dtype),
        as_precision("query_precision", alpha, keys, zero=False),
        as_precision("value_precision", settings.value_precision, keys, zero=True),
        named,
        as_terms("log_prior", terms, queries, keys),
        log_mask,
        None if position is None else position.to(dtype),
        product_dtype(queries),
    )


def as_fixed(
    fixed_values: Tensor | None, fixed_mask: Tensor | None, queries: Tensor, values: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Check fixed values and their mask; return them, the values in the working dtype."""
    if fixed_values is None and fixed_mask is None:
        return None
    if fixed_values is None or fixed_mask is None:
        raise ValueError(
            "`fixed_values` and `fixed_mask` belong together, got one without the other"
        )
    check_like("fixed_values", fixed_values, queries)
    shape = (*queries.shape[:-1], values.shape[-1])
    check_shape("fixed_values", fixed_values, shape, "(B, G, N, V)")
    check_bool("fixed_mask", fixed_mask, queries)
    return fixed_values.to(working_dtype(queries.dtype)), fixed_mask


def refuse_causal(terms: Terms, queries: Tensor, keys: Tensor) -> None:
    """Refuse causal masks, also of blocks, windows and padded sequences: units carry the rest.

    Among the tokens that see themselves, others see them from one side only. A graph that is being
    recorded cannot ask for values.
    """
    count, recorded = keys.shape[-2], torch.compiler.is_compiling() or keys.is_meta
    tensors = [term for term in terms if isinstance(term, Tensor)]
    if recorded or queries.shape[-2] != count or all(term.shape[-2] == 1 for term in tensors):
        return
    sees = functools.reduce(torch.logical_and, [term != -math.inf for term in tensors])
    sees = sees.expand(*sees.shape[:2], count, count)
    alive = sees.diagonal(dim1=-2, dim2=-1)
    one_way = sees & ~sees.mT & alive.unsqueeze(-1) & alive.unsqueeze(-2)
    if bool(one_way.any()) and bool(one_way.tril().any() != one_way.triu().any()):
        raise ValueError(
            "`log_mask` must not be causal where keys adapt or values propagate: a unit gathers "
            "from all queries that see it, and the past would read it with what it has of the "
            "future. Leave `key_adaptation` and `fixed_values` out; or, if queries and units are "
            "different tokens, pass `query_mask`, all True"
        )


def _check_position(
    position: RelativePosition, settings: InferenceSettings, queries: Tensor, keys: Tensor
) -> None:
    """Check position embeddings against the map and the prior, which follows keys (Eq. 26)."""
    check_position(position, queries, keys)
    prior = settings.log_prior
    if prior not in ("magnitude", "key_magnitude"):
        raise ValueError(
            "`log_prior` must be 'magnitude' or 'key_magnitude' with position embeddings, which "
            "are half of a prior that follows the keys (Eq. 26), got "
            f"{prior if isinstance(prior, str) else type(prior).__name__!r}"
        )
    if settings.value_propagation.dirichlet_prior is not None:
        raise ValueError(
            "`dirichlet_prior` updates a prior that position embeddings tie to the keys (Eq. 26); "
            "leave one of them out"
        )


def _result(inferred: Inferred, queries: Tensor) -> ProbabilisticAttention:
    """Return the result, values and means in the dtype of the queries."""
    mixture, dtype = inferred.mixture, queries.dtype
    final_prior, log_normaliser = _final_prior(mixture)
    with full_precision(queries.device):
        tokens = queries.to(mixture.keys.dtype)
        log_constants = log_constant(mixture, tokens, inferred.observed) - log_normaliser
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
        inferred.log_evidence + log_constants,
    )


def _infer_values(
    mixture: Mixture, queries: Tensor, observed: Tensor | None, iterations: int, backend: str
) -> Inferred:
    """Read out the values `(B, G, N, V)` and the log evidence `(B, G, N)` (Eqs. 30-32)."""
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
    if iterations > 1 and not has_value_likelihood(mixture):
        iterations = 1
    while True:
        joint = logits(mixture, queries, observed)
        payload = units.to(joint.queries.dtype)
        attended = attend_checked(*joint[:2], payload, *joint[2:], backend)
        inferred = attended.values.to(units.dtype)  # (B, G, N, V)
        if per_unit:
            total = inferred[..., -1:]  # (B, G, N, 1)
            inferred = inferred[..., :-1] / total.where(total > 0.0, 1.0)
        iterations -= 1
        if iterations <= 0:
            return Inferred(inferred, attended.log_evidence, observed, mixture)
        observed = inferred


def _final_prior(mixture: Mixture) -> tuple[Tensor | Terms, Precision]:
    """Return `log pi` and the log normaliser, `(B, G, 1)`, which the logits left out."""
    if mixture.prior is not None:
        scores = visible_scores(mixture)  # (B, G, M)
        log_normaliser = scores.logsumexp(-1, keepdim=True)
        return scores - log_normaliser, log_normaliser
    terms = mixture.log_prior
    if len(terms) != 1 or not isinstance(terms[0], Tensor):
        return terms, 0.0
    prior = terms[0]
    sizes = (*mixture.keys.shape[:2], *prior.shape[-2:-1], mixture.keys.shape[-2])
    expanded = prior.expand(sizes)  # (B, G, N, M); N is 1 if it was given per unit
    return expanded.squeeze(-2) if prior.shape[-2] == 1 else expanded, 0.0
