"""The plain head."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.heads.base import Head
from probseg.types import FeatureInfo


class ConvHead(Head):
    """1x1 convolution to a logit, enlarged to the image's size.

    Args:
        inputs: Channels and stride of the decoder's map.
        value_channels: Channels of the value features, which are then classified instead of the
            decoder's; None without.
    """

    def __init__(self, inputs: FeatureInfo, value_channels: int | None = None) -> None:
        super().__init__()
        self.logit = nn.Conv2d(value_channels or inputs.channels[0], 1, kernel_size=1)

    def forward(
        self, features: Tensor, clicks: Tensor, value_features: Tensor | None = None
    ) -> Tensor:
        """Return logits ``(B, 1, H, W)``; the clicks give the size only."""
        logits = self.logit(features if value_features is None else value_features)
        return F.interpolate(logits, clicks.shape[-2:], mode="bilinear", align_corners=False)
