"""Fusion of prompts with features that do not depend on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.heads.base import DecoderMaps, conv_norm_relu, separable_conv
from probseg.types import FeatureInfo, Prompts


class Fusion(nn.Module, ABC):
    """Base of the networks that add prompts after the decoder.

    Besides the head, they are all that runs for each click. Their first two arguments are the
    `FeatureInfo` of the decoder's maps and the number of click maps.

    Attributes:
        channels: Channels of the result.
    """

    channels: int

    def prepare(self, decoder_maps: DecoderMaps, image: Tensor) -> DecoderMaps:
        """Compute everything that depends on the image alone, once for all clicks.

        Args:
            decoder_maps: Result of the decoder.
            image: RGB in [0, 1], shape `(B, 3, H, W)`.

        Returns:
            What `forward` is given; by default the decoder's result.
        """
        return decoder_maps

    @abstractmethod
    def forward(self, decoder_maps: DecoderMaps, maps: Tensor, prompts: Prompts) -> Tensor:
        """Fuse features and prompts.

        Args:
            decoder_maps: Result of `prepare`.
            maps: Click maps, shape `(B, P, H, W)`.
            prompts: The prompts themselves, in pixels of the maps.

        Returns:
            Features that know of both, shape `(B, V, h, w)`.
        """


class PromptFusion(Fusion):
    """Light network from the decoder's finest map and the click maps to fused features.

    Residual depthwise separable convolutions, ever wider apart.

    Args:
        inputs: Channels and strides of the decoder's maps.
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

    def forward(self, decoder_maps: DecoderMaps, maps: Tensor, prompts: Prompts) -> Tensor:
        """Return features `(B, V, h, w)` of the decoder's finest stride."""
        features = decoder_maps.features
        # The maximum keeps every click, however coarse the features.
        size = [features.shape[-2], features.shape[-1]]
        maps = F.adaptive_max_pool2d(maps, size).to(features.dtype)
        fused: Tensor = self.reduce(features) + self.embed(maps)
        for block in self.blocks:
            fused = fused + block(fused)
        return fused
