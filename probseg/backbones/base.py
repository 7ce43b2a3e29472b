"""Base class of the backbones."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from probseg.types import FeatureInfo


class Backbone(nn.Module, ABC):
    """Base of the backbones: images in, feature maps out.

    A `Segmenter` whose prompts enter at the stem adds channels to the first convolution; see
    `add_prompt_stem`.

    Attributes:
        features: Channels and strides of the maps that `forward` returns.
        mean: Mean of the RGB channels that the images are normalised with, for values in [0, 1].
        std: Their standard deviation.
        multiple: Images whose sides are whole multiples of this number of pixels give whole cells
            in all maps, so that the maps lie exactly on the image. 1 for networks that take every
            size as it is.
    """

    multiple: int = 1
    features: FeatureInfo
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @abstractmethod
    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute the feature maps.

        Args:
            x: Normalised RGB, shape `(B, 3, H, W)`, and the click maps behind them if there is a
                prompt stem; any size.

        Returns:
            Feature maps, finest first, as `features` describes them: `ceil(H / stride)` rows and
            `ceil(W / stride)` columns.
        """
