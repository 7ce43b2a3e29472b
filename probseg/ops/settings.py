"""Settings of inference in a mixture of Gaussians, apart from tokens and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probseg.errors import UnknownNameError
from probseg.ops.attention import LogPrior
from probseg.ops.mixture import PRIOR_NAMES, PriorName
from probseg.ops.updates import KeyAdaptation, ValuePropagation

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
            msg = f"`log_prior` must be one of {PRIOR_NAMES} or a tensor, got None; see 'uniform'"
            raise TypeError(msg)
        if isinstance(prior, str) and prior not in PRIOR_NAMES:
            raise UnknownNameError(kind="log prior", name=prior, known=PRIOR_NAMES)
        if self.value_iterations < 1:
            msg = (
                "`value_iterations` must be at least 1 (the read-out itself), got "
                f"{self.value_iterations}"
            )
            raise ValueError(msg)
        beta = self.value_precision
        if self.propagates and not isinstance(beta, Tensor) and beta == 0.0:
            msg = (
                "`value_precision` must be above 0 where values propagate, got 0: without a value "
                "likelihood nothing propagates (Gabbur et al., 2021, use 0.1)"
            )
            raise ValueError(msg)

    @property
    def propagates(self) -> bool:
        """Whether fixed values propagate."""
        return self.value_propagation.iterations > 0


STANDARD = InferenceSettings()
"""Settings of standard scaled dot-product attention."""
