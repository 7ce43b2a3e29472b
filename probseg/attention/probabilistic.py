"""Probabilistic attention with adapted keys and propagated values (Gabbur et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Maps, Projection, Shared
from probseg.ops.axial import infer_lines, to_lines
from probseg.ops.checks import check_shape
from probseg.ops.edges import EdgePosterior, gaussian_edges
from probseg.ops.mixture import PriorName
from probseg.ops.probabilistic import probabilistic_attention
from probseg.ops.settings import (
    DirichletPrior,
    GammaPrior,
    Given,
    InferenceSettings,
    KeyAdaptation,
    PriorMean,
    Update,
    ValuePropagation,
)

LOG_LIMIT = 80.0  # exp(88) is the end of float32

LEARNT = (
    "key_prior",
    "key_shape",
    "key_rate",
    "value_prior",
    "value_shape",
    "value_rate",
    "weight_prior",
    "query_precision",
    "value_precision",
)
"""What layers can learn in the log: of shapes and concentrations, what they exceed 1 by."""


@dataclass(frozen=True)
class LayerSettings(InferenceSettings):
    """Settings of a layer, in which learnt priors may replace the precisions of the updates."""

    learnt_key_prior: bool = False  # instead of the precision of `key_adaptation`
    learnt_value_prior: bool = False  # instead of that of `value_propagation`
    learnt_query_precision: bool = False  # instead of `query_precision`
    can_propagate: bool = False  # built to propagate values, however often it does now


class ProbabilisticAttention2d(Attention2d):
    """Inference in a mixture of Gaussians whose units are the visible pixels.

    Without key adaptation, value precision and propagation, and with the "magnitude" prior, it is
    `StandardAttention2d`.

    Args:
        log_prior: "magnitude", "key_magnitude" or "uniform", see `probabilistic_attention`; or
            "learnt", a projection of the features, which is uniform at first (§3.4).
        value_precision: `beta`, 0 for values without likelihood.
        value_iterations: Number of EM iterations of the values.
        key_iterations: Number of EM iterations of the keys; 0 leaves them as they are.
        key_prior: Precision of the prior of the keys, 0 for maximum likelihood.
        key_prior_mean: Centre of that prior, see `KeyAdaptation`.
        key_precision_prior: Shape and rate of the `GammaPrior` with which `alpha` adapts too (Eq.
            36); None keeps `alpha`.
        propagation_iterations: Number of EM iterations in which fixed values propagate, for a
            `value_precision` above 0; with 0, the layer takes none.
        value_prior: Precision of the prior of the value means in that propagation.
        value_prior_mean: Centre of that prior, see `ValuePropagation`: "previous" in Eq. 23.
        propagation_given: What the responsibilities of fixed pixels are given there.
        value_precision_prior: Shape and rate of the `GammaPrior` with which `beta` adapts too (Eq.
            37); None keeps `beta`.
        weight_prior: Concentration of the `DirichletPrior` with which the mixture weights adapt too
            (Eq. 38); None keeps them.
        learn_priors: Learn the parameters of the priors that are used, for each head its own, from
            these values on (§3.7). They stay in their range, as what is above its lower end is
            learnt in the log.
        learn_precisions: Learn `alpha`, and `beta` if it is above 0, in the log, for each head its
            own; they start with `1 / sqrt(D)` and `value_precision`.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If a parameter of a prior to be learnt is at the lower end of its range, or
            values are to propagate without a precision.
    """

    log_key_prior: nn.Parameter | None
    log_value_prior: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        log_prior: PriorName | Literal["learnt"] = "magnitude",
        value_precision: float = 0.0,
        value_iterations: int = 1,
        key_iterations: int = 1,
        key_prior: float = 0.0,
        key_prior_mean: PriorMean = "initial",
        key_precision_prior: tuple[float, float] | None = None,
        propagation_iterations: int = 0,
        value_prior: float = 1.0,
        value_prior_mean: PriorMean = "initial",
        propagation_given: Given = "queries_and_values",
        value_precision_prior: tuple[float, float] | None = None,
        weight_prior: float | None = None,
        learn_priors: bool = False,
        learn_precisions: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        adapts, propagates = key_iterations > 0, propagation_iterations > 0
        self.log_weights: nn.Conv2d | None = None
        if log_prior == "learnt":
            log_prior = "uniform"
            self.log_weights = Projection(in_channels, self.num_heads, zeros=True)
        self.settings = LayerSettings(
            query_precision=self.head_channels**-0.5,
            value_precision=value_precision,
            log_prior=log_prior,
            value_iterations=value_iterations,
            key_adaptation=KeyAdaptation(
                key_iterations, key_prior, key_prior_mean, _gamma_prior(key_precision_prior)
            ),
            value_propagation=ValuePropagation(
                propagation_iterations,
                value_prior,
                value_prior_mean,
                _gamma_prior(value_precision_prior),
                None if weight_prior is None else DirichletPrior(weight_prior),
                propagation_given,
            ),
            learnt_key_prior=learn_priors and adapts,
            learnt_value_prior=learn_priors and propagates,
            learnt_query_precision=learn_precisions,
            can_propagate=propagates,
        )
        learnt: dict[str, float] = {}
        if learn_priors and adapts:
            learnt |= {"key_prior": key_prior, **_gamma_parts("key", key_precision_prior)}
        if learn_priors and propagates:
            learnt |= {"value_prior": value_prior, **_gamma_parts("value", value_precision_prior)}
            learnt |= {} if weight_prior is None else {"weight_prior": weight_prior - 1.0}
        if learn_precisions:
            learnt["query_precision"] = self.head_channels**-0.5
            learnt |= {"value_precision": value_precision} if value_precision > 0.0 else {}
        for name in LEARNT:
            self.register_parameter(f"log_{name}", None)
        for name, started in learnt.items():
            if started <= 0.0:
                lowest = 1 if name in ("key_shape", "value_shape", "weight_prior") else 0
                raise ValueError(
                    f"`{name}` must be above {lowest} to be learnt, got {started + lowest}; start "
                    "with a small value above it"
                )
            log_started = torch.full((self.num_heads, 1), math.log(started))  # (G, 1)
            self.register_parameter(f"log_{name}", nn.Parameter(log_started))
        self._started = learnt

    def reset_parameters(self) -> None:
        """Draw all parameters anew, see `Attention2d`."""
        super().reset_parameters()
        for name, started in self._started.items():
            nn.init.constant_(getattr(self, f"log_{name}"), math.log(started))

    @property
    def query_precision(self) -> float | None:
        """`alpha`; None if it is learnt."""
        settings = self.settings
        assert not isinstance(settings.query_precision, Tensor), "a setting is a number"
        return None if settings.learnt_query_precision else settings.query_precision

    def adapt_keys(
        self,
        iterations: int | None = None,
        prior: float | None = None,
        query_precision: float | None = None,
    ) -> None:
        """Change the adaptation of the keys, and `alpha`.

        None leaves a setting as it is; a prior ends a learnt one, as a precision does.
        """
        settings = self.settings
        self.settings = replace(
            settings,
            key_adaptation=_changed(settings.key_adaptation, iterations, prior),
            learnt_key_prior=settings.learnt_key_prior and prior is None,
            query_precision=query_precision or settings.query_precision,
            learnt_query_precision=settings.learnt_query_precision and query_precision is None,
        )

    def adapt_values(self, iterations: int | None = None, prior: float | None = None) -> None:
        """Change the propagation of fixed values, as `adapt_keys` does that of the keys."""
        changed = _changed(self.settings.value_propagation, iterations, prior)
        learnt = self.settings.learnt_value_prior and prior is None
        self.settings = replace(self.settings, value_propagation=changed, learnt_value_prior=learnt)

    def inference(self) -> InferenceSettings:
        """Return the settings with the current learnt parameters."""
        settings = self.settings
        learnt: dict[str, Tensor] = {}
        for name in LEARNT:
            if (log := getattr(self, f"log_{name}")) is not None:
                # In the range of float32; beyond these limits, results do not change.
                learnt[name] = log.clamp(-LOG_LIMIT, LOG_LIMIT).exp()
        keys, values = settings.key_adaptation, settings.value_propagation
        if settings.learnt_key_prior:
            keys = replace(keys, prior_precision=learnt["key_prior"])
        if settings.learnt_value_prior:
            values = replace(values, prior_precision=learnt["value_prior"])
        if "key_shape" in learnt:
            gamma = GammaPrior(1.0 + learnt["key_shape"], learnt["key_rate"])
            keys = replace(keys, precision_prior=gamma)
        if "value_shape" in learnt:
            gamma = GammaPrior(1.0 + learnt["value_shape"], learnt["value_rate"])
            values = replace(values, precision_prior=gamma)
        if "weight_prior" in learnt:
            dirichlet = DirichletPrior(1.0 + learnt["weight_prior"])
            values = replace(values, dirichlet_prior=dirichlet)
        settings = replace(settings, key_adaptation=keys, value_propagation=values)
        if settings.learnt_query_precision:
            settings = replace(settings, query_precision=learnt["query_precision"])
        if "value_precision" in learnt:
            settings = replace(settings, value_precision=learnt["value_precision"])
        return settings

    def forward(
        self,
        features: Maps,
        value_features: Maps | None = None,
        fixed_values: Tensor | None = None,
        fixed_mask: Tensor | None = None,
    ) -> Tensor:
        """Infer the value of each pixel; see `Attention2d.forward`.

        Args:
            features: As there.
            value_features: As there.
            fixed_values: Known values of the output, `(B, out_channels, H, W)`, which propagate;
                read only where `fixed_mask`.
            fixed_mask: Where they are known, bool, `(B, H, W)`.

        Raises:
            ValueError: If a shape is wrong, values are fixed and the layer does not propagate any,
                or one of the last two arguments is missing.
        """
        queries, keys, values = self.projected(features, value_features)
        if fixed_values is not None:
            if not self.settings.propagates:
                raise ValueError(
                    "`fixed_values` must be None with propagation_iterations=0, which propagates "
                    "nothing"
                )
            expected = values.flatten(1, 2).shape
            check_shape("fixed_values", fixed_values, expected, "(B, out_channels, H, W)")
            fixed_values = fixed_values.reshape(values.shape).to(values.dtype)  # under autocast
        settings = self.inference()
        if self.log_weights is not None:
            log_prior = to_lines(self._project(self.log_weights, features), self.axis)[..., 0]
            settings = replace(settings, log_prior=log_prior)  # of each line (B', G, M)
        inferred = infer_lines(
            queries,
            keys,
            values,
            settings,
            axis=self.axis,
            span=self.span,
            position=self.position_tables(*queries.shape[-2:]),
            fixed_values=fixed_values,
            fixed_mask=fixed_mask,
        )
        return self.with_offsets(inferred, queries, keys).flatten(1, 2)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges with adapted keys, see `Attention2d`.

        Raises:
            ValueError: If it depends on values.
        """
        settings = self.inference()
        prior, beta = settings.log_prior, self.settings.value_precision
        if beta != 0.0 and (prior == "magnitude" or settings.value_iterations > 1):
            raise ValueError(
                f"the posterior over edges depends on the values with value_precision={beta}, "
                f"log_prior={prior!r} and value_iterations={settings.value_iterations}; it is "
                "there for 'key_magnitude' and one iteration"
            )
        if self.log_weights is not None:
            raise ValueError(
                "the posterior over edges is there for the named priors, got log_prior='learnt', "
                "which depends on the features"
            )
        alpha = settings.query_precision
        position = self.position_tables(*size)
        if settings.key_adaptation.iterations > 0:
            adapted = probabilistic_attention(
                queries,
                keys,
                keys[..., :1],
                query_precision=alpha,
                log_prior=prior,
                log_mask=log_mask,
                key_adaptation=settings.key_adaptation,
                position=position,
            )
            keys = adapted.keys
            if settings.key_adaptation.precision_prior is not None:
                alpha = adapted.query_precision
        return gaussian_edges(
            queries,
            keys,
            query_precision=alpha,
            log_prior=prior,
            log_mask=log_mask,
            position=position,
        )


def _changed(update: Update, iterations: int | None, prior: float | None) -> Update:
    if iterations is not None:
        update = replace(update, iterations=iterations)
    return update if prior is None else replace(update, prior_precision=prior)


def _gamma_prior(shape_and_rate: tuple[float, float] | None) -> GammaPrior | None:
    return None if shape_and_rate is None else GammaPrior(*shape_and_rate)


def _gamma_parts(of: str, shape_and_rate: tuple[float, float] | None) -> dict[str, float]:
    """Return the parameters of a Gamma prior to learn, by their names in `LEARNT`."""
    if shape_and_rate is None:
        return {}
    shape, rate = shape_and_rate
    return {f"{of}_shape": shape - 1.0, f"{of}_rate": rate}
