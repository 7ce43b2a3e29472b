"""Loss of a predicted IoU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.types import IGNORE


def iou_cross_entropy(quality: Tensor, logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy between the predicted and the true IoU of answers, and the absolute error.

    The IoU is that of the pixels whose logit is above 0, over all that are not ignored; images in
    which neither mask nor object have such a pixel do not count.

    Args:
        quality: Logits of the predicted IoU, shape `(B,)`.
        logits: The answers, shape `(B, 1, H, W)`; no gradient flows into them.
        masks: uint8, shape `(B, H, W)`: 1 object, 0 background, 255 ignored.

    Returns:
        Both averaged over images; 0 where none counts.
    """
    inside, truth = (logits.squeeze(1) > 0) & (masks != IGNORE), masks == 1
    hits, unions = (inside & truth).sum(dim=(1, 2)), (inside | truth).sum(dim=(1, 2))
    counts = unions > 0
    weight = counts / counts.sum().clamp(min=1)
    iou = hits / unions.clamp(min=1)
    entropy = F.binary_cross_entropy_with_logits(quality.float(), iou, reduction="none")
    error = (quality.detach().float().sigmoid() - iou).abs()
    return torch.dot(entropy, weight), torch.dot(error, weight)
