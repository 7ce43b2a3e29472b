"""Rounds of training clicks on the network's own errors: shared by all curricula."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from probseg.seeds import mixed
from probseg.types import Prompts

AskNetwork = Callable[[Prompts], Tensor]
"""The network as it is: logits `(B, 1, H, W)` for prompts of a batch."""


def drawn_rounds(rounds: tuple[int, int], seed: int) -> int:
    """Draw the number of rounds of a batch from the seed that its processes share."""
    fewest, most = rounds
    return fewest + mixed(seed) % (most - fewest + 1)


def without_clicks(boxes: Tensor) -> Prompts:
    """Return the prompts of a batch before the first click, for boxes `(B, 4)`."""
    return Prompts(
        points=boxes.new_zeros(len(boxes), 0, 2),
        labels=torch.zeros(len(boxes), 0, dtype=torch.long, device=boxes.device),
        boxes=boxes,
    )


def answered(prompts: Prompts, ask: AskNetwork) -> Tensor:
    """Return the logits `(B, 1, H, W)` that the annotator sees before the next click.

    Minus infinity for images without any prompt: their mask is empty.
    """
    return ask(prompts).masked_fill(~prompts.given[:, None, None, None], -torch.inf)


def with_clicks(
    prompts: Prompts, points: Tensor, labels: Tensor, logits: Tensor | None = None
) -> Prompts:
    """Append clicks, and store the answer that they correct as previous mask."""
    return Prompts(
        points=torch.cat([prompts.points, points.to(prompts.points.dtype)], dim=1),
        labels=torch.cat([prompts.labels, labels], dim=1),
        boxes=prompts.boxes,
        previous=None if logits is None else logits.detach().sigmoid(),
    )
