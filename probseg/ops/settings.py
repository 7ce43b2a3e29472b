"""Settings of inference in a mixture: key adaptation, value propagation, and their priors."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar, get_args

from torch import Tensor

from probseg.errors import check_least, check_name
from probseg.ops.attention import LogPrior
from probseg.ops.checks import as_precision
from probseg.ops.mixture import PRIOR_NAMES, Precision, PriorName

PriorMean = Literal["initial", "previous"]
Given = Literal["queries_and_values", "queries"]


@dataclass(frozen=True)
class GammaPrior:
    """Gamma prior of the precisions of the units.

    Args:
        shape: `theta_1`, at least 1: below, a unit that no token sees would get a negative
            precision. Float, or tensor that broadcasts to `(B, G, M)`.
        rate: `theta_2`, above 0. Float, or tensor that broadcasts to `(B, G, M)`.
    """

    shape: Precision
    rate: Precision

    def __post_init__(self) -> None:
        if not isinstance(self.shape, Tensor) and not 1.0 <= self.shape < math.inf:
            raise ValueError(f"`GammaPrior.shape` must be finite and at least 1, got {self.shape}")
        if not isinstance(self.rate, Tensor) and not 0.0 < self.rate < math.inf:
            raise ValueError(f"`GammaPrior.rate` must be finite and above 0, got {self.rate}")


@dataclass(frozen=True)
class DirichletPrior:
    """Dirichlet prior of the mixture weights, which all queries of a head share.

    Without a fixed token, the weights are the mode of this prior. Eq. 38 as printed has weights for
    each fixed token instead, which no other token would read.

    Args:
        concentration: `theta`, at least 1: below, a unit without responsibility would get a
            negative weight. Float, or tensor that broadcasts to `(B, G, M)`.
    """

    concentration: Precision

    def __post_init__(self) -> None:
        theta = self.concentration
        if not isinstance(theta, Tensor) and not 1.0 <= theta < math.inf:
            raise ValueError(
                f"`DirichletPrior.concentration` must be finite and at least 1, got {theta}"
            )


@dataclass(frozen=True)
class KeyAdaptation:
    """EM updates of the keys from all queries (Gabbur et al., 2021, Eqs. 18, 34 and 36).

    Args:
        iterations: Number of EM iterations; 0 changes nothing.
        prior_precision: `theta`, the precision of the Gaussian prior of each key; 0 is maximum
            likelihood, the default of the paper's appendix C.4. Float, or positive tensor that
            broadcasts to `(B, G, M)`.
        prior_mean: Centre of that prior: the "initial" keys (its mode is the fixed point), or the
            "previous" iteration's (as printed in Eq. 18; converges to maximum likelihood). The
            two agree for one iteration.
        precision_prior: Prior of the query precisions, which then follow the keys in each
            iteration (Eq. 36); None leaves them as they are.
    """

    iterations: int = 1
    prior_precision: Precision = 0.0
    prior_mean: PriorMean = "initial"
    precision_prior: GammaPrior | None = None

    def __post_init__(self) -> None:
        _check_update(self)


@dataclass(frozen=True)
class ValuePropagation:
    """EM updates of the value means from the fixed values (Gabbur et al., 2021, Eqs. 23 and 24).

    Args:
        iterations: Number of EM iterations; 0 changes nothing.
        prior_precision: `theta`, the precision of the Gaussian prior of each value mean; the
            paper searches {0.1, 1, 10, 100}. 0 is maximum likelihood. Float, or positive tensor
            that broadcasts to `(B, G, M)`.
        prior_mean: Centre of that prior: the "initial" value means, or the "previous" iteration's
            (as printed in Eq. 23). The two agree for one iteration.
        precision_prior: Prior of the value precisions, which then follow the value means in each
            iteration (Eq. 37, with `V/2` where it prints `d/2`: values have V channels); None
            leaves them as they are.
        dirichlet_prior: Prior of the mixture weights, which are then updated in each iteration
            (Eq. 38, summed over the fixed tokens and normalised over the units) and take the place
            of the log prior; None leaves that as it is.
        given: What the responsibilities of the fixed tokens are given: "queries_and_values" (Eq.
            24), or "queries" alone, as in the authors' released layer.
    """

    iterations: int = 1
    prior_precision: Precision = 1.0
    prior_mean: PriorMean = "initial"
    precision_prior: GammaPrior | None = None
    dirichlet_prior: DirichletPrior | None = None
    given: Given = "queries_and_values"

    def __post_init__(self) -> None:
        _check_update(self)
        check_name("ValuePropagation.given", self.given, get_args(Given))


Update = TypeVar("Update", KeyAdaptation, ValuePropagation)


Checked = TypeVar("Checked", bound=KeyAdaptation | ValuePropagation | GammaPrior | DirichletPrior)


def with_checked_tensors(name: str, settings: Checked, keys: Tensor) -> Checked:
    """Bring the tensors of an update and of its priors to `(B, G, M)`, sizes may be 1."""
    changes: dict[str, Any] = {}
    for field in fields(settings):
        value, path = getattr(settings, field.name), f"{name}.{field.name}"
        if isinstance(value, Tensor):
            changes[field.name] = as_precision(path, value, keys, zero=True)
        elif isinstance(value, GammaPrior | DirichletPrior):
            changes[field.name] = with_checked_tensors(path, value, keys)
    return replace(settings, **changes) if changes else settings


def _check_update(update: KeyAdaptation | ValuePropagation) -> None:
    name = type(update).__name__
    check_least(f"{name}.iterations", update.iterations, 0)
    precision = update.prior_precision
    if not isinstance(precision, Tensor) and not 0.0 <= precision < math.inf:
        raise ValueError(
            f"`{name}.prior_precision` must be finite and not negative, got {precision}; 0 is "
            "maximum likelihood"
        )
    check_name(f"{name}.prior_mean", update.prior_mean, ("initial", "previous"))


NO_KEY_ADAPTATION = KeyAdaptation(iterations=0)
NO_VALUE_PROPAGATION = ValuePropagation(iterations=0)


@dataclass(frozen=True)
class InferenceSettings:
    """Settings of `probabilistic_attention`, which documents them; the defaults are the same.

    Raises:
        ValueError: If `value_iterations` is below 1, or values propagate without a
            `value_precision`.
        TypeError: If `log_prior` is None.
        UnknownNameError: If there is no log prior of this name.
    """

    query_precision: float | Tensor | None = None
    value_precision: float | Tensor = 0.0
    log_prior: PriorName | LogPrior = "magnitude"
    value_iterations: int = 1
    key_adaptation: KeyAdaptation = NO_KEY_ADAPTATION
    value_propagation: ValuePropagation = NO_VALUE_PROPAGATION
    clamp_fixed: bool = False
    backend: str = "auto"

    def __post_init__(self) -> None:
        prior: Any = self.log_prior
        if prior is None:
            raise TypeError(
                f"`log_prior` must be one of {PRIOR_NAMES} or a tensor, got None; see 'uniform'"
            )
        if isinstance(prior, str):
            check_name("log prior", prior, PRIOR_NAMES)
        check_least("value_iterations", self.value_iterations)  # the read-out itself
        beta = self.value_precision
        if self.propagates and not isinstance(beta, Tensor) and beta == 0.0:
            raise ValueError(
                "`value_precision` must be above 0 where values propagate, got 0: without a value "
                "likelihood nothing propagates (Gabbur et al., 2021, use 0.1)"
            )

    @property
    def propagates(self) -> bool:
        """Whether fixed values propagate."""
        return self.value_propagation.iterations > 0


STANDARD = InferenceSettings()
"""Settings of standard scaled dot-product attention."""
