"""Settings of trained attention layers that inference may change."""

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


def adapt(backbone: nn.Module, head: nn.Module, wanted: Adaptation) -> None:
    """Change the settings of a network's layers in place.

    Args:
        backbone: Its layers' keys adapt.
        head: Its layers' values propagate, and their keys adapt where the backbone has no layer.
        wanted: The settings.

    Raises:
        ValueError: If there is no layer to change, or a prior is given for iterations that are 0
            and stay so.
    """
    in_head = probabilistic_layers(head)
    with_keys = probabilistic_layers(backbone) or in_head
    with_values = [layer for layer in in_head if layer.settings.can_propagate]
    present = [layer.settings.key_adaptation.iterations for layer in with_keys]
    _check("key", wanted.key_iterations, wanted.key_prior, present, head)
    present = [layer.settings.value_propagation.iterations for layer in with_values]
    _check("value", wanted.value_iterations, wanted.value_prior, present, head)
    for layer in with_keys:
        layer.adapt_keys(wanted.key_iterations, wanted.key_prior)
    for layer in with_values:
        layer.adapt_values(wanted.value_iterations, wanted.value_prior)


def adaptation_of(backbone: nn.Module, head: nn.Module) -> Adaptation:
    """Return the settings that `adapt` would change; None for those without a layer.

    Where layers differ, the settings are those of the first.
    """
    in_head = probabilistic_layers(head)
    with_keys = probabilistic_layers(backbone) or in_head
    with_values = [layer for layer in in_head if layer.settings.can_propagate]
    keys = with_keys[0].settings.key_adaptation if with_keys else None
    values = with_values[0].settings.value_propagation if with_values else None
    return Adaptation(
        key_iterations=None if keys is None else keys.iterations,
        key_prior=None if keys is None else float(keys.prior_precision),
        value_iterations=None if values is None else values.iterations,
        value_prior=None if values is None else float(values.prior_precision),
    )


_WITHOUT = {
    "key": "the network has no probabilistic attention whose keys could adapt; choose one with it "
    "in backbone or head, such as 'prob_botnet50_full_factored' or 'resnet18_csa'",
    "value": "the head {head} was built without value propagation; choose one with it, such as "
    "'resnet26_small_csa_bp5', and train it",
}


def _check(
    of: str, iterations: int | None, prior: float | None, present: list[int], head: nn.Module
) -> None:
    """Raise unless settings change something in layers with these iterations."""
    if iterations is None and prior is None:
        return
    if not present:
        reason = _WITHOUT[of].format(head=type(head).__name__)
        msg = f"{of}_iterations={iterations}, {of}_prior={prior}: {reason}"
        raise ValueError(msg)
    idle = not any(present) if iterations is None else iterations == 0
    if prior is not None and idle:
        msg = f"{of}_prior={prior} changes nothing with 0 iterations; set {of}_iterations too"
        raise ValueError(msg)


def probabilistic_layers(module: nn.Module) -> list[ProbabilisticAttention2d]:
    """Return the layers of a network whose keys can adapt."""
    return [part for part in module.modules() if isinstance(part, ProbabilisticAttention2d)]


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Restore the settings of all layers of a network at the end of the block."""
    before = [(layer, layer.settings) for layer in probabilistic_layers(module)]
    try:
        yield
    finally:
        for layer, settings in before:
            layer.settings = settings
