"""What inference may change about trained attention layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from probseg.attention.probabilistic import ProbabilisticAttention2d
from probseg.ops.updates import KeyAdaptation, ValuePropagation


@dataclass(frozen=True)
class Adaptation:
    """Settings of key adaptation and value propagation; None leaves one as it is.

    Args:
        key_iterations: Number of EM iterations of the keys; 0 switches them off.
        key_prior: Precision of the prior of the keys; 0 is maximum likelihood. It takes the place
            of a learnt one.
        value_iterations: Number of EM iterations in which clicks propagate; 0 switches them off.
        value_prior: Precision of the prior of the value means. It takes the place of a learnt one.

    Raises:
        ValueError: If a number is out of range.
    """

    key_iterations: int | None = None
    key_prior: float | None = None
    value_iterations: int | None = None
    value_prior: float | None = None

    def __post_init__(self) -> None:
        for update, of in ((KeyAdaptation, "key"), (ValuePropagation, "value")):
            for argument, field in (("iterations", "iterations"), ("prior", "prior_precision")):
                value = getattr(self, f"{of}_{argument}")
                try:
                    update(**({} if value is None else {field: value}))
                except ValueError as error:
                    msg = f"{of}_{argument}: {error}"
                    raise ValueError(msg) from error

    def changes_keys(self) -> bool:
        """Tell whether anything is said of the keys."""
        return self.key_iterations is not None or self.key_prior is not None

    def changes_values(self) -> bool:
        """Tell whether anything is said of the values."""
        return self.value_iterations is not None or self.value_prior is not None


def probabilistic_layers(module: nn.Module) -> list[ProbabilisticAttention2d]:
    """Return the layers of a network whose keys can adapt."""
    return [part for part in module.modules() if isinstance(part, ProbabilisticAttention2d)]


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Give all layers of a network their settings back at the end of the block."""
    before = [(layer, layer.settings) for layer in probabilistic_layers(module)]
    try:
        yield
    finally:
        for layer, settings in before:
            layer.settings = settings
