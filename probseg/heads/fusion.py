"""Where prompts meet the features of a backbone that has not seen them."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.heads.base import conv_norm_relu, separable_conv
from probseg.types import FeatureInfo


class PromptFusion(nn.Module):
    """Light network from the decoder's map and the click maps to features that know of both.

    It is all that runs for each click, besides the head, where prompts enter at the head: residual
    depthwise separable convolutions, ever wider apart.

    Args:
        inputs: Channels and stride of the decoder's map.
        prompt_channels: Number of click maps.
        channels: Channels of the result.
        dilations: Distance in pixels of the map between the taps of each block's convolution.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        prompt_channels: int,
        channels: int = 64,
        dilations: Sequence[int] = (1, 2, 4, 8),
    ) -> None:
        super().__init__()
        self.channels = channels
        self.reduce = conv_norm_relu(inputs.channels[0], channels, 1)
        self.embed = nn.Conv2d(prompt_channels, channels, kernel_size=3, padding=1)
        self.blocks = nn.ModuleList(separable_conv(channels, channels, d) for d in dilations)

    def forward(self, features: Tensor, maps: Tensor) -> Tensor:
        """Fuse features ``(B, C, h, w)`` and click maps ``(B, P, H, W)`` to ``(B, V, h, w)``."""
        # The maximum keeps every click, however coarse the features.
        size = [features.shape[-2], features.shape[-1]]
        maps = F.adaptive_max_pool2d(maps, size).to(features.dtype)
        fused: Tensor = self.reduce(features) + self.embed(maps)
        for block in self.blocks:
            fused = fused + block(fused)
        return fused
