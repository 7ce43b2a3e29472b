"""The plain head."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from probseg.attention.classifier import AdaptiveClassifier, ClickAdaptation
from probseg.heads.base import Head
from probseg.types import FeatureInfo


class ConvHead(Head):
    """1x1 convolution to a logit, enlarged to the image's size.

    Args:
        inputs: Channels and stride of the decoder's map.
        value_channels: Channels of the value features, which are then classified instead of the
            decoder's; None without.
        click_iterations: EM steps in which the classifier adapts to the clicks, see
            `AdaptiveClassifier`; 0 for none. Can be changed in a trained network.
        click_prior: Precision of the prior of its weights.

    Raises:
        ValueError: If ``click_iterations`` is negative or ``click_prior`` is not positive.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        value_channels: int | None = None,
        click_iterations: int = 0,
        click_prior: float = 10.0,
    ) -> None:
        super().__init__()
        channels = value_channels or inputs.channels[0]
        self.logit = AdaptiveClassifier(channels, ClickAdaptation(click_iterations, click_prior))

    def forward(
        self, features: Tensor, clicks: Tensor, value_features: Tensor | None = None
    ) -> Tensor:
        """Return logits ``(B, 1, H, W)``."""
        logits = self.logit(features if value_features is None else value_features, clicks)
        return F.interpolate(logits, clicks.shape[-2:], mode="bilinear", align_corners=False)
