"""Heads of semantic segmentation: feature maps in, logits of the classes out.

That of EMANet has the expectation-maximisation attention unit (Li et al., 2019, §5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention.bases import Bases, Normalisation, Update
from probseg.errors import require
from probseg.heads.base import conv_norm_relu
from probseg.heads.deeplab import AtrousPyramid, default_rates
from probseg.ops.em import EMAttention, em_attention, responsibilities
from probseg.types import FeatureInfo


class EMAU(nn.Module):
    """A residual block around EM attention (Li et al., 2019, Fig. 2).

    1x1 convolution, EM attention, ReLU, 1x1 convolution and batch normalisation, the sum with the
    input, ReLU. The first convolution has no ReLU behind it, so that bases may be negative (§5.1).
    Time and memory are linear in the number of pixels unless the pixels are the bases.

    Convolutions start with the initialisation of He et al. (2015), which gives the pixels the
    length that bases need to come apart: of short ones, every basis becomes the mean. The last
    normalisation starts at 0, and with it the unit as the identity, as usual for residual blocks
    (Goyal et al., 2017).

    The authors' released code differs from the paper and from this in three points, which
    `released` reproduces up to its two divisions with 1e-6: the stored bases are not normalised
    before the first E step, so that the moving average shrinks them; the whole EM attention has no
    gradient, so that the first convolution stays as it was initialised; and the last normalisation
    starts at 1.

    Args:
        channels: Channels of the map, of the bases and of the result.
        num_bases: Number `K` of bases; without effect for `bases="pixels"`.
        bases: How the initial bases change in training, "moving_average", "learnt" or "fixed", see
            `Bases`; or "pixels", where the pixels are the bases and there is no M step: a
            non-local block (§6.2.2), for which `channels**-0.5` is a usual `scale`.
        normalisation: Of the bases: "l2", "layer" or None; the pixels are left as they are.
        train_iterations: Number of EM iterations in training.
        eval_iterations: Number of EM iterations in evaluation.
        scale: `lambda` of Eq. 12.
        momentum: `alpha` of Eq. 15.
        released: Compute what the authors' code computes.

    Raises:
        UnknownNameError: If there are no such bases, or no such normalisation.
        ValueError: If a number is out of range, or `released` comes with other bases than the
            moving average with "l2".
    """

    def __init__(
        self,
        channels: int,
        num_bases: int = 64,
        bases: Update | Literal["pixels"] = "moving_average",
        normalisation: Normalisation | None = "l2",
        train_iterations: int = 3,
        eval_iterations: int = 3,
        scale: float = 1.0,
        momentum: float = 0.9,
        released: bool = False,
    ) -> None:
        super().__init__()
        if released and (bases, normalisation) != ("moving_average", "l2"):
            raise ValueError(
                "`released` must be False unless bases='moving_average' and normalisation='l2', as "
                f"in the authors' code, got bases={bases!r} and normalisation={normalisation!r}"
            )
        self.released = released
        self.scale = scale
        self.enter = nn.Conv2d(channels, channels, kernel_size=1)
        self.bases: Bases | None = None
        if bases != "pixels":
            self.bases = Bases(
                num_bases,
                channels,
                update=bases,
                normalisation=normalisation,
                momentum=momentum,
                train_iterations=train_iterations,
                eval_iterations=eval_iterations,
                renormalise=not released,
            )
        convolution = nn.Conv2d(channels, channels, kernel_size=1, bias=False)
        norm = nn.BatchNorm2d(channels)
        for weight in (self.enter.weight, convolution.weight):
            nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")
        if released:
            self.enter.requires_grad_(False)  # which no loss reaches
        else:
            nn.init.zeros_(norm.weight)
        self.leave = nn.Sequential(convolution, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `(B, channels, h, w)`; in training, the moving average follows the picture."""
        with torch.no_grad() if self.released else nullcontext():
            attention = self._attention(self._tokens(x))
        if self.bases is not None:
            self.bases.follow(attention.bases)
        read = F.relu(attention.values.squeeze(1).transpose(-2, -1).reshape(x.shape))
        # In place, as at the end of every residual block: maps are what takes memory here.
        return F.relu(self.leave(read).add_(x), inplace=True)

    def responsibilities(self, x: Tensor) -> Tensor:
        """Return the responsibility of each basis for each pixel in the last E step.

        They are in [0, 1], float32, of shape `(B, K, h, w)`; the sum over the bases is 1.
        """
        if self.bases is None:
            raise ValueError(
                "`bases` must not be the pixels, which have no responsibilities; build the unit "
                "with bases='moving_average', 'learnt' or 'fixed'"
            )
        tokens = self._tokens(x)
        shares = responsibilities(tokens, self._attention(tokens).previous, self.scale)
        return shares.squeeze(1).transpose(-2, -1).reshape(len(x), -1, *x.shape[-2:])

    def _tokens(self, x: Tensor) -> Tensor:
        # Autocast lowers the map; the bases, and with them EM, keep the precision of the weights.
        tokens = self.enter(x).to(self.enter.weight.dtype)
        result: Tensor = tokens.flatten(2).transpose(-2, -1).unsqueeze(1)
        return result

    def _attention(self, tokens: Tensor) -> EMAttention:
        if self.bases is None:
            return em_attention(tokens, tokens, iterations=0, scale=self.scale)
        return em_attention(
            tokens,
            self.bases.start(tokens),
            iterations=self.bases.iterations,
            scale=self.scale,
            normalise=self.bases.normalise,
        )


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
        right = num_classes >= 2
        require(right, "num_classes", "at least 2", num_classes, "count the background as one")
        self.num_classes = num_classes

    @abstractmethod
    def forward(self, maps: list[Tensor]) -> Tensor:
        """Return logits `(B, C, h, w)` of the size of the coarsest map; the finest comes first."""


class FCNHead(SemanticHead):
    """3x3 convolution and classifier on the coarsest map (Long et al., 2015).

    Args:
        inputs: Channels and strides of the backbone's maps.
        num_classes: Number of classes.
        channels: Number of channels that the classifier sees.
        dropout: Probability with which elements are dropped in front of the classifier.
    """

    def __init__(
        self, inputs: FeatureInfo, num_classes: int = 21, channels: int = 512, dropout: float = 0.1
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
        self, inputs: FeatureInfo, num_classes: int = 21, channels: int = 256, dropout: float = 0.1
    ) -> None:
        super().__init__(num_classes)
        rates = default_rates(inputs.strides[-1])
        self.pyramid = AtrousPyramid(inputs.channels[-1], channels, rates, dropout, dense=True)
        self.classify = nn.Conv2d(channels, num_classes, kernel_size=1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Return the logits `(B, C, h, w)` of the coarsest map."""
        logits: Tensor = self.classify(self.pyramid(maps[-1]))
        return logits
