"""Rounds of training clicks on the network's own errors, and second looks around the last click."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.seeds import mix_seeds
from probseg.types import IGNORE, Prompts

AskNetwork = Callable[[Prompts], Tensor]
"""Asks the network that is being trained: logits `(B, 1, H, W)` for the prompts of a batch."""


def draw_count(limits: tuple[int, int], seed: int) -> int:
    """Draw a number of rounds or iterations for a batch, from the seed that its processes share."""
    fewest, most = limits
    return fewest + mix_seeds(seed) % (most - fewest + 1)


def without_clicks(boxes: Tensor) -> Prompts:
    """Return the prompts of a batch before the first click, for boxes `(B, 4)`."""
    return Prompts(
        points=boxes.new_zeros(len(boxes), 0, 2),
        labels=torch.zeros(len(boxes), 0, dtype=torch.long, device=boxes.device),
        boxes=boxes,
    )


def visible_logits(prompts: Prompts, ask: AskNetwork) -> Tensor:
    """Return the logits `(B, 1, H, W)` that the annotator sees before the next click.

    Minus infinity for images without any prompt: their mask is empty.
    """
    return ask(prompts).masked_fill(~prompts.has_prompt[:, None, None, None], -torch.inf)


def with_clicks(
    prompts: Prompts, points: Tensor, labels: Tensor, logits: Tensor | None = None
) -> Prompts:
    """Append clicks; the answer that they correct becomes the previous mask."""
    return Prompts(
        points=torch.cat([prompts.points, points.to(prompts.points.dtype)], dim=1),
        labels=torch.cat([prompts.labels, labels], dim=1),
        boxes=prompts.boxes,
        previous=None if logits is None else logits.detach().sigmoid(),
    )


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
    return small, _with_objects(nearest[:, 0])


def _with_objects(masks: Tensor) -> Tensor:
    """Ignore masks `(B, H, W)` that have lost their object: they have nothing to teach."""
    lost = ~(masks == 1).flatten(1).any(dim=1)
    return masks.masked_fill(lost[:, None, None], IGNORE)


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
        _with_objects(cut(masks)),
        Prompts(
            points=points.clamp(min=0).minimum(middle - 1),
            labels=prompts.labels.where(inside, -1),
            boxes=torch.full_like(prompts.boxes, torch.nan),
            previous=cut(probability),
        ),
    )
