"""A feature pyramid from the maps of a plain vision transformer, which have one stride."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.heads.base import Decoder, DecoderMaps, conv_norm, conv_norm_relu
from probseg.heads.pyramid import WIDTHS
from probseg.types import FeatureInfo

SCALES = (4, 2, 1, 0.5)
"""Sizes of the levels in relation to the transformer's maps."""


class SimplePyramid(Decoder):
    """Levels of strides 4, 8, 16 and 32 from the maps of a plain vision transformer of stride 16.

    Source: Li, Mao, Girshick and He, 2022, "Exploring Plain Vision Transformer Backbones for Object
    Detection", section 3: transposed convolutions enlarge a map, a maximum reduces it, and a 1x1
    and a 3x3 convolution give the width of the level; there is no top-down path. Batch
    normalisation replaces the paper's layer normalisation behind the convolutions. The maps are
    normalised over their channels first, which timm leaves to the layer behind the last block.

    Args:
        inputs: Channels and strides of the backbone's maps, all of one stride that is divisible
            by 4.
        widths: Channels of each level, finest first, at most four. If there are as many maps as
            levels, each level takes one, the finest that of the first depth; otherwise all levels
            take the last map.

    Raises:
        ValueError: If the strides differ or are not divisible by 4, or there are too many widths.
    """

    def __init__(self, inputs: FeatureInfo, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        stride = inputs.strides[-1]
        if any(other != stride for other in inputs.strides) or stride % 4:
            msg = (
                "`inputs` must have one stride that is divisible by 4, as plain vision "
                f"transformers do, got {inputs.strides}; use PyramidDecoder for a backbone of "
                "several strides, and backbone.options.patch_size 16 for patches of 14 pixels"
            )
            raise ValueError(msg)
        if not 0 < len(widths) <= len(SCALES):
            msg = f"`widths` must be 1 to {len(SCALES)} numbers of channels, got {list(widths)}"
            raise ValueError(msg)
        last = len(inputs.strides) - 1
        each = len(inputs.strides) == len(widths)
        self.sources = [level if each else last for level in range(len(widths))]
        self.levels = nn.ModuleList(
            _level(inputs.channels[source], width, scale)
            for source, width, scale in zip(self.sources, widths, SCALES, strict=False)
        )
        strides = tuple(int(stride / scale) for scale in SCALES[: len(widths)])
        self.features = FeatureInfo(tuple(widths), strides)

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Make the levels from maps `(B, C, h, w)`."""
        own = {source: _normalised(maps[source]) for source in self.sources}
        finest, *coarser = (
            level(own[source]) for level, source in zip(self.levels, self.sources, strict=True)
        )
        return DecoderMaps(finest, coarser=tuple(coarser))


def _normalised(x: Tensor) -> Tensor:
    """Normalise each pixel of a map `(B, C, h, w)` over its channels."""
    return F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)


def _level(channels: int, width: int, scale: float) -> nn.Sequential:
    """Build the layers of a level whose sides are `scale` times those of the map."""
    layers: list[nn.Module] = []
    if scale < 1:
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    while scale > 1:
        if layers:
            layers += [nn.BatchNorm2d(channels), nn.GELU()]
        layers.append(nn.ConvTranspose2d(channels, channels // 2, 2, stride=2, bias=False))
        channels, scale = channels // 2, scale / 2
    return nn.Sequential(*layers, conv_norm(channels, width, 1), conv_norm_relu(width, width, 3))
