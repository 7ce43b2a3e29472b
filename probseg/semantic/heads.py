"""Heads of semantic segmentation: feature maps in, logits of the classes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor, nn

from probseg.attention.bases import Normalisation, Update
from probseg.heads.base import conv_norm_relu
from probseg.heads.deeplab import AtrousPyramid, default_rates
from probseg.semantic.emau import EMAU
from probseg.types import FeatureInfo


class SemanticHead(nn.Module, ABC):
    """Base of the heads of semantic segmentation.

    Their first argument is the `FeatureInfo` of the backbone's maps.

    Args:
        num_classes: Number `C` of classes, at least 2.

    Raises:
        ValueError: If there are fewer classes.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            msg = (
                f"`num_classes` must be at least 2, got {num_classes}; count the background as one"
            )
            raise ValueError(msg)
        self.num_classes = num_classes

    @abstractmethod
    def forward(self, maps: list[Tensor]) -> Tensor:
        """Compute the logits.

        Args:
            maps: Feature maps of the backbone, finest first.

        Returns:
            Logits `(B, C, h, w)`, of the size of the coarsest map.
        """


class FCNHead(SemanticHead):
    """3x3 convolution and classifier on the coarsest map (Long et al., 2015).

    Args:
        inputs: Channels and strides of the backbone's maps.
        num_classes: Number of classes.
        channels: Number of channels that the classifier sees.
        dropout: Probability with which elements are dropped in front of the classifier.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        num_classes: int = 21,
        channels: int = 512,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(num_classes)
        self.reduce = conv_norm_relu(inputs.channels[-1], channels, 3)
        self.dropout: nn.Module = nn.Dropout(dropout)
        self.classify = nn.Conv2d(channels, num_classes, kernel_size=1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Return the logits `(B, C, h, w)` of the coarsest map."""
        logits: Tensor = self.classify(self.dropout(self.transformed(self.reduce(maps[-1]))))
        return logits

    def transformed(self, features: Tensor) -> Tensor:
        """Return the features `(B, channels, h, w)` to classify, for the reduced ones."""
        return features


class EMAHead(FCNHead):
    """`FCNHead` with an `EMAU` in front of the classifier: the head of EMANet (Li et al., 2019).

    With the 2048 channels of a ResNet-101 and 21 classes it has 10.01 M weights, bases included,
    and takes 43.2 G multiply-adds of convolutions and matrix products on a map of 65x65 (Tab. 1:
    10.0 M and 43.1 G; the E step of the read-out is computed once more here, and not stored).

    The authors' released code has 11.15 M without the bases: behind the unit, a 3x3 convolution to
    half of the channels, of which whole ones are dropped in front of the classifier. `released`
    is this head, with the unit of the code, see `EMAU`.

    Args:
        inputs: Channels and strides of the backbone's maps.
        num_classes: Number of classes.
        channels: Number of channels of the unit.
        dropout: Probability with which elements are dropped in front of the classifier.
        num_bases: See `EMAU`, as for the others.
        bases: How the initial bases change in training.
        normalisation: Of the bases.
        train_iterations: Number of EM iterations in training.
        eval_iterations: Number of EM iterations in evaluation.
        scale: Inverse temperature of the responsibilities.
        momentum: Of the moving average.
        released: Compute what the authors' code computes.

    Raises:
        ValueError: As `EMAU` does.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        num_classes: int = 21,
        channels: int = 512,
        dropout: float = 0.1,
        num_bases: int = 64,
        bases: Update | Literal["pixels"] = "moving_average",
        normalisation: Normalisation | None = "l2",
        train_iterations: int = 3,
        eval_iterations: int = 3,
        scale: float = 1.0,
        momentum: float = 0.9,
        released: bool = False,
    ) -> None:
        super().__init__(inputs, num_classes, channels, dropout)
        self.emau = EMAU(
            channels,
            num_bases,
            bases,
            normalisation,
            train_iterations,
            eval_iterations,
            scale,
            momentum,
            released,
        )
        self.narrow: nn.Module = nn.Identity()
        if released:
            self.narrow = conv_norm_relu(channels, channels // 2, 3)
            self.dropout = nn.Dropout2d(dropout)
            self.classify = nn.Conv2d(channels // 2, num_classes, kernel_size=1)

    def transformed(self, features: Tensor) -> Tensor:
        """Return the features to classify, behind the `EMAU`."""
        result: Tensor = self.narrow(self.emau(features))
        return result

    def responsibilities(self, maps: list[Tensor]) -> Tensor:
        """Return the responsibilities `(B, K, h, w)` of the `EMAU` for the coarsest map."""
        return self.emau.responsibilities(self.reduce(maps[-1]))


class DeepLabV3Head(SemanticHead):
    """Atrous spatial pyramid pooling and classifier: the head of DeepLabV3 (Chen et al., 2017).

    In training, the normalisation of the pooled branch needs at least two images in a batch.

    Args:
        inputs: Channels and strides of the backbone's maps.
        num_classes: Number of classes.
        channels: Number of channels of the pyramid's branches and of the features to classify.
        dropout: Probability with which elements are dropped in front of the classifier.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        num_classes: int = 21,
        channels: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(num_classes)
        rates = default_rates(inputs.strides[-1])
        self.pyramid = AtrousPyramid(inputs.channels[-1], channels, rates, dropout, dense=True)
        self.classify = nn.Conv2d(channels, num_classes, kernel_size=1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Return the logits `(B, C, h, w)` of the coarsest map."""
        logits: Tensor = self.classify(self.pyramid(maps[-1]))
        return logits
