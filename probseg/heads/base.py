"""The parts between a backbone and the logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import require
from probseg.ops.numerics import full_precision, working_dtype
from probseg.types import FeatureInfo


class Units(NamedTuple):
    """Pixels of an image as queries of mixtures, and the units of those."""

    queries: Tensor  # (B, G, h w, D)
    keys: Tensor  # (B, G, M, D)


class DecoderMaps(NamedTuple):
    """Output of a decoder: maps of the image, and what is computed of them once per image."""

    features: Tensor  # (B, C, h, w)
    auxiliary: Tensor | None = None  # coarse logits (B, 1, h, w) that have a separate loss
    coarser: tuple[Tensor, ...] = ()  # maps of further levels, ever coarser
    units: Units | None = None  # of a propagation of prompts

    def map(self, change: Callable[[Tensor], Tensor]) -> DecoderMaps:
        """Return a copy with a function applied to all tensors, of batches of any length."""
        return DecoderMaps(
            change(self.features),
            None if self.auxiliary is None else change(self.auxiliary),
            coarser=tuple(change(level) for level in self.coarser),
            units=None if self.units is None else Units(*(change(tensor) for tensor in self.units)),
        )


class Decoder(nn.Module, ABC):
    """Base of the decoders: the backbone's feature maps in, one map out, or one and coarser ones.

    Attributes:
        features: Channels and strides of the maps that `forward` returns, finest first.
    """

    features: FeatureInfo

    @abstractmethod
    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        """Fuse feature maps, finest first."""


class Head(nn.Module, ABC):
    """Base of the heads: the decoder's map and the clicks in, logits out.

    Their first two arguments are the `FeatureInfo` of the decoder's map and, for networks whose
    prompts enter at the head, the number of channels of the features that know of the prompts;
    None for the others.

    Attributes:
        stride: Size of the image over that of the head's own grid.
        clicked_pixels: Whether its click maps show the pixel of each click alone, and not what the
            stem gets.
    """

    stride: int = 1
    clicked_pixels: bool = False

    @abstractmethod
    def forward(
        self, features: Tensor, clicks: Tensor, value_features: Tensor | None = None
    ) -> Tensor:
        """Compute the logits `(B, 1, H, W)` of the object from the decoder's map `(B, C, h, w)`.

        Click maps are `(B, 2, H, W)`, positive and negative, at the image's size; value features
        `(B, V, h, w)` depend on the prompts, if the decoder's map does not, and are else None.
        """


def conv_norm_relu(
    in_channels: int, out_channels: int, kernel_size: int, rate: int = 1
) -> nn.Sequential:
    """Build a convolution that keeps the size, a batch normalisation and a ReLU; `rate` dilates."""
    padding = rate * (kernel_size // 2)
    return nn.Sequential(
        nn.Conv2d(
            in_channels, out_channels, kernel_size, padding=padding, dilation=rate, bias=False
        ),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def conv_norm(
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1
) -> nn.Sequential:
    """Build a convolution and a batch normalisation."""
    padding = kernel_size // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=False),
        nn.BatchNorm2d(out_channels),
    )


def levels_from(inputs: FeatureInfo, stride: int) -> list[int]:
    """Return the numbers of the maps with at least a stride, finest first; there must be one."""
    levels = [level for level, other in enumerate(inputs.strides) if other >= stride]
    most = f"at most {inputs.strides[-1]}, the stride of the backbone's coarsest map"
    require(levels, "stride", most, stride)
    return levels


def enlarge_to(x: Tensor, finer: Tensor) -> Tensor:
    """Enlarge maps `(B, C, h, w)` to the size of finer ones."""
    return F.interpolate(x, finer.shape[-2:], mode="bilinear", align_corners=False)


class DilatedDepthwise(nn.Conv2d):
    """3x3 convolution of each channel by itself that keeps the size.

    On the CPU it learns in float32: in bfloat16, with channels last, the weights of a dilated
    grouped convolution get gradients of 1e34 or NaN there (seen with PyTorch 2.15).
    """

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__(
            channels, channels, 3, padding=dilation, dilation=dilation, groups=channels, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """Convolve `(B, C, h, w)`."""
        if x.device.type != "cpu" or self.dilation == (1, 1) or not torch.is_grad_enabled():
            return super().forward(x)
        dtype = working_dtype(x.dtype)
        with full_precision(x.device):
            convolved: Tensor = self._conv_forward(x.to(dtype), self.weight.to(dtype), None)
        return convolved.to(x.dtype)


def depthwise_pointwise(in_channels: int, out_channels: int) -> nn.Sequential:
    """Build a 3x3 convolution of each channel and a 1x1 convolution with norm and ReLU behind it.

    `separable_conv` has norm and ReLU behind the first one too.
    """
    return nn.Sequential(
        DilatedDepthwise(in_channels, 1), *conv_norm_relu(in_channels, out_channels, 1)
    )


def separable_conv(in_channels: int, out_channels: int, rate: int = 1) -> nn.Sequential:
    """Build a 3x3 convolution of each channel and a 1x1 convolution, each with norm and ReLU."""
    return nn.Sequential(
        DilatedDepthwise(in_channels, rate),
        nn.BatchNorm2d(in_channels),
        nn.ReLU(inplace=True),
        *conv_norm_relu(in_channels, out_channels, 1),
    )
