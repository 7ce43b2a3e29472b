"""Feature pyramids, and a U-Net that fuses prompts with all of their levels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import require
from probseg.heads.base import (
    Decoder,
    DecoderMaps,
    conv_norm,
    conv_norm_relu,
    enlarge_to,
    levels_from,
)
from probseg.heads.fusion import Fusion
from probseg.heads.propagation import PromptPropagation
from probseg.types import FeatureInfo, Prompts

WIDTHS = (32, 48, 96, 128)

LEVEL = 1  # number of the level that takes the maps of a propagation, 0 for the finest


class PyramidDecoder(Decoder):
    """Top-down decoder that returns all of its levels, each with a separate width.

    As in a feature pyramid (Lin et al. 2017), each coarser level is enlarged and added to the next
    finer one.

    Args:
        inputs: Channels and strides of the backbone's maps.
        widths: Channels of each level, finest first; further maps of the backbone are left out.
        stride: Stride of the finest level used; maps with a smaller stride are left out.
    """

    def __init__(
        self, inputs: FeatureInfo, widths: Sequence[int] = WIDTHS, stride: int = 4
    ) -> None:
        super().__init__()
        usable = levels_from(inputs, stride)
        require(
            0 < len(widths) <= len(usable),
            "widths",
            f"one for each level, at least one and at most {len(usable)} for the backbone's "
            f"strides {inputs.strides} from {stride} on",
            list(widths),
            "a SimplePyramid makes four levels from maps of one stride",
        )
        self.levels = usable[: len(widths)]
        self.lateral = nn.ModuleList(
            conv_norm(inputs.channels[level], width, 1)
            for level, width in zip(self.levels, widths, strict=True)
        )
        self.enlarged = nn.ModuleList(
            nn.Conv2d(coarse, fine, kernel_size=1, bias=False)
            for fine, coarse in itertools.pairwise(widths)
        )
        self.smooth = nn.ModuleList(conv_norm_relu(width, width, 3) for width in widths)
        self.features = FeatureInfo(
            tuple(widths), tuple(inputs.strides[level] for level in self.levels)
        )

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Fuse feature maps, finest first, into one of each level's size."""
        fused: list[Tensor] = []
        for level in reversed(range(len(self.levels))):
            x = self.lateral[level](maps[self.levels[level]])
            if fused:
                x = x + enlarge_to(self.enlarged[level](fused[0]), x)
            fused.insert(0, self.smooth[level](x))
        return DecoderMaps(fused[0], coarser=tuple(fused[1:]))


class PromptUNet(Fusion):
    """Light U-Net (Ronneberger et al. 2015) from the decoder's pyramid and the click maps.

    On the way down it meets the features of each level, on the way up its own. Everything that
    depends on the image alone is in the pyramid: a click costs this network alone.

    Args:
        inputs: Channels and strides of the decoder's maps, finest first; each stride is divisible
            by the one before.
        prompt_channels: Number of click maps.
        blocks: Residual blocks at each level on the way down, finest first; each has two
            convolutions, but the finest level's one.
        propagation: Builds the `PromptPropagation`, whose maps the second finest level takes; None
            without.
        detail: Whether a few convolutions of the image, once for all clicks, are added to the
            finest map: contours that an encoder of coarse patches does not keep (Yao et al. 2024,
            "ViTMatte", section 3.3; Ke et al. 2023, "Segment Anything in High Quality", section
            3.2).
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        prompt_channels: int,
        blocks: Sequence[int] = (1, 1, 1, 1),
        propagation: Callable[[FeatureInfo], PromptPropagation] | None = None,
        detail: bool = False,
    ) -> None:
        super().__init__()
        widths, strides = inputs.channels, inputs.strides
        levels = f"each of {len(widths)} levels"
        require(len(blocks) == len(widths), "blocks", f"one number for {levels}", list(blocks))
        divide = all(coarse % fine == 0 for fine, coarse in itertools.pairwise(strides))
        require(divide, "inputs", "maps of strides that divide one another", strides)
        has_level = propagation is None or len(widths) > LEVEL
        require(has_level, "inputs", "maps of two levels with `propagation`", inputs)
        self.channels = widths[0]
        self.detail = image_details(widths[0], strides[0]) if detail else None
        self.embed = nn.Conv2d(prompt_channels, widths[0], strides[0], stride=strides[0])
        self.down = nn.ModuleList(
            _reduction(fine, coarse, strides[level + 1] // strides[level])
            for level, (fine, coarse) in enumerate(itertools.pairwise(widths))
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(*(_Residual(width, 1 if level == 0 else 2) for _ in range(count)))
            for level, (width, count) in enumerate(zip(widths, blocks, strict=True))
        )
        self.up = nn.ModuleList(
            nn.Conv2d(coarse, fine, kernel_size=1, bias=False)
            for fine, coarse in itertools.pairwise(widths)
        )
        self.merge = nn.ModuleList(conv_norm_relu(width, width, 3) for width in widths[:-1])
        self.propagation: PromptPropagation | None = None
        if propagation is not None:
            self.propagation = propagation(
                FeatureInfo(widths[LEVEL : LEVEL + 1], strides[LEVEL : LEVEL + 1])
            )
            self.said = nn.Conv2d(self.propagation.channels, widths[LEVEL], kernel_size=1)

    def prepare(self, decoder_maps: DecoderMaps, image: Tensor) -> DecoderMaps:
        """Add details of the image, and let the units of the propagation adapt to it."""
        if self.detail is not None:
            features = decoder_maps.features
            details = self.detail(image.to(features.dtype))
            decoder_maps = decoder_maps._replace(features=features + details)
        if self.propagation is None:
            return decoder_maps
        features = decoder_maps.coarser[LEVEL - 1]
        return decoder_maps._replace(units=self.propagation.prepare(features, image))

    def forward(self, decoder_maps: DecoderMaps, maps: Tensor, prompts: Prompts) -> Tensor:
        """Return features `(B, V, h, w)` of the decoder's finest stride."""
        pyramid = (decoder_maps.features, *decoder_maps.coarser)
        x: Tensor = self.embed(maps.to(decoder_maps.features.dtype))
        skips: list[Tensor] = []
        for level, features in enumerate(pyramid):
            if level:
                x = self.down[level - 1](x)
            x = x + features
            if self.propagation is not None and level == LEVEL:
                assert decoder_maps.units is not None, "`prepare` has made them"
                size = x.shape[-2], x.shape[-1]
                propagated = self.propagation(decoder_maps.units, prompts, size)
                x = x + self.said(propagated.to(x.dtype))
            x = self.blocks[level](F.relu(x))
            skips.append(x)
        for level in reversed(range(len(pyramid) - 1)):
            x = skips[level] + enlarge_to(self.up[level](x), skips[level])
            x = self.merge[level](x)
        return x


def image_details(width: int, stride: int) -> nn.Sequential:
    """Build convolutions from RGB `(B, 3, H, W)` to `(B, width, H / stride, W / stride)`."""
    layers: list[nn.Module] = []
    channels = 3
    while stride > 1:
        ratio = stride if stride % 2 else 2
        layers += [*_reduction(channels, width, ratio), nn.ReLU(inplace=True)]
        channels, stride = width, stride // ratio
    return nn.Sequential(*layers, *conv_norm(channels, width, 3))


def _reduction(in_channels: int, out_channels: int, ratio: int) -> nn.Sequential:
    """Build a convolution that reduces maps by a ratio and overlooks no pixel."""
    return conv_norm(in_channels, out_channels, max(3, ratio | 1), stride=ratio)


class _Residual(nn.Module):
    """3 x 3 convolutions whose output is added to their input."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(depth - 1):
            layers += conv_norm_relu(channels, channels, 3)
        self.layers = nn.Sequential(*layers, *conv_norm(channels, channels, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Transform `(B, C, h, w)`."""
        result: Tensor = F.relu(x + self.layers(x))
        return result


class FPNDecoder(Decoder):
    """Light top-down decoder: each coarser map is enlarged and added to the next finer one.

    Args:
        inputs: Channels and strides of the backbone's maps.
        channels: Number of channels of every level and of the result.
        stride: Stride of the finest level used; maps with a smaller stride are left out.
    """

    def __init__(self, inputs: FeatureInfo, channels: int = 96, stride: int = 4) -> None:
        super().__init__()
        self.levels = levels_from(inputs, stride)
        self.lateral = nn.ModuleList(
            nn.Conv2d(inputs.channels[i], channels, kernel_size=1) for i in self.levels
        )
        self.smooth = nn.ModuleList(conv_norm_relu(channels, channels, 3) for _ in self.levels)
        self.features = FeatureInfo((channels,), (inputs.strides[self.levels[0]],))

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Fuse feature maps, finest first, into one of the finest level's size."""
        fused: Tensor | None = None
        for level in reversed(range(len(self.levels))):
            lateral = self.lateral[level](maps[self.levels[level]])
            if fused is not None:
                lateral = lateral + enlarge_to(fused, lateral)
            fused = self.smooth[level](lateral)
        assert fused is not None, "there is at least one level"  # checked in the constructor
        return DecoderMaps(fused)


SCALES = (4, 2, 1, 0.5)  # sizes of the levels in relation to the transformer's maps


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
    """

    def __init__(self, inputs: FeatureInfo, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        stride = inputs.strides[-1]
        require(
            set(inputs.strides) == {stride} and stride % 4 == 0,
            "inputs",
            "maps of one stride that is divisible by 4, as plain vision transformers make",
            inputs.strides,
            "use PyramidDecoder for a backbone of several strides, and "
            "backbone.options.patch_size 16 for patches of 14 pixels",
        )
        fits = 0 < len(widths) <= len(SCALES)
        require(fits, "widths", f"1 to {len(SCALES)} numbers of channels", list(widths))
        count = len(inputs.strides)
        self.sources = [
            level if count == len(widths) else count - 1 for level in range(len(widths))
        ]
        self.levels = nn.ModuleList(
            _level(inputs.channels[source], width, scale)
            for source, width, scale in zip(self.sources, widths, SCALES, strict=False)
        )
        strides = tuple(int(stride / scale) for scale in SCALES[: len(widths)])
        self.features = FeatureInfo(tuple(widths), strides)

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Make the levels from maps `(B, C, h, w)`."""
        normalised = {
            source: F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)
            for source, x in enumerate(maps)
            if source in self.sources
        }  # each pixel over its channels
        finest, *coarser = (
            level(normalised[source])
            for level, source in zip(self.levels, self.sources, strict=True)
        )
        return DecoderMaps(finest, coarser=tuple(coarser))


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
