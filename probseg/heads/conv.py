"""Heads of convolutions: to logits, and to the expected quality of an answer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention.adaptation import AdaptiveClassifier, ClickAdaptation
from probseg.heads.base import Head, depthwise_pointwise
from probseg.ops.numerics import full_precision
from probseg.types import FeatureInfo, Prompts


class ConvHead(Head):
    """1x1 convolution to a logit, enlarged to the image's size; aligned as the decoder's map is.

    Args:
        inputs: Channels and stride of the decoder's map.
        value_channels: Channels of the value features, which are then classified instead of the
            decoder's; None without.
        click_iterations: EM steps in which the classifier adapts to the clicks, see
            `AdaptiveClassifier`; 0 for none. Can be changed in a trained network.
        click_prior: Precision of the prior of its weights.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        value_channels: int | None = None,
        click_iterations: int = 0,
        click_prior: float = 10.0,
    ) -> None:
        super().__init__()
        self.aligned = inputs.aligned
        channels = value_channels or inputs.channels[0]
        self.logit = AdaptiveClassifier(channels, ClickAdaptation(click_iterations, click_prior))

    def forward(
        self, features: Tensor, clicks: Tensor, value_features: Tensor | None = None
    ) -> Tensor:
        """Return logits `(B, 1, H, W)`."""
        logits = self.logit(features if value_features is None else value_features, clicks)
        return F.interpolate(logits, clicks.shape[-2:], mode="bilinear", align_corners=self.aligned)


class SeparableHead(Head):
    """Two separable convolutions and a 1x1 convolution to a logit, enlarged to the image's size.

    Source: the code of Sofiiuk et al. 2021 (RITM), behind its DeepLabV3+, with half of the
    decoder's channels.

    Args:
        inputs: Channels and stride of the decoder's map.
        value_channels: Channels of the value features, which are then classified instead of the
            decoder's; None without.
        channels: Number of channels behind each separable convolution.
    """

    def __init__(
        self, inputs: FeatureInfo, value_channels: int | None = None, channels: int = 128
    ) -> None:
        super().__init__()
        self.aligned = inputs.aligned
        self.layers = nn.Sequential(
            depthwise_pointwise(value_channels or inputs.channels[0], channels),
            depthwise_pointwise(channels, channels),
            nn.Conv2d(channels, 1, kernel_size=1),
        )

    def forward(
        self, features: Tensor, clicks: Tensor, value_features: Tensor | None = None
    ) -> Tensor:
        """Return logits `(B, 1, H, W)`."""
        logits = self.layers(features if value_features is None else value_features)
        size = clicks.shape[-2:]
        return F.interpolate(logits, size, mode="bilinear", align_corners=self.aligned)


BAND = 2  # half of the width of the band around the contour, in cells of the features

SUREST = 1e-3  # distance of an expected IoU from 0 and 1 at which its logit is cut


class MaskQuality(nn.Module):
    """Predicts the IoU of an answer with the truth, as Mask R-CNN's heads do (Huang et al. 2019).

    Features, each cell with its probability, are averaged inside of the mask, in a band around its
    contour and outside. A small network corrects the IoU that the answer expects of itself by these
    means; before any training it corrects nothing. No gradient flows into features and answer, so
    that it can be trained with a finished network, and never changes an answer.

    Args:
        value_channels: Channels of the features.
        channels: Channels that are averaged.
        hidden: Units of the small network.
    """

    def __init__(self, value_channels: int, channels: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.embed = nn.Conv2d(value_channels + 1, channels, kernel_size=1)
        inputs, correction = 3 * channels + 4, nn.Linear(hidden, 1)
        nn.init.zeros_(correction.weight)
        nn.init.zeros_(correction.bias)
        self.layers = nn.Sequential(
            nn.LayerNorm(inputs), nn.Linear(inputs, hidden), nn.GELU(), correction
        )

    def forward(self, features: Tensor, logits: Tensor, prompts: Prompts) -> Tensor:
        """Return logits `(B,)` of the IoU of the pixels with a logit above 0, float32.

        Features `(B, V, h, w)` are the last ones before the calibrated logits `(B, 1, H, W)`; of
        the prompts, the clicks are counted.
        """
        with full_precision(features.device):
            probability = logits.detach().float().sigmoid()
            fine = probability.flatten(1)  # (B, H W)
            inside = (fine > 0.5).float()
            area, hit = inside.sum(dim=1), (inside * fine).sum(dim=1)
            expected = hit / (area + fine.sum(dim=1) - hit).clamp(min=1)
            size = features.shape[-2], features.shape[-1]
            coarse = F.adaptive_avg_pool2d(probability, size)  # (B, 1, h, w)
            band = _highest(coarse) + _highest(-coarse)
            zones = torch.cat([coarse, band, 1 - coarse], dim=1).flatten(2)  # (B, 3, h w)
            zones = zones / zones.sum(dim=2, keepdim=True).clamp(min=1e-6)
            seen = torch.cat([features.detach().float(), coarse], dim=1)
            weights = self.embed.weight.dtype  # those of the network, in half precision too
            means = zones @ self.embed(seen.to(weights)).relu().flatten(2).mT.float()  # (B, 3, C)
            prior = expected.logit(eps=SUREST)
            numbers = [
                prior,
                (area.clamp(min=1) / fine.shape[1]).log(),
                (fine * (1 - fine)).sum(dim=1) / area.clamp(min=1),
                (prompts.labels >= 0).sum(dim=1).float().log1p(),
            ]
            described = torch.cat([means.flatten(1), torch.stack(numbers, dim=1)], dim=1)
            correction: Tensor = self.layers(described.to(weights))[:, 0].float()
            return prior + correction


def _highest(maps: Tensor) -> Tensor:
    """Return the largest value within `BAND` cells of each cell of `(B, 1, h, w)`."""
    return F.max_pool2d(maps, 2 * BAND + 1, stride=1, padding=BAND)
