"""Logits made finer by attention over colours, places and learnt features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.heads.base import ConvSequential, conv_norm_relu
from probseg.heads.csa import CLICKED
from probseg.ops.numerics import full_precision
from probseg.ops.units import grid_units, nearness, with_places
from probseg.types import FeatureInfo

SMALLEST_SHARE = 0.01
"""Shares of the object are kept this far from 0 and 1, so that their log-odds stay below 4.6."""

SMALLEST_MASS = 1e-6
"""Units that answer for less, in tokens, say nothing."""

COLOUR, PLACE = 3, 2
"""Channels of a token before the learnt features: normalised RGB and (x, y) in longer sides."""

COLOUR_SCALE, PLACE_SCALE, FEATURE_SCALE = 5.0, 12.0, 1.0
"""At the start, a unit's standard deviation in a channel is one over its scale: 0.2 of normalised
colours (12 of 255 grey values), a twelfth of the longer side."""


class ColourRefinement(nn.Module):
    """Refines logits by what memory units of like colour, place and features say of the object.

    The pixels are queries of a Gaussian mixture in several spaces at once, one for each head: at
    the start colours alone, colours and places, and both with learnt features. The units' keys
    begin at the means of the cells of a grid and adapt to the image (Gabbur et al., 2021, Eq. 16,
    without a prior): in the space of colours a mixture of colours as of GrabCut (Rother et al.,
    2004), in that of colours and places superpixels. Object probabilities and clicks are
    observations of the units' values, where clicks replace the probabilities of their pixels; the
    values propagate to all pixels (Eqs. 23 and 24, without a prior), and light convolutions at the
    image's own size turn logits, values, colours and clicks into better logits.

    Args:
        inputs: Channels and stride of the decoder's map.
        units: Units along each side of the grid, ``units**2`` in all.
        key_iterations: EM iterations in which the keys adapt.
        feature_channels: Learnt channels of a token.
        channels: Channels D of queries and keys.
        width: Channels of the convolutions.
        stride: Of the grid of pixels that attend.

    Raises:
        ValueError: If a number is below 1.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        units: int = 8,
        key_iterations: int = 2,
        feature_channels: int = 8,
        channels: int = 12,
        width: int = 24,
        stride: int = 2,
    ) -> None:
        super().__init__()
        numbers = {
            "units": units,
            "key_iterations": key_iterations,
            "feature_channels": feature_channels,
            "channels": channels,
            "width": width,
            "stride": stride,
        }
        for name, number in numbers.items():
            if number < 1:
                msg = f"{name} must be at least 1, got {number}"
                raise ValueError(msg)
        self.units, self.stride = units, stride
        self.key_iterations = key_iterations
        self.feature = nn.Conv2d(inputs.channels[0], feature_channels, kernel_size=1)
        self.spaces = nn.Parameter(_spaces(feature_channels, channels))  # (G, D, tokens' channels)
        heads = len(self.spaces)
        # Logits, what the heads say, colours and clicks.
        seen = 1 + 3 * heads + COLOUR + 2
        self.fine = conv_norm_relu(seen, width, 3)
        self.coarse = ConvSequential(
            *conv_norm_relu(seen, 2 * width, 3), *conv_norm_relu(2 * width, width, 3)
        )
        self.correction = nn.Conv2d(width, 1, kernel_size=3, padding=1)
        for parameter in self.correction.parameters():
            nn.init.zeros_(parameter)  # it begins as the identity

    def forward(self, logits: Tensor, image: Tensor, features: Tensor, clicks: Tensor) -> Tensor:
        """Refine logits.

        Args:
            logits: Shape ``(B, 1, H, W)``.
            image: Normalised RGB, shape ``(B, 3, H, W)``.
            features: Map of the decoder, shape ``(B, C, h, w)``.
            clicks: Positive and negative click maps in [0, 1], shape ``(B, 2, H, W)``.

        Returns:
            Logits ``(B, 1, H, W)``.
        """
        size = (image.shape[-2], image.shape[-1])
        small_clicks = F.max_pool2d(clicks.float(), self.stride, ceil_mode=True)
        positive, negative = (small_clicks > CLICKED).chunk(2, dim=1)  # each (B, 1, h, w)
        unsaid = positive == negative  # by clicks of neither sign, or of both
        with full_precision(image.device):
            posterior = self._posterior(*self._queries(image.float(), features.float()))
            share = F.avg_pool2d(logits.float().sigmoid(), self.stride, ceil_mode=True)
            share = torch.where(unsaid, share, positive.float())
            said = torch.cat([share, positive.float(), negative.float()], dim=1)
            told = _resized(_propagated(posterior, said), size)  # (B, 3 G, H, W)
        evidence = torch.cat([logits, told, image, clicks], dim=1).to(image.dtype)
        around = self.coarse(F.avg_pool2d(evidence, self.stride, ceil_mode=True))
        correction: Tensor = self.correction(self.fine(evidence) + _resized(around, size))
        return logits + correction.to(logits.dtype)

    def _queries(self, image: Tensor, features: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return queries ``(B, G, h w, D)`` of the tokens, and their grid ``(h, w)``."""
        colours = F.avg_pool2d(image, self.stride, ceil_mode=True)  # (B, 3, h, w)
        grid = (colours.shape[-2], colours.shape[-1])
        learnt = _resized(self.feature(features), grid)
        tokens = torch.cat([with_places(colours), learnt], dim=1).flatten(2)  # (B, E, h w)
        return torch.einsum("gde,ben->bgnd", self.spaces.to(tokens.dtype), tokens), grid

    def _posterior(self, queries: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return what each unit answers for of each token, ``(B, G, h w, units**2)``.

        The units are few: their posterior is written out once, and used twice.
        """
        with torch.no_grad():  # units are where the tokens are; only what they mean is learnt
            keys = grid_units(queries, grid, self.units, self.key_iterations)
        logits = queries @ keys.transpose(2, 3) + nearness(keys)[..., None, :]
        return logits.softmax(dim=-1)


def _propagated(posterior: Tensor, said: Tensor) -> Tensor:
    """Return what the units of each head say, ``(B, 3 G, h, w)``: log-odds and two kinds of clicks.

    Args:
        posterior: Shape ``(B, G, h w, M)``.
        said: Shares of the object and clicks of two kinds, shape ``(B, 3, h, w)``.
    """
    batch, heads = posterior.shape[:2]
    observed = said.flatten(2).transpose(1, 2)[:, None]  # (B, 1, h w, 3)
    mass = posterior.sum(dim=2)[..., None]  # (B, G, M, 1)
    values = posterior.transpose(2, 3) @ observed / mass.clamp(min=SMALLEST_MASS)
    read = (posterior @ values).transpose(2, 3).reshape(batch, heads, 3, *said.shape[-2:])
    odds = read[:, :, :1].logit(eps=SMALLEST_SHARE)
    # A disk is a small part of its unit.
    clicked = (read[:, :, 1:] + SMALLEST_SHARE**2).sqrt()
    return torch.cat([odds, clicked], dim=2).flatten(1, 2)


def _resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(maps, size, mode="bilinear", align_corners=False)


def _spaces(feature_channels: int, channels: int) -> Tensor:
    """Projections ``(3, D, E)`` to the spaces of the three heads, as they are at the start."""
    size = COLOUR + PLACE + feature_channels
    scales = torch.tensor(
        [COLOUR_SCALE] * COLOUR + [PLACE_SCALE] * PLACE + [FEATURE_SCALE] * feature_channels
    )
    spaces = torch.zeros(3, channels, size)
    for head, seen in enumerate((COLOUR, COLOUR + PLACE, size)):
        kept = min(seen, channels)
        spaces[head, range(kept), range(kept)] = scales[:kept]
    return spaces
