"""Probabilistic attention with adapted keys and propagated values (Gabbur et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Maps, Shared
from probseg.errors import UnknownNameError
from probseg.ops.axial import axial_attention
from probseg.ops.checks import check_shape
from probseg.ops.edges import EdgePosterior, gaussian_edges
from probseg.ops.mixture import PRIOR_NAMES, PriorName
from probseg.ops.probabilistic import probabilistic_attention
from probseg.ops.updates import KeyAdaptation, Update, ValuePropagation

LOG_LIMIT = 80.0  # exp(88) is the end of float32


class Settings(NamedTuple):
    """What happens to keys and values, and whether learnt priors take part in it.

    Args:
        keys: Adaptation of the keys.
        values: Propagation of fixed values.
        learnt_key_prior: Whether the learnt precision replaces that of ``keys``.
        learnt_value_prior: Whether the learnt precision replaces that of ``values``.
        can_propagate: Whether the layer was built to propagate values, however often it does now.
    """

    keys: KeyAdaptation
    values: ValuePropagation
    learnt_key_prior: bool
    learnt_value_prior: bool
    can_propagate: bool


class ProbabilisticAttention2d(Attention2d):
    """Inference in a mixture of Gaussians whose units are the pixels in sight.

    Without key adaptation, value precision and propagation, and with the "magnitude" prior, it is
    ``StandardAttention2d``.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        log_prior: "magnitude", "key_magnitude" or "uniform", see ``probabilistic_attention``.
        value_precision: ``beta``, 0 for values without likelihood.
        value_iterations: Number of EM iterations of the values.
        key_iterations: Number of EM iterations of the keys; 0 leaves them as they are.
        key_prior: Precision of the prior of the keys, 0 for maximum likelihood.
        propagation_iterations: Number of EM iterations in which fixed values propagate, for a
            ``value_precision`` above 0; with 0, the layer takes none.
        value_prior: Precision of the prior of the value means in that propagation.
        learn_priors: Learn ``key_prior`` and ``value_prior`` where they are used, one of each for
            each head, from these values on. They are learnt in the log and therefore stay positive.
        **shared: As in ``Attention2d``.

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
        if log_prior not in PRIOR_NAMES:
            raise UnknownNameError(kind="log prior", name=log_prior, known=PRIOR_NAMES)
        if position is not None and log_prior == "uniform":
            msg = "position embeddings need the log_prior 'magnitude' or 'key_magnitude' (Eq. 26)"
            raise ValueError(msg)
        if propagation_iterations > 0 and value_precision == 0.0:
            msg = (
                "propagation_iterations need a value_precision above 0, got 0: without a value "
                "likelihood nothing propagates (Gabbur et al., 2021, use 0.1)"
            )
            raise ValueError(msg)
        self.log_prior: PriorName = log_prior
        self.value_precision = value_precision
        self.value_iterations = value_iterations
        self.log_key_prior: nn.Parameter | None = None
        self.log_value_prior: nn.Parameter | None = None
        if learn_priors and key_iterations > 0:
            self.log_key_prior = _log_parameter("key_prior", key_prior, self.num_heads)
        if learn_priors and propagation_iterations > 0:
            self.log_value_prior = _log_parameter("value_prior", value_prior, self.num_heads)
        self.settings = Settings(
            KeyAdaptation(key_iterations, key_prior),
            ValuePropagation(propagation_iterations, value_prior),
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
        keys = _changed(self.settings.keys, iterations, prior)
        learnt = self.settings.learnt_key_prior and prior is None
        self.settings = self.settings._replace(keys=keys, learnt_key_prior=learnt)

    def adapt_values(self, iterations: int | None = None, prior: float | None = None) -> None:
        """Change the propagation of fixed values; None leaves a setting as it is.

        Args:
            iterations: Number of EM iterations.
            prior: Precision of the prior, which takes the place of a learnt one.
        """
        values = _changed(self.settings.values, iterations, prior)
        learnt = self.settings.learnt_value_prior and prior is None
        self.settings = self.settings._replace(values=values, learnt_value_prior=learnt)

    def updates(self) -> tuple[KeyAdaptation, ValuePropagation]:
        """Return what happens to keys and values, with the priors as they are learnt so far."""
        keys, values, learnt_key_prior, learnt_value_prior, _ = self.settings
        if learnt_key_prior and self.log_key_prior is not None:
            keys = replace(keys, prior_precision=_exp(self.log_key_prior))
        if learnt_value_prior and self.log_value_prior is not None:
            values = replace(values, prior_precision=_exp(self.log_value_prior))
        return keys, values

    def forward(
        self,
        features: Maps,
        value_features: Maps | None = None,
        fixed_values: Tensor | None = None,
        fixed_mask: Tensor | None = None,
    ) -> Tensor:
        """Infer the value of each pixel; see ``Attention2d.forward``.

        Args:
            features: As there.
            value_features: As there.
            fixed_values: Known values of the output, ``(B, out_channels, H, W)``, which propagate;
                read only where ``fixed_mask``.
            fixed_mask: Where they are known, bool, ``(B, H, W)``.

        Raises:
            ValueError: If a shape is wrong, values are fixed and the layer does not propagate any,
                or one of the last two arguments is missing.
        """
        queries, keys, values = self.projected(features, value_features)
        if fixed_values is not None:
            if self.settings.values.iterations == 0:
                msg = "fixed_values do not propagate with propagation_iterations=0; set or omit it"
                raise ValueError(msg)
            expected = (len(values), self.value.out_channels, *values.shape[-2:])
            check_shape("fixed_values", fixed_values, expected, "(B, out_channels, H, W)")
            fixed_values = fixed_values.reshape(values.shape).to(values.dtype)  # under autocast
        key_adaptation, value_propagation = self.updates()
        inferred = axial_attention(
            queries,
            keys,
            values,
            axis=self.axis,
            span=self.span,
            position=self.position_tables(*queries.shape[-2:]),
            log_prior=self.log_prior,
            value_precision=self.value_precision,
            value_iterations=self.value_iterations,
            key_adaptation=key_adaptation,
            value_propagation=None if fixed_values is None else value_propagation,
            fixed_values=fixed_values,
            fixed_mask=fixed_mask,
        )
        return inferred.flatten(1, 2)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges with adapted keys, see ``Attention2d``.

        Raises:
            ValueError: If it depends on values.
        """
        if self.value_precision > 0.0 and (
            self.log_prior == "magnitude" or self.value_iterations > 1
        ):
            msg = (
                "the posterior over edges depends on the values with value_precision="
                f"{self.value_precision}, log_prior={self.log_prior!r} and value_iterations="
                f"{self.value_iterations}; it is there for 'key_magnitude' and one iteration"
            )
            raise ValueError(msg)
        position = self.position_tables(*size)
        adaptation, _ = self.updates()
        if adaptation.iterations > 0:
            keys = probabilistic_attention(
                queries,
                keys,
                keys[..., :1],
                log_prior=self.log_prior,
                log_mask=log_mask,
                key_adaptation=adaptation,
                position=position,
            ).keys
        return gaussian_edges(
            queries, keys, log_prior=self.log_prior, log_mask=log_mask, position=position
        )


def _changed(update: Update, iterations: int | None, prior: float | None) -> Update:
    if iterations is not None:
        update = replace(update, iterations=iterations)
    return update if prior is None else replace(update, prior_precision=prior)


def _exp(log_precision: Tensor) -> Tensor:
    """Return a precision that float32 can hold; beyond these limits, nothing changes any more."""
    return log_precision.clamp(-LOG_LIMIT, LOG_LIMIT).exp()


def _log_parameter(name: str, precision: float, num_heads: int) -> nn.Parameter:
    if precision <= 0.0:
        msg = f"{name} must be above 0 to be learnt, got {precision}; start with a small value"
        raise ValueError(msg)
    return nn.Parameter(torch.full((num_heads, 1), math.log(precision)))  # (G, 1)
