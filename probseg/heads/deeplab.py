"""DeepLabV3+ decoder (Chen et al. 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import require
from probseg.heads.base import (
    Decoder,
    DecoderMaps,
    conv_norm_relu,
    depthwise_pointwise,
    separable_conv,
)
from probseg.types import FeatureInfo


class _DeepLab(Decoder):
    """A pyramid on the coarsest map, joined with a fine one; subclasses make pyramid and fusion."""

    fuse: nn.Module
    low_channels: int  # to which the fine map is reduced

    def __init__(
        self,
        inputs: FeatureInfo,
        channels: int,
        stride: int,
        pyramid: AtrousPyramid,
        aligned: bool = False,
    ) -> None:
        super().__init__()
        self.pyramid = pyramid
        known = f"that of one of the backbone's maps, {inputs.strides}"
        require(stride in inputs.strides, "stride", known, stride, "or choose another backbone")
        self.low_level = inputs.strides.index(stride)
        self.low = conv_norm_relu(inputs.channels[self.low_level], self.low_channels, 1)
        self.features = FeatureInfo((channels,), (stride,), aligned)

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Fuse the coarsest map and the fine one into a map of the fine one's size."""
        low = self.low(maps[self.low_level])  # (B, L, h, w)
        context = self.pyramid(maps[-1])
        context = F.interpolate(
            context, low.shape[-2:], mode="bilinear", align_corners=self.features.aligned
        )
        return DecoderMaps(self.fuse(torch.cat([context, low], dim=1)))


class DeepLabV3PlusDecoder(_DeepLab):
    """Context of several scales from the coarsest map, edges from a fine one.

    Source: Chen, Zhu, Papandreou, Schroff and Adam, 2018, "Encoder-Decoder with Atrous Separable
    Convolution for Semantic Image Segmentation", section 3 and Fig. 2. The rates of the 3x3
    convolutions are those of Chen et al. 2017, "Rethinking Atrous Convolution", section 3.3:
    (6, 12, 18) for a coarsest map of stride 16, and in inverse proportion to other strides.

    Args:
        inputs: Channels and strides of the backbone's maps.
        channels: Number of channels of the pyramid's branches and of the result.
        stride: Stride of the fine map, and of the result.
    """

    low_channels = 48

    def __init__(self, inputs: FeatureInfo, channels: int = 256, stride: int = 4) -> None:
        rates = default_rates(inputs.strides[-1])
        pyramid = AtrousPyramid(inputs.channels[-1], channels, rates, dropout=0.1)
        super().__init__(inputs, channels, stride, pyramid)
        self.fuse = nn.Sequential(
            separable_conv(channels + self.low_channels, channels),
            separable_conv(channels, channels),
        )


class AtrousPyramid(nn.Module):
    """Atrous spatial pyramid pooling, with a branch for each rate.

    A `dense` one has plain 3x3 convolutions, and a batch normalisation in the pooled branch (Chen
    et al. 2017, "Rethinking Atrous Convolution", 3.3), instead of separable convolutions (Chen et
    al. 2018, section 3).
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        rates: tuple[int, ...],
        dropout: float,
        dense: bool = False,
    ) -> None:
        super().__init__()
        self.point = conv_norm_relu(in_channels, channels, 1)
        if dense:
            branches = [conv_norm_relu(in_channels, channels, 3, rate) for rate in rates]
            pooled: nn.Sequential = conv_norm_relu(in_channels, channels, 1)
        else:
            branches = [separable_conv(in_channels, channels, rate) for rate in rates]
            # No batch normalisation here: an image has one value per channel, of which a batch of
            # one image has no variance.
            pooled = nn.Sequential(nn.Conv2d(in_channels, channels, 1), nn.ReLU(inplace=True))
        self.atrous = nn.ModuleList(branches)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), *pooled)
        self.project = conv_norm_relu((2 + len(rates)) * channels, channels, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Map `(B, C, h, w)` to `(B, channels, h, w)`."""
        pooled = self.pool(features).expand(-1, -1, *features.shape[-2:])
        branches = [self.point(features), *(conv(features) for conv in self.atrous), pooled]
        result: Tensor = self.dropout(self.project(torch.cat(branches, dim=1)))
        return result


class DenseDeepLabDecoder(_DeepLab):
    """DeepLabV3+ as in the code of f-BRS and RITM (Sofiiuk et al. 2020, 2021).

    Unlike `DeepLabV3PlusDecoder`, the pyramid's 3x3 convolutions are not separable, its pooled
    branch has a batch normalisation, the separable convolutions have no norm and no ReLU inside, a
    1x1 convolution with bias follows them, and maps are enlarged with aligned corners. It is for a
    backbone of output stride 8.

    In training, the normalisation of the pooled branch needs at least two images in a batch.

    Args:
        inputs: Channels and strides of the backbone's maps.
        channels: Number of channels of the pyramid's branches and of the result.
        stride: Stride of the fine map, and of the result.
    """

    low_channels = 32

    def __init__(self, inputs: FeatureInfo, channels: int = 256, stride: int = 4) -> None:
        rates = default_rates(8)
        pyramid = AtrousPyramid(inputs.channels[-1], channels, rates, dropout=0.5, dense=True)
        super().__init__(inputs, channels, stride, pyramid, aligned=True)
        self.fuse = nn.Sequential(
            depthwise_pointwise(channels + self.low_channels, channels),
            depthwise_pointwise(channels, channels),
            nn.Conv2d(channels, channels, kernel_size=1),
        )


def default_rates(stride: int) -> tuple[int, ...]:
    """Return the pyramid's rates for a map of a stride; they reach equally far in the image."""
    return tuple(max(1, rate * 16 // stride) for rate in (6, 12, 18))
