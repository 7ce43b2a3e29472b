"""Loss of the clicked pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.types import Prompts


def clicked_loss(logits: Tensor, prompts: Prompts) -> Tensor:
    """Mean cross-entropy between the logits of clicked pixels and the labels of their clicks.

    A click is obeyed where this is small: one pixel hardly counts in the loss of a mask.

    Args:
        logits: Of the object, shape `(B, 1, H, W)`.
        prompts: Clicks inside the images; only `points` and `labels` are read.

    Returns:
        A scalar; 0 without clicks.
    """
    real = prompts.labels >= 0  # (B, S)
    x, y = prompts.points.long().unbind(dim=-1)
    rows = torch.arange(len(logits), device=logits.device)[:, None].expand_as(x)
    clicked = logits.squeeze(1)[rows[real], y[real], x[real]].float()
    if len(clicked) == 0:
        return logits.sum() * 0
    return F.binary_cross_entropy_with_logits(clicked, prompts.labels[real].float())
