"""Parts of SimpleClick: a plain vision transformer with windows, its pyramid and its decoder.

Source: Liu, Xu, Bertasius and Niethammer, 2023, "SimpleClick: Interactive Image Segmentation with
Simple Vision Transformers" (ICCV), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from probseg.backbones import Backbone
from probseg.heads import Decoder, DecoderMaps
from probseg.heads.base import enlarged_to
from probseg.peers.checkpoints import IMAGENET
from probseg.types import FeatureInfo


class WindowedViT(Backbone):
    """Plain vision transformer for images of one size, most of whose blocks attend in windows.

    There is no class token and no normalisation behind the last block. Click maps enter by a
    second patch embedding, which is added to that of the image: the `PromptStem` of a `Segmenter`.

    Args:
        width: Channels of the tokens.
        depth: Number of blocks.
        heads: Heads of each attention.
        patch: Side of a patch in pixels.
        size: Side of the square images in pixels.
        windows: Windows along each side of the image.
        whole_every: Every so many blocks, one attends to the whole image.
        expansion: Channels inside the blocks' perceptrons over `width`.

    Raises:
        ValueError: If the image does not consist of whole patches, or the patches of whole windows.
    """

    mean, std = IMAGENET

    def __init__(
        self,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        patch: int = 16,
        size: int = 448,
        windows: int = 2,
        whole_every: int = 6,
        expansion: float = 4.0,
    ) -> None:
        super().__init__()
        cells = size // patch
        if size % patch or cells % windows:
            msg = (
                f"`size` must be divisible by patch={patch}, and the number of patches by "
                f"windows={windows}, got {size}"
            )
            raise ValueError(msg)
        self.features = FeatureInfo((width,), (patch,))
        self.multiple = size
        self.windows = windows
        self.whole_every = whole_every
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, cells, cells, width))
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.ModuleList(
            Block(width, heads, expansion, qkv_bias=True, norm_layer=norm) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return one map `(B, width, h, w)`.

        Raises:
            ValueError: If the images are of another size.
        """
        if x.shape[-2:] != (self.multiple, self.multiple):
            msg = (
                f"`x` must be images of {self.multiple} x {self.multiple} pixels, got "
                f"{tuple(x.shape[-2:])}; leave `working_size` of the Segmenter at {self.multiple}"
            )
            raise ValueError(msg)
        tokens = self.patches(x).permute(0, 2, 3, 1) + self.positions  # (B, h, w, width)
        for number, block in enumerate(self.blocks, start=1):
            whole = number % self.whole_every == 0
            tokens = in_windows(block, tokens, 1 if whole else self.windows)
        return [tokens.permute(0, 3, 1, 2)]


def in_windows(block: nn.Module, tokens: Tensor, count: int) -> Tensor:
    """Apply a block to the tokens of each window by themselves.

    Args:
        block: Takes and returns tokens `(B, N, C)`.
        tokens: Shape `(B, h, w, C)`.
        count: Windows along each side.
    """
    batch, height, width, channels = tokens.shape
    sides = height // count, width // count
    cut = tokens.reshape(batch, count, sides[0], count, sides[1], channels).transpose(2, 3)
    done: Tensor = block(cut.reshape(batch * count**2, sides[0] * sides[1], channels))
    done = done.view(batch, count, count, *sides, channels).transpose(2, 3)
    return done.reshape(batch, height, width, channels)


class SimpleClickDecoder(Decoder):
    """Four levels of the transformer's map, each reduced, enlarged to the finest, and fused.

    The levels are those of Li et al. (2022, "Exploring Plain Vision Transformer Backbones"), with
    normalisation over a whole map; they are joined by the multilayer perceptron of Xie et al.
    (2021, "SegFormer"), whose layers are 1x1 convolutions.

    Args:
        inputs: Channels and stride of the transformer's map.
        widths: Channels of the levels of a quarter of the stride, half of it, the stride, and
            twice the stride.
        channels: Channels of the result. Its stride is a quarter of the transformer's.
        dropout: Probability with which channels of the result are dropped in training.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        widths: Sequence[int] = (128, 256, 512, 1024),
        channels: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        width = inputs.channels[0]
        quarter, half = max(2 * widths[0], width // 2), max(widths[1], width // 2)
        double = max(widths[3], 2 * width)
        self.levels = nn.ModuleList(
            [
                nn.Sequential(
                    *_enlarged(width, quarter),
                    nn.GELU(),
                    *_enlarged(quarter, quarter // 2),
                    *_projected(quarter // 2, widths[0]),
                ),
                nn.Sequential(*_enlarged(width, half), *_projected(half, widths[1])),
                nn.Sequential(*_projected(width, widths[2])),
                nn.Sequential(
                    nn.Conv2d(width, double, 2, stride=2),
                    nn.GroupNorm(1, double),
                    *_projected(double, widths[3]),
                ),
            ]
        )
        self.reduce = nn.ModuleList(nn.Conv2d(own, channels, 1) for own in widths)
        self.fuse = nn.Conv2d(channels * len(widths), channels, 1)
        self.dropout = nn.Dropout2d(dropout)
        # The logits are enlarged with aligned corners. Patches of 14 pixels give a stride of 3.5.
        self.features = FeatureInfo((channels,), (-(-inputs.strides[0] // 4),), aligned=True)

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Fuse the levels of the last map."""
        finest, *coarser = (
            reduce(level(maps[-1])).relu()
            for level, reduce in zip(self.levels, self.reduce, strict=True)
        )
        joined = torch.cat([finest, *(enlarged_to(own, finest) for own in coarser)], dim=1)
        return DecoderMaps(self.dropout(self.fuse(joined).relu()))


def _enlarged(channels: int, width: int) -> tuple[nn.Module, ...]:
    """Return layers that double the sides of a map, and normalise it."""
    return nn.ConvTranspose2d(channels, width, 2, stride=2), nn.GroupNorm(1, width)


def _projected(channels: int, width: int) -> tuple[nn.Module, ...]:
    """Return a 1x1 convolution with normalisation and activation."""
    return nn.Conv2d(channels, width, 1), nn.GroupNorm(1, width), nn.GELU()
