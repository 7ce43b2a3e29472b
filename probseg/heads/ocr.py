"""Decoder with object-contextual representations (Yuan, Chen and Wang 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import require
from probseg.heads.base import Decoder, DecoderMaps, conv_norm_relu, levels_from
from probseg.ops import attend
from probseg.ops.numerics import full_precision, working_dtype
from probseg.types import FeatureInfo


class OCRDecoder(Decoder):
    """Adds to each pixel the features of the image regions to which it belongs.

    Source: Yuan, Chen and Wang, 2020, "Object-Contextual Representations for Semantic
    Segmentation", section 3, on the concatenated maps of HRNetV2 (Wang et al. 2020); for click
    based segmentation Sofiiuk, Petrov and Konushin, 2021, "Reviving Iterative Training with Mask
    Guidance" (RITM), whose networks have `channels` 48 (HRNet-W18-small), 64 (W18), 128 (W32).

    There is one auxiliary logit `a`. With one region, as in RITM, the object gathers pixels by
    `a`; the softmax over the regions is 1 whatever queries and keys are: each pixel gets the same
    context, and their parameters no gradient. With two regions, the background also gathers pixels,
    by `-a`, and a pixel chooses between them, with the same parameters.

    Maps are enlarged with aligned corners where the backbone's are, see `FeatureInfo`.

    Args:
        inputs: Channels and strides of the backbone's maps.
        channels: Number of channels `C` of queries, keys and values; the result has `2C`.
        stride: Stride of the finest map used; maps with a smaller stride are left out.
        dropout: Probability with which channels of the result are dropped.
        regions: 1 for the object alone, 2 for object and background.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        channels: int = 64,
        stride: int = 4,
        dropout: float = 0.05,
        regions: int = 2,
    ) -> None:
        super().__init__()
        require(regions in (1, 2), "regions", "1 (object) or 2 (object and background)", regions)
        self.regions = regions
        self.aligned = inputs.aligned
        self.levels = levels_from(inputs, stride)
        total = sum(inputs.channels[i] for i in self.levels)
        self.auxiliary = nn.Sequential(conv_norm_relu(total, total, 1), nn.Conv2d(total, 1, 1))
        self.pixels = conv_norm_relu(total, 2 * channels, 3)
        self.attention = ObjectAttention(2 * channels, channels)
        self.fuse = nn.Sequential(
            conv_norm_relu(4 * channels, 2 * channels, 1), nn.Dropout2d(dropout)
        )
        finest = inputs.strides[self.levels[0]]
        self.features = FeatureInfo((2 * channels,), (finest,), inputs.aligned)

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Return a map `(B, 2C, h, w)` and logits `(B, 1, h, w)` of the finest level's size."""
        size = maps[self.levels[0]].shape[-2:]
        enlarged = torch.cat(
            [
                F.interpolate(maps[i], size, mode="bilinear", align_corners=self.aligned)
                for i in self.levels
            ],
            dim=1,
        )
        logits = self.auxiliary(enlarged)  # (B, 1, h, w)
        pixels = self.pixels(enlarged)  # (B, 2C, h, w)
        scores = logits if self.regions == 1 else torch.cat([logits, -logits], dim=1)
        regions = gather_regions(pixels, scores)
        context = self.attention(pixels, regions)
        return DecoderMaps(self.fuse(torch.cat([context, pixels], dim=1)), logits)


def gather_regions(pixels: Tensor, scores: Tensor) -> Tensor:
    """Average pixels `(B, C, h, w)` over each soft region: `(B, C, K, 1)`.

    `f_k = sum_i w_ki x_i`, where `w_k` is the softmax of the region's scores `(B, K, h, w)` over
    positions (Yuan et al. 2020, section 3).
    """
    dtype = working_dtype(pixels.dtype)
    # Half precision has no digits for the weight of one among many thousand pixels.
    with full_precision(pixels.device):
        weights = scores.to(dtype).flatten(2).softmax(dim=-1)  # (B, K, N)
        regions = pixels.to(dtype).flatten(2) @ weights.mT  # (B, C, K)
    return regions.unsqueeze(-1).to(pixels.dtype)


class ObjectAttention(nn.Module):
    """Gives each pixel an average of the regions, weighted by their similarity.

    `y_i = output(sum_k w_ik value(f_k))`, where `w_i` is the softmax over the regions of
    `query(x_i)·key(f_k) / sqrt(C)`; the transforms are 1x1 convolutions with normalisation and
    ReLU (Yuan et al. 2020, section 3).
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.query = _two_layers(in_channels, channels)
        self.key = _two_layers(in_channels, channels)
        self.value = conv_norm_relu(in_channels, channels, 1)
        self.output = conv_norm_relu(channels, in_channels, 1)

    def forward(self, pixels: Tensor, regions: Tensor) -> Tensor:
        """Return the context of pixels `(B, C', h, w)` among regions `(B, C', K, 1)`."""
        queries = self.query(pixels)  # (B, C, h, w)
        keys, values = _tokens(self.key(regions)), _tokens(self.value(regions))  # (B, 1, K, C)
        attended = attend(_tokens(queries), keys, values, scale=queries.shape[1] ** -0.5)
        context: Tensor = self.output(attended.values.squeeze(1).mT.reshape(queries.shape))
        return context


def _two_layers(in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        conv_norm_relu(in_channels, channels, 1), conv_norm_relu(channels, channels, 1)
    )


def _tokens(features: Tensor) -> Tensor:
    return features.flatten(2).mT.unsqueeze(1)  # (B, C, h, w) -> (B, 1, N, C)
