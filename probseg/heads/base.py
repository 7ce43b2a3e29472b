"""The parts between a backbone and the logits."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from probseg.types import FeatureInfo


class Decoder(nn.Module, ABC):
    """Base of the decoders: the backbone's feature maps in, one map out.

    Attributes:
        features: Channels and stride of the one map that `forward` returns.
    """

    features: FeatureInfo

    @abstractmethod
    def forward(self, maps: list[Tensor]) -> Tensor:
        """Fuse feature maps, finest first, into one of shape ``(B, C, h, w)``."""


class Head(nn.Module, ABC):
    """Base of the heads: the decoder's map and the clicks in, logits out."""

    @abstractmethod
    def forward(self, features: Tensor, clicks: Tensor) -> Tensor:
        """Compute the logits.

        Args:
            features: Map of the decoder, shape ``(B, C, h, w)``.
            clicks: Positive and negative click maps, shape ``(B, 2, H, W)``, at the image's size.

        Returns:
            Logits of the object, shape ``(B, 1, H, W)``.
        """


def conv_norm_relu(in_channels: int, out_channels: int, kernel_size: int) -> nn.Sequential:
    """Build a convolution that keeps the size, a batch normalisation and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )
