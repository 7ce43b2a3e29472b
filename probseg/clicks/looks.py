"""Second looks in training: a window around the last click, at the crop's own resolution.

At test time a second look answers a window of half the side around each click, with the answer so
far as its previous mask (`probseg.geometry`). A training crop is shown at half its size first,
as the whole object, and the window is cut out of the crop itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.types import Prompts


class Look(NamedTuple):
    """Windows of half the side of their crops.

    Args:
        images: Shape `(B, 3, H / 2, W / 2)`.
        masks: uint8, shape `(B, H / 2, W / 2)`.
        prompts: The clicks inside, in pixels of the windows, and the last answer there.
    """

    images: Tensor
    masks: Tensor
    prompts: Prompts


def halve(images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Return crops `(B, 3, H, W)` and masks `(B, H, W)` at half their size; both sides are even."""
    small = F.interpolate(images, scale_factor=0.5, mode="area")
    nearest = F.interpolate(masks[:, None], scale_factor=0.5, mode="nearest-exact")
    return small, nearest[:, 0]


def look_again(images: Tensor, masks: Tensor, prompts: Prompts, logits: Tensor) -> Look:
    """Cut a window around the last click out of each crop.

    Args:
        images: Crops, shape `(B, 3, H, W)`.
        masks: uint8, shape `(B, H, W)`.
        prompts: Of the crops at half their size; crops without a click are seen in the middle.
        logits: The answer to these prompts, shape `(B, 1, H / 2, W / 2)`.
    """
    height, width = masks.shape[-2] // 2, masks.shape[-1] // 2
    points = 2 * prompts.points + 0.5  # the centre of a pixel is half a pixel from its border
    middle = points.new_tensor([width, height])
    # Number of the last click, counted from 1, in front of which the middle of the crop is put.
    order = torch.arange(1, points.shape[1] + 1, device=points.device)
    last = F.pad((prompts.labels >= 0) * order, (1, 0)).argmax(dim=1)  # (B,)
    centres = torch.cat([middle.expand(len(points), 1, 2), points], dim=1)
    centre = centres[torch.arange(len(points), device=points.device), last]
    first = (centre - middle / 2).round().clamp(min=0).minimum(middle)  # (B, 2), inside the crop
    points = points - first[:, None]
    inside = ((points >= 0) & (points <= middle - 1)).all(dim=-1)
    probability = F.interpolate(
        logits.sigmoid(), masks.shape[-2:], mode="bilinear", align_corners=False
    )

    def cut(maps: Tensor) -> Tensor:
        corners = first.long().tolist()
        rows = zip(maps, corners, strict=True)
        return torch.stack([one[..., y : y + height, x : x + width] for one, (x, y) in rows])

    return Look(
        cut(images),
        cut(masks),
        Prompts(
            points=points.clamp(min=0).minimum(middle - 1),
            labels=prompts.labels.where(inside, -1),
            boxes=torch.full_like(prompts.boxes, torch.nan),
            previous=cut(probability),
        ),
    )
