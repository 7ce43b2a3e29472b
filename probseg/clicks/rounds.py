"""Rounds of training clicks on the network's own errors: shared by all curricula."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from probseg.seeds import mix_seeds
from probseg.types import Prompts

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
