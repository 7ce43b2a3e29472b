"""The mixture of Gaussians behind probabilistic attention, and its log joint as a dot product.

Unit j has a prior `pi_ij`, a key mean `xi_j` with precision `alpha_j` and a value mean
`mu_j` with precision `beta_j` (Gabbur et al., 2021, Eqs. 7-9)::

    log p_i(q, v, u_j) = log pi_ij + D/2 log(alpha_j / 2pi) - alpha_j/2 |q - xi_j|²
                                   + V/2 log(beta_j / 2pi) - beta_j/2 |v - mu_j|²

Expanding the squares gives `scale queries·keys + log_prior` with a few more channels, the arguments
of `attend` and `assign`, and `log_constant`, the same for all units.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from probseg.ops.attention import visible
from probseg.ops.backends.interface import Terms
from probseg.ops.position import FactoredPosition, FullPosition, RelativePosition

Precision = float | Tensor
"""A float, or a tensor that broadcasts to `(B, G, M)`, of last size 1 if the units share it."""

PriorName = Literal["magnitude", "key_magnitude", "uniform"]
PRIOR_NAMES: tuple[PriorName, ...] = ("magnitude", "key_magnitude", "uniform")
TIED_TO_KEYS = ("magnitude", "key_magnitude")
TIED_TO_VALUES = ("magnitude",)


class Mixture(NamedTuple):
    """Parameters of the M units."""

    keys: Tensor  # key means xi, (B, G, M, D)
    values: Tensor  # value means mu, (B, G, M, V)
    query_precision: Precision  # alpha
    value_precision: Precision  # beta; the float 0.0 means that values carry no likelihood
    prior: PriorName | None  # name of log pi; None where the terms below are constant
    log_prior: Terms = ()  # of a constant log pi
    log_mask: Terms = ()  # 0 where a query sees a unit and -inf where it does not
    position: RelativePosition | None = None  # which the tied prior contains too
    product_dtype: torch.dtype = torch.float32  # in which queries and keys are multiplied


class LogJoint(NamedTuple):
    """Arguments of the primitives whose logits are the log joint up to `log_constant`."""

    queries: Tensor  # augmented, (B, G, N, C)
    keys: Tensor  # augmented, (B, G, M, C)
    log_prior: Terms
    scale: float


class _Expansion(NamedTuple):
    """`log N(x_i | m_j, 1/p_j) = scale left_i·right_j + unit_j + constant_i`, see `_expand`."""

    left: Tensor  # (B, G, N, C) or with one more channel
    right: Tensor  # (B, G, M, C) or with one more channel
    unit: Precision  # broadcasts to (B, G, M)


def has_value_likelihood(mixture: Mixture) -> bool:
    """Return whether `beta` can differ from 0."""
    return isinstance(mixture.value_precision, Tensor) or mixture.value_precision > 0.0


def prior_scores(mixture: Mixture) -> Tensor:
    """Return a named `log pi_j` up to a constant of the units, shape `(B, G, M)`.

    "magnitude" is Gabbur et al., 2021, Eq. 10; "key_magnitude" leaves its values out. Of the share
    of position embeddings (Eq. 26), only the normaliser is the same for all queries, and in here.
    The constant is that of `_value_scores`, which the logits leave out too.
    """
    scores = torch.zeros_like(mixture.keys[..., 0])  # (B, G, M)
    if mixture.prior in TIED_TO_KEYS:
        scores = scores + mixture.query_precision * _half_norms(mixture.keys)
    if (normaliser := _key_normaliser(mixture)) is not None:
        scores = scores + normaliser
    if mixture.prior in TIED_TO_VALUES and has_value_likelihood(mixture):
        scores = scores + _value_scores(mixture)[0]
    return scores


def visible_scores(mixture: Mixture) -> Tensor:
    """Return `prior_scores`, -inf for units that the mask hides from all queries.

    Where it hides all units, they keep their scores: there is nothing else to normalise over.
    """
    scores, seen = prior_scores(mixture), visible(mixture.log_mask)
    if seen is None:
        return scores
    units = seen.keys.squeeze(-1)  # broadcasts to (B, G, M)
    return scores.where(units | ~units.any(-1, keepdim=True), -math.inf)


def logits(mixture: Mixture, queries: Tensor, observed_values: Tensor | None = None) -> LogJoint:
    """Expand the log joint with queries `(B, G, N, D)` and, if any, values `(B, G, N, V)`.

    The normaliser of a named prior is left out: it is the same for all units.
    """
    if observed_values is None or not has_value_likelihood(mixture):
        return query_logits(mixture, queries)
    joint = query_logits(mixture, queries, values_follow=True)
    seen = value_logits(mixture, observed_values, joint.scale)
    # Where one of the two is in half precision and the other cannot be, both are not.
    return LogJoint(
        torch.cat([joint.queries, seen.queries], dim=-1),  # (B, G, N, D + V + ...)
        torch.cat([joint.keys, seen.keys], dim=-1),  # (B, G, M, D + V + ...)
        (*joint.log_prior, *seen.log_prior),
        joint.scale,
    )


def log_constant(
    mixture: Mixture, queries: Tensor, observed_values: Tensor | None = None
) -> Precision:
    """Return what `logits` leave out of the log joint, for the same arguments, `(B, G, N)`.

    It is the same for all units. The normaliser of a named prior is left out here, too.
    """
    constant = _constant(
        queries,
        mixture.keys,
        mixture.query_precision,
        tied=mixture.prior in TIED_TO_KEYS,
        gaussians=1 if mixture.position is None else 2,
    )
    if observed_values is None or not has_value_likelihood(mixture):
        return constant
    tied = mixture.prior in TIED_TO_VALUES
    constant = constant + _constant(
        observed_values, mixture.values, mixture.value_precision, tied=tied
    )
    return constant - _value_scores(mixture)[1] if tied else constant


def query_logits(mixture: Mixture, queries: Tensor, *, values_follow: bool = False) -> LogJoint:
    """Expand the log joint with the queries `(B, G, N, D)` alone.

    With `values_follow`, `value_logits` are added, which cancel the value term of a tied prior.
    """
    # A float precision becomes the scale: in half precision that is exact, scaled keys are not.
    alpha = mixture.query_precision
    scale = alpha if isinstance(alpha, float) else 1.0
    position = mixture.position
    # A tied prior cancels the norms of the keys: neither of the two is ever computed. Position
    # embeddings add a second Gaussian of the query (Eq. 25), whose mean's norm it cancels too.
    left, right, unit = _expand(
        queries,
        mixture.keys,
        alpha,
        scale,
        tied=mixture.prior in TIED_TO_KEYS,
        gaussians=1 if position is None else 2,
    )
    if (normaliser := _key_normaliser(mixture)) is not None:
        unit = unit + normaliser
    terms = mixture.log_prior
    if isinstance(position, FactoredPosition):
        channels = position.channels(queries, mixture.keys)
        weight = 1.0 if isinstance(alpha, float) else alpha.unsqueeze(-1)  # (B, G, M, 1)
        left = torch.cat([left, channels.queries], dim=-1)  # (B, G, N, D + H + W + ...)
        right = torch.cat([right, weight * channels.keys], dim=-1)  # (B, G, M, D + H + W + ...)
    elif isinstance(position, FullPosition):
        terms = (*terms, position.prior(queries, mixture.keys, alpha))
    if mixture.prior in TIED_TO_VALUES and not values_follow and has_value_likelihood(mixture):
        unit = unit + _value_scores(mixture)[0]
    if isinstance(unit, Tensor):
        terms = (unit.unsqueeze(-2), *terms)  # (B, G, 1, M)
    return LogJoint(*_lower(mixture, alpha, left, right), (*terms, *mixture.log_mask), scale)


def value_logits(mixture: Mixture, values: Tensor, scale: float = 1.0) -> LogJoint:
    """Expand the value term of the log joint for observed values `(B, G, N, V)`."""
    beta, tied = mixture.value_precision, mixture.prior in TIED_TO_VALUES
    left, right, unit = _expand(values, mixture.values, beta, scale, tied=tied)
    terms = (unit.unsqueeze(-2),) if isinstance(unit, Tensor) else ()  # (B, G, 1, M)
    return LogJoint(*_lower(mixture, beta, left, right), terms, scale)


def in_full(mixture: Mixture) -> Mixture:
    """Multiply without rounding to half precision."""
    return mixture._replace(product_dtype=mixture.keys.dtype)


def fix_prior(mixture: Mixture) -> Mixture:
    """Fix a named prior: `log pi` no longer follows keys and values."""
    if mixture.prior is None:
        return mixture
    log_pi = visible_scores(mixture).log_softmax(-1).unsqueeze(-2)  # (B, G, 1, M)
    return mixture._replace(prior=None, log_prior=(log_pi,))


def _lower(
    mixture: Mixture, precision: Precision, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Lower the factors of a product to half precision, unless there are logits among them.

    Norms and dot products with position embeddings are parts of logits, which it would round.
    """
    has_norms = isinstance(precision, Tensor) and precision.shape[-1] > 1
    exact = has_norms or mixture.position is not None
    dtype = left.dtype if exact else mixture.product_dtype
    return left.to(dtype), right.to(dtype)


def _expand(
    points: Tensor,
    means: Tensor,
    precision: Precision,
    scale: float,
    *,
    tied: bool,
    gaussians: int = 1,
) -> _Expansion:
    """Expand the Gaussian log densities of points `(B, G, N, C)` around means `(B, G, M, C)`.

    A `tied` prior adds `precision/2 |mean|²`, which cancels. Of several `gaussians` of the points,
    the means of all but the first are expanded elsewhere.
    """
    if not tied:
        centre = _centre(means)
        points, means = points - centre, means - centre
    unit: Precision = 0.0 if tied else -precision * _half_norms(means)
    if isinstance(precision, float):
        scaled = means if precision == scale else precision / scale * means
        return _Expansion(points, scaled, unit)
    factor = (precision / scale).unsqueeze(-1)  # (B, G, M, 1), sizes may be 1
    if precision.shape[-1] == 1:
        return _Expansion(points, factor * means, unit)
    half_norms = gaussians * _half_norms(points)  # (B, G, N)
    left = torch.cat([points, half_norms.unsqueeze(-1)], dim=-1)  # (B, G, N, C + 1)
    spread = -factor.expand(*means.shape[:-1], 1)  # (B, G, M, 1)
    right = torch.cat([factor * means, spread], dim=-1)  # (B, G, M, C + 1)
    return _Expansion(left, right, unit + _log_normaliser(precision, gaussians * means.shape[-1]))


def _constant(
    points: Tensor, means: Tensor, precision: Precision, *, tied: bool, gaussians: int = 1
) -> Precision:
    """Return what `_expand` leaves out, for the same arguments; broadcasts to `(B, G, N)`."""
    if isinstance(precision, Tensor) and precision.shape[-1] > 1:
        return 0.0
    if not tied:
        points = points - _centre(means)
    log_normaliser = _log_normaliser(precision, gaussians * means.shape[-1])
    return log_normaliser - gaussians * precision * _half_norms(points)


def _centre(means: Tensor) -> Tensor:
    """Return the origin of the distances to means `(B, G, M, C)`, `(B, G, 1, C)`.

    They do not change with it, but the cancellation of expanded norms costs digits if it is far.
    """
    return means.mean(-2, keepdim=True).detach()


def _log_normaliser(precision: Precision, width: int) -> Precision:
    """Return `C/2 log(p / 2pi)` for C channels."""
    return width / 2 * log_precision(precision / (2 * math.pi))


@overload
def log_precision(precision: float) -> float: ...


@overload
def log_precision(precision: Tensor) -> Tensor: ...


def log_precision(precision: Precision) -> Precision:
    """Take the log; the precision of a unit that no query sees may have fallen to 0."""
    if not isinstance(precision, Tensor):
        return math.log(precision)
    positive = precision > 0.0
    return precision.where(positive, 1.0).log().where(positive, -math.inf)


def _key_normaliser(mixture: Mixture) -> Tensor | None:
    """Return the `D/2 log alpha_j` of `N(xi_j | r^k, 1/alpha_j)` in Eq. 26, `(B, G, M)`.

    None without embeddings of the keys, and for units of the same precision, where it cancels.
    """
    alpha, position = mixture.query_precision, mixture.position
    if position is None or not position.has_keys:
        return None
    if not isinstance(alpha, Tensor) or alpha.shape[-1] == 1:
        return None
    return mixture.keys.shape[-1] / 2 * log_precision(alpha)


def _value_scores(mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Return `beta_j/2 |mu_j|²` less its maximum, `(B, G, M)`, and the maximum, `(B, G, 1)`.

    The log evidence is a difference of two sums with this term: for long values, it would lose the
    digits that the maximum takes.
    """
    scores = mixture.value_precision * _half_norms(mixture.values)
    largest = scores.detach().amax(-1, keepdim=True)
    return scores - largest, largest


def _half_norms(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1) / 2
