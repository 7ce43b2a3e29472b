"""Fusion of prompts with features that do not depend on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention import replacing_convolution
from probseg.errors import require
from probseg.heads.base import DecoderMaps, conv_norm, conv_norm_relu, enlarge_to, separable_conv
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
        """Compute what `forward` is given, once for all clicks; by default the decoder's maps.

        The image is RGB in [0, 1], `(B, 3, H, W)`.
        """
        return decoder_maps

    @abstractmethod
    def forward(self, decoder_maps: DecoderMaps, maps: Tensor, prompts: Prompts) -> Tensor:
        """Fuse the result of `prepare` with click maps `(B, P, H, W)` to features `(B, V, h, w)`.

        The prompts themselves are in pixels of the click maps.
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


class PromptStage(Fusion):
    """Bottleneck blocks on one level of the pyramid, with 3x3 convolutions or with attention.

    All other layers of the stage are 1x1 convolutions: prompts reach another cell of its grid
    through these convolutions or this attention alone. The result is enlarged to the finest stride
    by sub-pixel convolution (Shi et al. 2016).

    Args:
        inputs: Channels and strides of the decoder's maps, finest first.
        prompt_channels: Number of click maps.
        level: Number of the level, 0 for the finest.
        channels: Channels of the stage, even; its 3x3 convolutions or attention have half of them.
        blocks: Number of blocks.
        attention: Name of an attention in `ATTENTIONS`; None for 3x3 convolutions.
        layout: "full" or "axial", of the attention, as are the next three.
        position: "factored", "full" or None: relative position embeddings.
        num_heads: Number of heads.
        image_size: Side in pixels of the images that the position embeddings are learnt for; for
            others they are interpolated.
        finer: Whether the result also depends on the finer levels of the pyramid, which then pass
            the stage by.
        finer_prompts: Whether the click maps pass it by, too, at the finest stride.
        out_channels: Channels of the result.
        options: Further arguments of the attention's class.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        prompt_channels: int,
        level: int = 2,
        channels: int = 128,
        blocks: int = 2,
        attention: str | None = None,
        layout: str = "full",
        position: str | None = "factored",
        num_heads: int = 4,
        image_size: int = 160,
        finer: bool = False,
        finer_prompts: bool = False,
        out_channels: int = 16,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        known = f"one of the {len(inputs.strides)} levels of the decoder, from 0 for the finest"
        require(0 <= level < len(inputs.strides), "level", known, level)
        require(blocks >= 1, "blocks", "at least 1", blocks)
        self.level = level
        self.channels = out_channels
        stride = inputs.strides[level]
        side = -(-image_size // stride)
        self.embed = nn.Conv2d(prompt_channels, channels, kernel_size=stride, stride=stride)
        self.project = conv_norm(inputs.channels[level], channels, 1)
        width = channels // 2
        self.blocks = nn.ModuleList()
        for _ in range(blocks):
            mixing: list[nn.Module] = [nn.Conv2d(width, width, 3, padding=1, bias=False)]
            if attention is not None:
                mixing = [
                    *replacing_convolution(
                        attention,
                        width,
                        width,
                        layout=layout,
                        num_heads=num_heads,
                        position=position,
                        position_size=(side, side),
                        options=options,
                    )
                ]
            self.blocks.append(_Bottleneck(channels, width, mixing))
        self.ratio = stride // inputs.strides[0]
        self.subpixels = nn.Conv2d(channels, out_channels * self.ratio**2, kernel_size=1)
        self.finer = nn.ModuleList(
            conv_norm(fine, out_channels, 1) for fine in inputs.channels[: level if finer else 0]
        )
        self.embed_finer: nn.Conv2d | None = None
        if finer_prompts:
            finest = inputs.strides[0]
            self.embed_finer = nn.Conv2d(prompt_channels, out_channels, finest, stride=finest)
        self.smooth = conv_norm_relu(out_channels, out_channels, 3)

    def forward(self, decoder_maps: DecoderMaps, maps: Tensor, prompts: Prompts) -> Tensor:
        """Return features `(B, V, h, w)` of the decoder's finest stride."""
        pyramid = (decoder_maps.features, *decoder_maps.coarser)
        features = pyramid[self.level]
        x: Tensor = F.relu(self.project(features) + self.embed(maps.to(features.dtype)))
        for block in self.blocks:
            x = block(x)
        x = F.pixel_shuffle(self.subpixels(x), self.ratio)
        for project, finer in zip(self.finer, pyramid, strict=False):
            x = x + enlarge_to(project(finer), x)
        if self.embed_finer is not None:
            x = x + self.embed_finer(maps.to(x.dtype))
        smoothed: Tensor = self.smooth(F.relu(x))
        return smoothed


class _Bottleneck(nn.Module):
    """Residual block whose layers in the middle connect the pixels (He et al. 2016)."""

    def __init__(self, channels: int, width: int, mixing: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *conv_norm_relu(channels, width, 1),
            *mixing,
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            *conv_norm(width, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Transform `(B, C, h, w)`."""
        result: Tensor = F.relu(x + self.layers(x))
        return result
