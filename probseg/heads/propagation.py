"""Propagation of prompts to other pixels, in learnt features."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.clicks.maps import filled_box_map
from probseg.clicks.propagated import LARGEST_ODDS, SMALLEST_SHARE, seeds
from probseg.errors import require
from probseg.heads.base import Units
from probseg.ops.attention import assign_checked, attend_checked
from probseg.ops.numerics import full_precision
from probseg.ops.units import grid_units, nearness, with_places
from probseg.types import FeatureInfo, Prompts

UNKNOWN = 0.02  # weight of a pixel without previous mask and box, relative to one with either

FEW = 1e-3  # mean weight of the observations near a unit at which they count as much as its prior

FEW_CLICKS = 0.01  # share of clicked pixels at which a unit has half of the largest confidence

REACH = 4.0  # squared distances to clicks, in variances of a unit, are divided by twice this number


class PromptPropagation(nn.Module):
    """Value propagation from prompts to all pixels of an image, in learnt spaces.

    The pixels of a coarse grid are queries of Gaussian mixtures, one in each space, over learnt
    features, colours and places with learnt scales. The units of a mixture begin at the means of
    the cells of a grid and adapt to the image by EM (Gabbur et al. 2021, Eq. 16, without
    a prior), once for all clicks. The last answer and the clicks are observations of the units'
    values, which propagate to all pixels (Eqs. 23 and 24); a clicked pixel weighs as many others as
    has been learnt. Beside the units, the clicks are units of a mixture themselves: its posterior
    says which sign the nearest clicks have, its evidence how near they are.

    Everything is exact and differentiable, through the iterations, too.

    Args:
        inputs: Channels and stride of the features; there is one map of them.
        spaces: Number `G` of spaces.
        dims: Channels of the features in each of them.
        units: Units along each side of the grid of each mixture, `units**2` in all.
        key_iterations: EM iterations in which the units adapt to the image.

    Attributes:
        channels: Number of maps that `forward` returns.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        spaces: int = 4,
        dims: int = 12,
        units: int = 8,
        key_iterations: int = 1,
    ) -> None:
        super().__init__()
        names = ("spaces", "dims", "units", "key_iterations")
        for name, number in zip(names, (spaces, dims, units, key_iterations), strict=True):
            require(number >= 1, name, "at least 1", number)
        self.spaces, self.dims, self.units = spaces, dims, units
        self.key_iterations = key_iterations
        self.stride = inputs.strides[0]
        self.channels = 4 * spaces
        self.embed = nn.Conv2d(inputs.channels[0], spaces * dims, kernel_size=1)
        # One over the standard deviations of a unit: of features, of colours, of places. Spaces
        # begin between one that looks for places as well and one that hardly does.
        features = torch.full((spaces,), math.log(0.8))
        colours = torch.linspace(math.log(12.0), math.log(3.0), spaces)
        places = torch.linspace(math.log(8.0), math.log(1.0), spaces)
        self.log_scales = nn.Parameter(torch.stack([features, colours, places]))  # (3, G)
        self.log_click_weight = nn.Parameter(torch.tensor(math.log(30.0)))

    def prepare(self, features: Tensor, image: Tensor) -> Units:
        """Compute queries of the pixels, and let the units adapt to them.

        Features are `(B, C, h, w)`, images RGB in [0, 1], `(B, 3, H, W)`; queries `(B, G, h w, D)`
        and keys `(B, G, units**2, D)`, with `D = dims + 5`.
        """
        batch, grid = len(features), (features.shape[-2], features.shape[-1])
        embedded = self.embed(features).view(batch, self.spaces, self.dims, -1)
        with full_precision(features.device):
            seen = embedded.float().transpose(2, 3)  # (B, G, h w, D')
            seen = F.layer_norm(seen, (self.dims,))
            colours = F.adaptive_avg_pool2d(image.float(), grid)
            rest = with_places(colours).flatten(2).transpose(1, 2)[:, None]  # (B, 1, h w, 5)
            scales = self.log_scales.float().exp()[:, :, None, None]  # (3, G, 1, 1)
            parts = [seen * scales[0], rest[..., :3] * scales[1], rest[..., 3:] * scales[2]]
            queries = torch.cat(parts, dim=-1)
            return Units(queries, grid_units(queries, grid, self.units, self.key_iterations))

    def forward(self, units: Units, prompts: Prompts, grid: tuple[int, int]) -> Tensor:
        """Propagate prompts, in pixels of the image, to a grid `(h, w)` of maps `(B, 4 G, h, w)`.

        For each space: the share of the object among a pixel's like (log-odds, scaled to [-1, 1]),
        which clicks are on its like (-1 negative, 1 positive), the sign of the clicks that are
        nearest to it, and the same times their nearness; float32.
        """
        queries, keys = units
        with full_precision(queries.device):
            observed = self._observed(prompts, grid)  # (B, 4, h, w)
            rows = observed.flatten(2).transpose(1, 2)[:, None]
            rows = rows.expand(-1, self.spaces, -1, -1).contiguous()  # (B, G, h w, 4)
            prior = (nearness(keys),)
            means = assign_checked(queries, keys, rows, prior).means  # (B, G, M, 4)
            weight, object_weight, positive, negative = means.unbind(dim=-1)
            usual = object_weight.mean(dim=-1, keepdim=True) / weight.mean(dim=-1, keepdim=True)
            share = (object_weight + FEW * usual) / (weight + FEW)
            clicked = (positive - negative) / (positive + negative + FEW_CLICKS)
            values = torch.stack([share, clicked], dim=-1)
            read = attend_checked(queries, keys, values, prior).values  # (B, G, h w, 2)
            odds = read[..., 0].logit(eps=SMALLEST_SHARE) / LARGEST_ODDS
            nearest = self._nearest(queries, prompts, grid)
            maps = torch.stack([odds, read[..., 1], *nearest], dim=2)  # (B, G, 4, h w)
            return maps.reshape(len(maps), self.channels, *grid)

    def _observed(self, prompts: Prompts, grid: tuple[int, int]) -> Tensor:
        """Return weights `(B, 4, h, w)`: of all pixels, of the object, of clicks of either sign."""
        boxes = prompts.boxes.float() / self.stride
        boxed = ~boxes.isnan().any(dim=1)[:, None, None]  # (B, 1, 1)
        belief = filled_box_map(boxes, grid)
        known = boxed
        if prompts.previous is not None:
            before = F.adaptive_avg_pool2d(prompts.previous.float(), grid)[:, 0]
            answered = before.amax(dim=(1, 2), keepdim=True) > 0
            belief, known = torch.where(answered, before, belief), boxed | answered
        points = (prompts.points.float() + 0.5) / self.stride - 0.5
        positive, negative, _ = seeds(points, prompts.labels, grid)
        belief = torch.where(positive, 1.0, torch.where(negative, 0.0, belief))
        weight = torch.full_like(belief, UNKNOWN).masked_fill(known, 1.0)
        weight = torch.where(positive | negative, self.log_click_weight.float().exp(), weight)
        observed = [weight, weight * belief, positive.float(), negative.float()]
        return torch.stack(observed, dim=1)

    def _nearest(
        self, queries: Tensor, prompts: Prompts, grid: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Return the sign of the nearest clicks, and the same times nearness, `(B, G, h w)`."""
        labels = F.pad(prompts.labels, (0, 1), value=-1)  # at least one
        points = F.pad(prompts.points.float(), (0, 0, 0, 1))
        x, y = ((points + 0.5) / self.stride).long().unbind(dim=-1)  # (B, S)
        cell = y.clamp(0, grid[0] - 1) * grid[1] + x.clamp(0, grid[1] - 1)
        batch, spaces, _, channels = queries.shape
        index = cell[:, None, :, None].expand(batch, spaces, -1, channels)
        keys = queries.gather(2, index)  # (B, G, S, D)
        real = labels >= 0
        some = real.any(dim=1)[:, None, None]
        # Without any click all are equally near: what follows is masked out.
        hidden = torch.zeros_like(labels, dtype=keys.dtype).masked_fill(~real, -torch.inf)
        hidden = torch.where(real.any(dim=1, keepdim=True), hidden, 0.0)
        values = (labels == 1).to(keys.dtype) - (labels == 0).to(keys.dtype)
        values = values[:, None, :, None].expand(batch, spaces, -1, 1).contiguous()
        prior = nearness(keys) + hidden[:, None, None]
        sign, evidence = attend_checked(queries, keys, values, (prior,))
        distance = (queries.square().sum(dim=-1) / 2 - evidence).clamp(min=0)
        sign = sign[..., 0].masked_fill(~some, 0.0)
        return sign, sign * (-distance / REACH).exp()
