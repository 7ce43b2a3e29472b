"""Adaptation to an image: settings of trained layers, and a classifier that learns from clicks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention.probabilistic import ProbabilisticAttention2d
from probseg.errors import UsageError, check_least, require
from probseg.ops.em import logistic_em
from probseg.ops.numerics import working_dtype
from probseg.ops.settings import KeyAdaptation, ValuePropagation

PRECISIONS = 1e-6, 1e6
"""Range of the precision of the prior: beyond it, float32 cannot tell it from 0 or infinity."""


@dataclass(frozen=True)
class ClickAdaptation:
    """EM updates of a classifier's weights from the clicked pixels.

    Args:
        iterations: Number of EM steps; 0 changes nothing, 3 are close to convergence.
        prior_precision: Precision of the Gaussian prior around the trained weights, from
            1e-6 to 1e6.

    Raises:
        ValueError: If a number is out of range.
    """

    iterations: int = 0
    prior_precision: float = 10.0

    def __post_init__(self) -> None:
        check_least("iterations", self.iterations, 0)
        smallest, largest = PRECISIONS
        fits = smallest <= self.prior_precision <= largest
        expected = f"from {smallest:g} to {largest:g}"
        require(fits, "prior_precision", expected, self.prior_precision)


class AdaptiveClassifier(nn.Conv2d):
    """1x1 convolution to a logit that learns from the clicks on the image that it classifies.

    The contribution of each channel to the logit, weight times feature, is multiplied by a factor
    of its own, and the bias shifted. The factors are Gaussian around 1 before any click, the shift
    around 0, in units of the length of the weights; the clicked cells are labelled observations,
    from which `logistic_em` finds the mode of the posterior. Without clicks, or without
    iterations, this is the convolution. All is differentiable.

    An observation is a cell that a click's disk covers; a disk of radius 5 pixels covers 5 cells of
    4 x 4 pixels.

    Args:
        channels: Channels of the features.
        settings: Number of EM steps, and precision of the prior of factors and shift.
    """

    def __init__(self, channels: int, settings: ClickAdaptation) -> None:
        super().__init__(channels, 1, kernel_size=1)
        self.settings = settings

    def adapt_clicks(self, iterations: int | None = None, prior: float | None = None) -> None:
        """Change the settings; None leaves one as it is."""
        settings = {"iterations": iterations, "prior_precision": prior}
        changes = {name: value for name, value in settings.items() if value is not None}
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]

    def forward(self, features: Tensor, clicks: Tensor | None = None) -> Tensor:
        """Classify.

        Args:
            features: Shape `(B, C, h, w)`.
            clicks: Positive and negative click maps in [0, 1], shape `(B, 2, H, W)`; None for
                none.

        Returns:
            Logits `(B, 1, h, w)`.
        """
        logits = super().forward(features)
        if clicks is None or self.settings.iterations == 0:
            return logits
        dtype = working_dtype(features.dtype)
        covered = F.adaptive_avg_pool2d(clicks.to(dtype), (features.shape[-2], features.shape[-1]))
        covered, rows = covered.flatten(2), features.flatten(2)  # (B, 2, h w), (B, C, h w)
        if not torch.compiler.is_exporting():  # a graph takes all cells: their number is fixed
            counts = covered.sum(dim=1)
            most = int((counts > 0).sum(dim=1).amax())
            if most == 0:
                return logits
            cells = counts.topk(most, dim=1).indices[:, None]  # (B, 1, S); padding has none
            covered = covered.gather(2, cells.expand(-1, 2, -1))
            rows = rows.gather(2, cells.expand(-1, features.shape[1], -1))
        counts = covered.sum(dim=1)  # (B, S)
        positive, negative = covered.unbind(dim=1)
        assert self.bias is not None, "a convolution with bias"
        length = self.weight.norm().clamp(min=1e-6)
        scale = torch.cat([self.weight.flatten(), length[None]]).to(dtype)  # (C + 1,)
        prior_mean = torch.cat([torch.ones_like(scale[1:]), self.bias.to(dtype) / length])
        rows = F.pad(rows.mT.to(dtype), (0, 1), value=1.0) * scale  # (B, S, C + 1)
        evidence = (positive - negative) / 2
        steps, prior = self.settings.iterations, self.settings.prior_precision
        adapted = logistic_em(rows, evidence, counts, prior_mean, prior, steps)
        weights = (adapted * scale).to(features.dtype)
        moved = (weights[:, None, :-1] @ features.flatten(2)) + weights[:, None, -1:]
        return moved.view_as(logits)


@dataclass(frozen=True)
class Adaptation:
    """Settings of adaptation in inference; None leaves a setting unchanged.

    Args:
        query_precision: Precision `alpha` of the queries where keys can adapt, by default `1 /
            sqrt(D)`: above, the posterior over the units is sharper. It takes the place of a learnt
            one.
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
    query_precision: float | None = field(default=None, kw_only=True)
    value_iterations: int | None = None
    value_prior: float | None = None
    click_iterations: int | None = None
    click_prior: float | None = None

    def __post_init__(self) -> None:
        for of, update in UPDATES.items():
            for argument, name in (("iterations", "iterations"), ("prior", "prior_precision")):
                value = getattr(self, f"{of}_{argument}")
                try:
                    update(**({} if value is None else {name: value}))
                except ValueError as error:
                    raise ValueError(f"`{of}_{argument}`: {error}") from error
        alpha = self.query_precision
        fits = alpha is None or 0.0 < alpha < math.inf
        require(fits, "query_precision", "finite and above 0", alpha)

    def of(self, kind: str) -> dict[str, float | None]:
        """Return the settings of a kind of update, "key", "value" or "click", by their names."""
        names = [f"{kind}_iterations", f"{kind}_prior"]
        names += ["query_precision"] if kind == "key" else []
        return {name: getattr(self, name) for name in names}


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
        UsageError: If there is no layer to change, or another prior is given for iterations that
            are 0 and stay so.
    """
    layers = _layers(body, head)
    for kind, adaptive in layers.items():
        given = {name: value for name, value in wanted.of(kind).items() if value is not None}
        if not given:
            continue
        if not adaptive:
            reason = _WITHOUT[kind].format(head=type(head).__name__)
            settings = ", ".join(f"{name}={value}" for name, value in given.items())
            raise UsageError(f"{settings}: {reason}")
        iterations, prior = given.get(f"{kind}_iterations"), given.get(f"{kind}_prior")
        present = [_present(kind, layer) for layer in adaptive]
        stay = iterations is None and any(of[f"{kind}_iterations"] for of in present)
        idle = not (iterations or stay)
        if prior is not None and idle and any(of[f"{kind}_prior"] != prior for of in present):
            raise UsageError(
                f"`{kind}_prior` changes nothing with 0 iterations, got {prior}; set "
                f"`{kind}_iterations` too"
            )
    for kind, adaptive in layers.items():
        for layer in adaptive:
            getattr(layer, f"adapt_{kind}s")(*wanted.of(kind).values())


def adaptation_of(body: nn.Module, head: nn.Module) -> Adaptation:
    """Return the settings that `adapt` would change, which given back to it change nothing.

    None for those without a layer, for learnt ones, and for those in which layers differ.
    """
    settings: dict[str, float | None] = {}
    for kind, adaptive in _layers(body, head).items():
        for layer in adaptive:
            for name, value in _present(kind, layer).items():
                settings[name] = value if settings.get(name, value) == value else None
    return Adaptation(**settings)  # type: ignore[arg-type]


def _layers(body: nn.Module, head: nn.Module) -> dict[str, list[Layer]]:
    """Return the layers that each kind of update changes."""
    in_head = probabilistic_layers(head)
    return {
        "key": [*(probabilistic_layers(body) or in_head)],
        "value": [layer for layer in in_head if layer.settings.can_propagate],
        "click": [part for part in head.modules() if isinstance(part, AdaptiveClassifier)],
    }


def _present(kind: str, layer: Layer) -> dict[str, float | None]:
    """Return a layer's settings of one kind, as `Adaptation.of`; None for learnt ones."""
    update: KeyAdaptation | ValuePropagation | ClickAdaptation
    learnt, more = False, {}
    if isinstance(layer, AdaptiveClassifier):
        update = layer.settings
    elif kind == "value":
        update, learnt = layer.settings.value_propagation, layer.settings.learnt_value_prior
    else:
        update, learnt = layer.settings.key_adaptation, layer.settings.learnt_key_prior
        more = {"query_precision": layer.query_precision}
    prior = None if learnt else float(update.prior_precision)
    return {f"{kind}_iterations": update.iterations, f"{kind}_prior": prior, **more}


_WITHOUT = {
    "key": "the network has no probabilistic attention whose keys could adapt; choose one with it "
    "in backbone or head, such as 'prob_botnet50_full_factored' or 'resnet18_csa'",
    "value": "the head {head} was built without value propagation; choose one with it, such as "
    "'resnet26_small_csa_bp5', and train it",
    "click": "the head {head} has no classifier that adapts to clicks; choose a network with a "
    "ConvHead, such as 'lite2_unet_prop'",
}


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
