"""Probabilistic attention with adapted keys and propagated values (Gabbur et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Maps, Shared
from probseg.ops.axial import infer_lines
from probseg.ops.checks import check_shape
from probseg.ops.edges import EdgePosterior, gaussian_edges
from probseg.ops.mixture import PriorName
from probseg.ops.probabilistic import probabilistic_attention
from probseg.ops.settings import InferenceSettings
from probseg.ops.updates import KeyAdaptation, Update, ValuePropagation

LOG_LIMIT = 80.0  # exp(88) is the end of float32


@dataclass(frozen=True)
class LayerSettings(InferenceSettings):
    """Settings of a layer, in which learnt priors may replace the precisions of the updates.

    Args:
        learnt_key_prior: Whether the learnt precision replaces that of `key_adaptation`.
        learnt_value_prior: Whether the learnt precision replaces that of `value_propagation`.
        can_propagate: Whether the layer was built to propagate values, however often it does now.
    """

    learnt_key_prior: bool = False
    learnt_value_prior: bool = False
    can_propagate: bool = False


class ProbabilisticAttention2d(Attention2d):
    """Inference in a mixture of Gaussians whose units are the visible pixels.

    Without key adaptation, value precision and propagation, and with the "magnitude" prior, it is
    `StandardAttention2d`.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        log_prior: "magnitude", "key_magnitude" or "uniform", see `probabilistic_attention`.
        value_precision: `beta`, 0 for values without likelihood.
        value_iterations: Number of EM iterations of the values.
        key_iterations: Number of EM iterations of the keys; 0 leaves them as they are.
        key_prior: Precision of the prior of the keys, 0 for maximum likelihood.
        propagation_iterations: Number of EM iterations in which fixed values propagate, for a
            `value_precision` above 0; with 0, the layer takes none.
        value_prior: Precision of the prior of the value means in that propagation.
        learn_priors: Learn `key_prior` and `value_prior` where they are used, one of each for
            each head, from these values on. They are learnt in the log and therefore stay positive.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If a prior to be learnt is 0, or values are to propagate without a precision.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        log_prior: PriorName = "magnitude",
        value_precision: float = 0.0,
        value_iterations: int = 1,
        key_iterations: int = 1,
        key_prior: float = 0.0,
        propagation_iterations: int = 0,
        value_prior: float = 1.0,
        learn_priors: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        position = shared.get("position")
        if position is not None and log_prior == "uniform":
            msg = (
                "`log_prior` must be 'magnitude' or 'key_magnitude' with position embeddings (Eq. "
                "26)"
            )
            raise ValueError(msg)
        self.log_key_prior: nn.Parameter | None = None
        self.log_value_prior: nn.Parameter | None = None
        if learn_priors and key_iterations > 0:
            self.log_key_prior = _log_parameter("key_prior", key_prior, self.num_heads)
        if learn_priors and propagation_iterations > 0:
            self.log_value_prior = _log_parameter("value_prior", value_prior, self.num_heads)
        self.settings = LayerSettings(
            value_precision=value_precision,
            log_prior=log_prior,
            value_iterations=value_iterations,
            key_adaptation=KeyAdaptation(key_iterations, key_prior),
            value_propagation=ValuePropagation(propagation_iterations, value_prior),
            learnt_key_prior=self.log_key_prior is not None,
            learnt_value_prior=self.log_value_prior is not None,
            can_propagate=propagation_iterations > 0,
        )

    def adapt_keys(self, iterations: int | None = None, prior: float | None = None) -> None:
        """Change the adaptation of the keys; None leaves a setting as it is.

        Args:
            iterations: Number of EM iterations.
            prior: Precision of the prior, which takes the place of a learnt one.
        """
        changed = _changed(self.settings.key_adaptation, iterations, prior)
        learnt = self.settings.learnt_key_prior and prior is None
        self.settings = replace(self.settings, key_adaptation=changed, learnt_key_prior=learnt)

    def adapt_values(self, iterations: int | None = None, prior: float | None = None) -> None:
        """Change the propagation of fixed values; None leaves a setting as it is.

        Args:
            iterations: Number of EM iterations.
            prior: Precision of the prior, which takes the place of a learnt one.
        """
        changed = _changed(self.settings.value_propagation, iterations, prior)
        learnt = self.settings.learnt_value_prior and prior is None
        self.settings = replace(self.settings, value_propagation=changed, learnt_value_prior=learnt)

    def inference(self) -> InferenceSettings:
        """Return the settings with the current learnt priors."""
        settings = self.settings
        if settings.learnt_key_prior and self.log_key_prior is not None:
            keys = replace(settings.key_adaptation, prior_precision=_exp(self.log_key_prior))
            settings = replace(settings, key_adaptation=keys)
        if settings.learnt_value_prior and self.log_value_prior is not None:
            values = replace(settings.value_propagation, prior_precision=_exp(self.log_value_prior))
            settings = replace(settings, value_propagation=values)
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
                msg = (
                    "`fixed_values` must be None with propagation_iterations=0, which propagates "
                    "nothing"
                )
                raise ValueError(msg)
            expected = (len(values), self.value.out_channels, *values.shape[-2:])
            check_shape("fixed_values", fixed_values, expected, "(B, out_channels, H, W)")
            fixed_values = fixed_values.reshape(values.shape).to(values.dtype)  # under autocast
        inferred = infer_lines(
            queries,
            keys,
            values,
            self.inference(),
            axis=self.axis,
            span=self.span,
            position=self.position_tables(*queries.shape[-2:]),
            fixed_values=fixed_values,
            fixed_mask=fixed_mask,
        )
        return inferred.flatten(1, 2)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges with adapted keys, see `Attention2d`.

        Raises:
            ValueError: If it depends on values.
        """
        settings = self.inference()
        prior, beta = settings.log_prior, settings.value_precision
        if beta != 0.0 and (prior == "magnitude" or settings.value_iterations > 1):
            msg = (
                f"the posterior over edges depends on the values with value_precision={beta}, "
                f"log_prior={prior!r} and value_iterations={settings.value_iterations}; it is "
                "there for 'key_magnitude' and one iteration"
            )
            raise ValueError(msg)
        position = self.position_tables(*size)
        if settings.key_adaptation.iterations > 0:
            keys = probabilistic_attention(
                queries,
                keys,
                keys[..., :1],
                log_prior=prior,
                log_mask=log_mask,
                key_adaptation=settings.key_adaptation,
                position=position,
            ).keys
        return gaussian_edges(queries, keys, log_prior=prior, log_mask=log_mask, position=position)


def _changed(update: Update, iterations: int | None, prior: float | None) -> Update:
    if iterations is not None:
        update = replace(update, iterations=iterations)
    return update if prior is None else replace(update, prior_precision=prior)


def _exp(log_precision: Tensor) -> Tensor:
    """Return a precision in the range of float32; outside these limits, results do not change."""
    return log_precision.clamp(-LOG_LIMIT, LOG_LIMIT).exp()


def _log_parameter(name: str, precision: float, num_heads: int) -> nn.Parameter:
    if precision <= 0.0:
        msg = f"`{name}` must be above 0 to be learnt, got {precision}; start with a small value"
        raise ValueError(msg)
    return nn.Parameter(torch.full((num_heads, 1), math.log(precision)))  # (G, 1)
