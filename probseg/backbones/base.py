"""What a decoder may expect of a backbone."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from probseg.types import FeatureInfo


class Backbone(nn.Module, ABC):
    """Base of the backbones: image and click maps in, feature maps out.

    Attributes:
        features: Channels and strides of the maps that `forward` returns.
        mean: Mean of the RGB channels that the images are normalised with, for values in [0, 1].
        std: Their standard deviation.
    """

    features: FeatureInfo
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @abstractmethod
    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute the feature maps.

        Args:
            x: Normalised RGB and click maps, shape ``(B, 3 + P, H, W)``.

        Returns:
            Feature maps, finest first, as `features` describes them.
        """
