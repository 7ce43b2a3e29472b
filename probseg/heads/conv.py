"""Heads of convolutions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention.classifier import AdaptiveClassifier, ClickAdaptation
from probseg.heads.base import Head, depthwise_pointwise
from probseg.types import FeatureInfo


class ConvHead(Head):
    """1x1 convolution to a logit, enlarged to the image's size; aligned as the decoder's map is.

    Args:
        inputs: Channels and stride of the decoder's map.
        value_channels: Channels of the value features, which are then classified instead of the
            decoder's; None without.
        click_iterations: EM steps in which the classifier adapts to the clicks, see
            `AdaptiveClassifier`; 0 for none. Can be changed in a trained network.
        click_prior: Precision of the prior of its weights.

    Raises:
        ValueError: If `click_iterations` is negative or `click_prior` is not positive.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        value_channels: int | None = None,
        click_iterations: int = 0,
        click_prior: float = 10.0,
    ) -> None:
        super().__init__()
        self.aligned = inputs.aligned
        channels = value_channels or inputs.channels[0]
        self.logit = AdaptiveClassifier(channels, ClickAdaptation(click_iterations, click_prior))

    def forward(
        self, features: Tensor, clicks: Tensor, value_features: Tensor | None = None
    ) -> Tensor:
        """Return logits `(B, 1, H, W)`."""
        logits = self.logit(features if value_features is None else value_features, clicks)
        return F.interpolate(logits, clicks.shape[-2:], mode="bilinear", align_corners=self.aligned)


class SeparableHead(Head):
    """Two separable convolutions and a 1x1 convolution to a logit, enlarged to the image's size.

    Source: the code of Sofiiuk et al. 2021 (RITM), behind its DeepLabV3+, with half of the
    decoder's channels.

    Args:
        inputs: Channels and stride of the decoder's map.
        value_channels: Channels of the value features, which are then classified instead of the
            decoder's; None without.
        channels: Number of channels behind each separable convolution.
    """

    def __init__(
        self, inputs: FeatureInfo, value_channels: int | None = None, channels: int = 128
    ) -> None:
        super().__init__()
        self.aligned = inputs.aligned
        self.layers = nn.Sequential(
            depthwise_pointwise(value_channels or inputs.channels[0], channels),
            depthwise_pointwise(channels, channels),
            nn.Conv2d(channels, 1, kernel_size=1),
        )

    def forward(
        self, features: Tensor, clicks: Tensor, value_features: Tensor | None = None
    ) -> Tensor:
        """Return logits `(B, 1, H, W)`."""
        logits = self.layers(features if value_features is None else value_features)
        size = clicks.shape[-2:]
        return F.interpolate(logits, size, mode="bilinear", align_corners=self.aligned)
