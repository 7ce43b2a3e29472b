"""Probabilistic attention with adapted keys (Gabbur et al., 2021)."""

from __future__ import annotations

from torch import Tensor

from probseg.attention.base import Attention2d
from probseg.ops.adaptation import KeyAdaptation
from probseg.ops.axial import Axis, axial_attention
from probseg.ops.mixture import PriorName


class ProbabilisticAttention2d(Attention2d):
    """Inference in a mixture of Gaussians whose units are the pixels in sight.

    Without key adaptation and value precision, and with the "magnitude" prior, it is
    ``StandardAttention2d``.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        num_heads: Number of heads ``G``.
        head_channels: Channels ``D`` of queries and keys in each head.
        value_in_channels: Channels of the value features; None is ``in_channels``.
        axis: "height" lets a pixel see its column, "width" its row, "full" the whole map.
        span: Window along the axis: a pixel sees those at most ``span // 2`` away; None is the
            whole line. Only for the axes "height" and "width".
        log_prior: "magnitude", "key_magnitude" or "uniform", see ``probabilistic_attention``.
        value_precision: ``beta``, 0 for values without likelihood.
        value_iterations: Number of EM iterations of the values.
        key_iterations: Number of EM iterations of the keys; 0 leaves them as they are.
        key_prior: Precision of the prior of the keys, 0 for maximum likelihood.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_heads: int = 1,
        head_channels: int = 32,
        value_in_channels: int | None = None,
        axis: Axis = "full",
        span: int | None = None,
        log_prior: PriorName = "magnitude",
        value_precision: float = 0.0,
        value_iterations: int = 1,
        key_iterations: int = 1,
        key_prior: float = 0.0,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            num_heads=num_heads,
            head_channels=head_channels,
            value_in_channels=value_in_channels,
            axis=axis,
            span=span,
        )
        self.log_prior: PriorName = log_prior
        self.value_precision = value_precision
        self.value_iterations = value_iterations
        self.key_adaptation = KeyAdaptation(key_iterations, key_prior)

    def attend_maps(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Infer the value of each pixel, see ``Attention2d``."""
        return axial_attention(
            queries,
            keys,
            values,
            axis=self.axis,
            span=self.span,
            log_prior=self.log_prior,
            value_precision=self.value_precision,
            value_iterations=self.value_iterations,
            key_adaptation=self.key_adaptation,
        )
