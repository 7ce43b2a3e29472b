"""Click maps propagated to pixels of similar colour and position."""

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
"""Radius of the disks around positive clicks that count as object where there is no box."""

SEED_RADIUS = 0.02
"""Radius of the disks around clicks that get the label of the click.

Both radii are fractions of the longer side of the image."""

SMALLEST_SHARE = 0.01
"""Probabilities are clamped to `[SMALLEST_SHARE, 1 - SMALLEST_SHARE]` before the logit."""

LARGEST_ODDS = 4.6
"""The logit of `1 - SMALLEST_SHARE`."""

FEW_CLICKS = 0.01
"""Share of clicked pixels at which a click map has half of its largest value."""


class PropagatedClicks(nn.Module):
    """Propagates prompts to similar pixels; no network is involved.

    The pixels are queries of a Gaussian mixture over colour and place, in one space for each pair
    of scales. Its units begin at the means of the cells of a grid, and adapt to the image by EM
    (Gabbur et al., 2021, Eq. 16, without a prior): with colours alone they are a mixture of colours
    as in GrabCut (Rother et al., 2004), with fine places superpixels. The prompts are observations
    of the units' values, which propagate to all pixels (Eqs. 23 and 24, without a prior): the share
    of the object and of clicks of either sign among similar pixels.

    The observed object is the previous mask; without one, the inside of the box; without a box,
    disks around the positive clicks. Clicks override all three. Nothing is learnt, and no gradient
    passes.

    Args:
        units: Units along each side of the grid, `units**2` in all.
        key_iterations: EM iterations in which the units adapt to the image.
        scales: Of colours and places, a pair for each space; see `probseg.ops.units.Scales`.
        stride: Of the grid of pixels that all this is done on.

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
            image: RGB in [0, 1], shape `(B, 3, H, W)`.
            prompts: Clicks, boxes and perhaps the last answer, in pixels of `image`.

        Returns:
            Two maps per space, float32, shape `(B, 2 G, H, W)`: the `log_odds_gain` of the object
            among similar pixels, scaled to [-2, 2], and the balance of the clicks among them, from
            -1 (negative) to 1 (positive).
        """
        with full_precision(image.device):
            queries, keys, grid = self.mixture(image)
            observed = self._observations(prompts, grid)  # (B, 3, h, w)
            maps = propagated(queries, keys, observed)  # (B, G, 3, h, w)
            share, positive, negative = maps.unbind(dim=2)
            odds = log_odds_gain(share, observed[:, :1])
            clicked = (positive - negative) / (positive + negative + FEW_CLICKS)
            both = torch.stack([odds / LARGEST_ODDS, clicked], dim=2).flatten(1, 2)
            return self.mixture.enlarge(both, image)

    def _observations(self, prompts: Prompts, grid: tuple[int, int]) -> Tensor:
        """Return object, positive and negative clicks on the grid, float `(B, 3, h, w)`."""
        stride = self.mixture.stride
        points = (prompts.points.float() + 0.5) / stride - 0.5
        positive, negative, near = seeds(points, prompts.labels, grid)
        guess = near.float()
        boxed = ~prompts.boxes.isnan().any(dim=1)[:, None, None]
        guess = torch.where(boxed, filled_box_map(prompts.boxes.float() / stride, grid), guess)
        if prompts.previous is not None:
            before = F.avg_pool2d(prompts.previous.float(), stride, ceil_mode=True)[:, 0]
            corrected = before.amax(dim=(1, 2), keepdim=True) > 0
            guess = torch.where(corrected, before, guess)
        guess = torch.where(positive, 1.0, torch.where(negative, 0.0, guess))
        return torch.stack([guess, positive.float(), negative.float()], dim=1)


def log_odds_gain(share: Tensor, observed: Tensor) -> Tensor:
    """Log-odds of the object among similar pixels, relative to those in the whole image.

    The share of the object among the pixels similar to each one is `(B, G, h, w)`, as is the
    result, in `[-2 LARGEST_ODDS, 2 LARGEST_ODDS]`; the object before the propagation is `(B, 1, h,
    w)`.
    """
    mean = observed.mean(dim=(2, 3), keepdim=True)
    return share.logit(eps=SMALLEST_SHARE) - mean.logit(eps=SMALLEST_SHARE)


class Seeds(NamedTuple):
    """Disks around clicks, bool, shape `(B, h, w)` each."""

    positive: Tensor  # object by a positive click; where two disks meet, the nearest click counts
    negative: Tensor  # background by a negative click
    near: Tensor  # probably object, where clicks are the only prompts


def seeds(points: Tensor, labels: Tensor, size: tuple[int, int]) -> Seeds:
    """Return the disks around points `(B, S, 2)` with labels 1, 0, or -1 for no click."""
    to_object = _distance(points, labels == 1, size)
    to_background = _distance(points, labels == 0, size)
    nearest = to_object <= to_background
    longer = max(size)
    # 0.75 of a pixel's centre, from wherever it is clicked; not the larger: graphs have any size
    positive, negative = (
        (distance <= SEED_RADIUS * longer) | (distance <= 0.75)
        for distance in (to_object, to_background)
    )
    return Seeds(
        positive=positive & nearest,
        negative=negative & ~nearest,
        near=(to_object <= GUESS_RADIUS * longer) & nearest,
    )


def _distance(points: Tensor, valid: Tensor, grid: tuple[int, int]) -> Tensor:
    """Distance `(B, h, w)` to the nearest valid point `(B, S, 2)`; infinite without one."""
    distances = squared_distances(points, grid).sqrt()  # (B, S, h, w)
    distances = distances.masked_fill(~valid[..., None, None], torch.inf)
    none = distances.new_full((len(points), 1, *grid), torch.inf)
    return torch.cat([distances, none], dim=1).amin(dim=1)
