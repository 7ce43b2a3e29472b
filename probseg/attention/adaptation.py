"""Settings of trained attention layers that inference may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from probseg.attention.classifier import AdaptiveClassifier, ClickAdaptation
from probseg.attention.probabilistic import ProbabilisticAttention2d
from probseg.ops.updates import KeyAdaptation, ValuePropagation


@dataclass(frozen=True)
class Adaptation:
    """Settings of adaptation in inference; None leaves a setting unchanged.

    Args:
        key_iterations: Number of EM iterations of the keys; 0 switches them off.
        key_prior: Precision of the prior of the keys; 0 is maximum likelihood. It takes the place
            of a learnt one.
        value_iterations: Number of EM iterations in which clicks propagate; 0 switches them off.
        value_prior: Precision of the prior of the value means. It takes the place of a learnt one.
        click_iterations: Number of EM iterations in which the classifier adapts to the clicks; 0
            switches them off.
        click_prior: Precision of the prior of the classifier's weights.

    Raises:
        ValueError: If a number is out of range.
    """

    key_iterations: int | None = None
    key_prior: float | None = None
    value_iterations: int | None = None
    value_prior: float | None = None
    click_iterations: int | None = None
    click_prior: float | None = None

    def __post_init__(self) -> None:
        for of, update in UPDATES.items():
            for argument, field in (("iterations", "iterations"), ("prior", "prior_precision")):
                value = getattr(self, f"{of}_{argument}")
                try:
                    update(**({} if value is None else {field: value}))
                except ValueError as error:
                    msg = f"`{of}_{argument}`: {error}"
                    raise ValueError(msg) from error

    def of(self, kind: str) -> tuple[int | None, float | None]:
        """Return iterations and prior of a kind of update, "key", "value" or "click"."""
        return getattr(self, f"{kind}_iterations"), getattr(self, f"{kind}_prior")


UPDATES = {"key": KeyAdaptation, "value": ValuePropagation, "click": ClickAdaptation}
"""Settings of each kind of update."""

Layer = ProbabilisticAttention2d | AdaptiveClassifier


def adapt(body: nn.Module, head: nn.Module, wanted: Adaptation) -> None:
    """Change the settings of a network's layers in place.

    Args:
        body: What comes before the head; its layers' keys adapt.
        head: Its layers' values propagate, its classifier adapts to clicks, and their keys adapt
            where the body has no layer.
        wanted: The settings.

    Raises:
        ValueError: If there is no layer to change, or a prior is given for iterations that are 0
            and stay so.
    """
    layers = _layers(body, head)
    for kind, found in layers.items():
        _check(kind, wanted, [_update(kind, layer).iterations for layer in found], head)
    for kind, found in layers.items():
        for layer in found:
            getattr(layer, f"adapt_{kind}s")(*wanted.of(kind))


def adaptation_of(body: nn.Module, head: nn.Module) -> Adaptation:
    """Return the settings that `adapt` would change; None for those without a layer.

    If layers differ, the settings of the first one are returned.
    """
    present: dict[str, float] = {}
    for kind, found in _layers(body, head).items():
        if found:
            update = _update(kind, found[0])
            present[f"{kind}_iterations"] = update.iterations
            present[f"{kind}_prior"] = float(update.prior_precision)
    return Adaptation(**present)  # type: ignore[arg-type]


def _layers(body: nn.Module, head: nn.Module) -> dict[str, list[Layer]]:
    """Return the layers that each kind of update changes."""
    in_head = probabilistic_layers(head)
    return {
        "key": [*(probabilistic_layers(body) or in_head)],
        "value": [layer for layer in in_head if layer.settings.can_propagate],
        "click": [part for part in head.modules() if isinstance(part, AdaptiveClassifier)],
    }


def _update(kind: str, layer: Layer) -> KeyAdaptation | ValuePropagation | ClickAdaptation:
    """Return a layer's settings of one kind."""
    if isinstance(layer, AdaptiveClassifier):
        return layer.settings
    settings = layer.settings
    return settings.key_adaptation if kind == "key" else settings.value_propagation


_WITHOUT = {
    "key": "the network has no probabilistic attention whose keys could adapt; choose one with it "
    "in backbone or head, such as 'prob_botnet50_full_factored' or 'resnet18_csa'",
    "value": "the head {head} was built without value propagation; choose one with it, such as "
    "'resnet26_small_csa_bp5', and train it",
    "click": "the head {head} has no classifier that adapts to clicks; choose a network with a "
    "ConvHead, such as 'lite2_unet_prop'",
}


def _check(kind: str, wanted: Adaptation, present: list[int], head: nn.Module) -> None:
    """Raise unless settings change something in layers with these iterations."""
    iterations, prior = wanted.of(kind)
    if iterations is None and prior is None:
        return
    if not present:
        reason = _WITHOUT[kind].format(head=type(head).__name__)
        msg = f"{kind}_iterations={iterations}, {kind}_prior={prior}: {reason}"
        raise ValueError(msg)
    idle = not any(present) if iterations is None else iterations == 0
    if prior is not None and idle:
        msg = (
            f"`{kind}_prior` changes nothing with 0 iterations, got {prior}; set "
            f"`{kind}_iterations` too"
        )
        raise ValueError(msg)


def probabilistic_layers(module: nn.Module) -> list[ProbabilisticAttention2d]:
    """Return the layers of a network whose keys can adapt."""
    return [part for part in module.modules() if isinstance(part, ProbabilisticAttention2d)]


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Restore the settings of all layers of a network at the end of the block."""
    before = [(part, part.settings) for part in module.modules() if isinstance(part, Layer)]
    try:
        yield
    finally:
        for layer, settings in before:
            layer.settings = settings
