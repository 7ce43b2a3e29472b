"""Click maps that have spread to pixels of like colour and place."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.clicks.maps import filled_box_map, squared_distances
from probseg.ops.numerics import full_precision
from probseg.ops.units import PixelMixture, Scales, propagated
from probseg.types import Prompts

GUESS_RADIUS = 0.1
"""Radius of the disks around positive clicks that are guessed to be object without a box."""

SEED_RADIUS = 0.02
"""Radius of the disks around clicks that are what the click says; both in longer sides."""

SMALLEST_SHARE = 0.01
"""Shares of the object are kept this far from 0 and 1."""

LARGEST_ODDS = 4.6
"""Log-odds of a share that is `SMALLEST_SHARE` away from 1."""

FEW_CLICKS = 0.01
"""Share of clicked pixels at which a unit is half as sure as one with many."""


class PropagatedClicks(nn.Module):
    """What prompts say of pixels that nobody clicked on, before any network has looked at them.

    The pixels are queries of a Gaussian mixture over colour and place, in one space for each pair
    of scales. Its units begin at the means of the cells of a grid, and adapt to the image by EM
    (Gabbur et al., 2021, Eq. 16, without a prior): with colours alone they are a mixture of colours
    as in GrabCut (Rother et al., 2004), with fine places superpixels. The prompts are observations
    of the units' values, which propagate to all pixels (Eqs. 23 and 24, without a prior): how much
    of the object is a pixel's like, and which clicks are on its like.

    Object is, before the propagation, what the last answer says; without one, the inside of the
    box; without a box, disks around the positive clicks; and in any case what was clicked. Nothing
    is learnt, and no gradient passes.

    Args:
        units: Units along each side of the grid, ``units**2`` in all.
        key_iterations: EM iterations in which the units adapt to the image.
        scales: Of colours and places, a pair for each space; see `probseg.ops.units.Scales`.
        stride: Of the grid of pixels that all this is done on.

    Raises:
        ValueError: If a number is below 1, a scale is negative, or there are none.

    Attributes:
        channels: Number of maps.
    """

    def __init__(
        self,
        units: int = 12,
        key_iterations: int = 2,
        scales: Scales = ((22.0, 0.0), (22.0, 8.0), (18.0, 24.0)),
        stride: int = 4,
    ) -> None:
        super().__init__()
        self.mixture = PixelMixture(units, key_iterations, scales, stride)
        self.channels = 2 * len(scales)

    @torch.no_grad()
    def forward(self, image: Tensor, prompts: Prompts) -> Tensor:
        """Propagate the prompts.

        Args:
            image: RGB in [0, 1], shape ``(B, 3, H, W)``.
            prompts: Clicks, boxes and perhaps the last answer, in pixels of ``image``.

        Returns:
            For each space, how much more of the object than elsewhere is a pixel's like (log-odds,
            in [-2, 2]), and which clicks are on its like (-1 negative, 1 positive): float32, shape
            ``(B, 2 G, H, W)``.
        """
        with full_precision(image.device):
            queries, keys, grid = self.mixture(image)
            said = self._said(prompts, grid)  # (B, 3, h, w)
            maps = propagated(queries, keys, said)  # (B, G, 3, h, w)
            share, positive, negative = maps.unbind(dim=2)
            usual = said[:, :1].mean(dim=(2, 3), keepdim=True)  # (B, 1, 1, 1)
            odds = share.logit(eps=SMALLEST_SHARE) - usual.logit(eps=SMALLEST_SHARE)
            clicked = (positive - negative) / (positive + negative + FEW_CLICKS)
            told = torch.stack([odds / LARGEST_ODDS, clicked], dim=2).flatten(1, 2)
            return F.interpolate(told, image.shape[-2:], mode="bilinear", align_corners=False)

    def _said(self, prompts: Prompts, grid: tuple[int, int]) -> Tensor:
        """Return what prompts say of the pixels of the grid: object, positive, negative clicks."""
        stride = self.mixture.stride
        points = (prompts.points.float() + 0.5) / stride - 0.5
        positive, negative, near = seeds(points, prompts.labels, grid)
        guess = near.float()
        boxed = ~prompts.boxes.isnan().any(dim=1)[:, None, None]
        guess = torch.where(boxed, filled_box_map(prompts.boxes.float() / stride, grid), guess)
        if prompts.previous is not None:
            before = F.avg_pool2d(prompts.previous.float(), stride, ceil_mode=True)[:, 0]
            answered = before.amax(dim=(1, 2), keepdim=True) > 0
            guess = torch.where(answered, before, guess)
        guess = torch.where(positive, 1.0, torch.where(negative, 0.0, guess))
        return torch.stack([guess, positive.float(), negative.float()], dim=1)


class Seeds(NamedTuple):
    """Disks around clicks, bool, shape ``(B, h, w)`` each.

    Args:
        positive: What positive clicks say; where two disks meet, the nearest click counts.
        negative: What negative clicks say.
        near: What is guessed to be object when there are only clicks.
    """

    positive: Tensor
    negative: Tensor
    near: Tensor


def seeds(points: Tensor, labels: Tensor, size: tuple[int, int]) -> Seeds:
    """Return the disks around clicks.

    Args:
        points: ``(x, y)`` in pixels, float, shape ``(B, S, 2)``.
        labels: 1 positive, 0 negative, -1 no click, shape ``(B, S)``.
        size: ``(h, w)``.
    """
    to_object = _distance(points, labels == 1, size)
    to_background = _distance(points, labels == 0, size)
    nearest = to_object <= to_background
    longer = float(max(size))
    radius = max(SEED_RADIUS * longer, 0.75)  # of a pixel's centre, from wherever it is clicked
    return Seeds(
        positive=(to_object <= radius) & nearest,
        negative=(to_background <= radius) & ~nearest,
        near=(to_object <= GUESS_RADIUS * longer) & nearest,
    )


def _distance(points: Tensor, valid: Tensor, grid: tuple[int, int]) -> Tensor:
    """Distance ``(B, h, w)`` to the nearest valid point ``(B, S, 2)``; infinite without one."""
    distances = squared_distances(points, grid).sqrt()  # (B, S, h, w)
    distances = distances.masked_fill(~valid[..., None, None], torch.inf)
    none = distances.new_full((len(points), 1, *grid), torch.inf)
    return torch.cat([distances, none], dim=1).amin(dim=1)
