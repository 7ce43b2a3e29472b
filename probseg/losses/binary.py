"""Losses of masks, of clicked pixels and of a predicted IoU: functions, modules as thin shells.

Those of masks take `logits` of shape `(B, 1, H, W)` and `masks` of shape `(B, H, W)`, or of that of
the logits, uint8, with 1 object, 0 background and 255 ignored, and return one number: the mean over
images of each image's loss, so that images count alike whatever the number of their valid pixels.
Batches of 0 and 255 alone are refused: 255 is rarely meant as ignored there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import require
from probseg.ops.numerics import working_dtype
from probseg.types import IGNORE, Prompts, check_mask


def _prepare(logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Flatten to logits, targets and validity of a `working_dtype`, each `(B, H*W)`."""
    if masks.ndim == 4 and masks.shape[1] == 1:
        masks = masks[:, 0]
    if masks.ndim != 3 or logits.shape != masks.unsqueeze(1).shape:
        raise ValueError(
            "`logits` must have shape (B, 1, H, W) for `masks` of shape (B, H, W), got "
            f"{tuple(logits.shape)} for {tuple(masks.shape)}"
        )
    if not torch.compiler.is_compiling():
        check_mask(masks, "masks")
    valid, dtype = (masks != IGNORE).flatten(1), working_dtype(logits.dtype)
    return logits.to(dtype).flatten(1), (masks == 1).to(dtype).flatten(1), valid.to(dtype)


def binary_cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    """Cross-entropy per valid pixel, averaged over images."""
    scores, target, valid = _prepare(logits, masks)
    loss = F.binary_cross_entropy_with_logits(scores, target, reduction="none") * valid
    return (loss.sum(dim=1) / valid.sum(dim=1).clamp_min(1)).mean()


def normalized_focal_loss(
    logits: Tensor, masks: Tensor, alpha: float = 0.5, gamma: float = 2.0
) -> Tensor:
    """Focal loss whose weights are rescaled to keep the gradient's size (Sofiiuk et al. 2019).

    The factor `(1 - p)^gamma` of the true class's probability p shrinks as the model improves;
    dividing by its mean over the image (a constant for the gradient) keeps the total weight at
    that of cross-entropy. The quotient is computed from logarithms and needs no floor, so that it
    holds however sure the logits are; the authors' code adds 1e-12 to the sum of the factors.
    `alpha` weighs the object's pixels, `1 - alpha` the background's; with `gamma` 0 and 0.5 it is
    half of cross-entropy.
    """
    scores, target, valid = _prepare(logits, masks)
    true_logit = (2 * target - 1) * scores
    # Unlike PyTorch's cross-entropy with logits, whose gradient of sure pixels is p - 1 rounded.
    log_true = F.logsigmoid(true_logit)
    log_weight = gamma * (log_true - true_logit)  # gamma log(1 - p)
    log_weight = log_weight.masked_fill(valid == 0, -torch.inf)
    # An image without valid pixels has a sum of 0, whose logarithm is not finite.
    log_sum = log_weight.logsumexp(dim=1, keepdim=True).detach().nan_to_num(neginf=0.0)
    share = torch.exp(log_weight - log_sum)  # of each pixel in the sum of the factors
    balance = alpha * target + (1 - alpha) * (1 - target)
    return (balance * share * -log_true).sum(dim=1).mean()


def soft_iou_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """One minus the intersection over union of probabilities and mask, averaged over images."""
    scores, target, valid = _prepare(logits, masks)
    probability = torch.sigmoid(scores) * valid
    target = target * valid
    intersection = (probability * target).sum(dim=1)
    union = (probability + target).sum(dim=1) - intersection
    return (1 - (intersection + 1) / (union + 1)).mean()  # + 1 pixel: empty masks are defined


def taught_loss(logits: Tensor, taught: Tensor, masks: Tensor) -> Tensor:
    """Cross-entropy with the probabilities `(B, 1, H, W)` of a teacher, where it differs most.

    Distillation (Hinton, Vinyals and Dean 2015) with the weights of `normalized_focal_loss` for
    `gamma` 2: those of the pixels of an image are the squared differences to the teacher, over
    their sum. The masks tell which pixels are ignored.
    """
    scores, _, valid = _prepare(logits, masks)
    target = taught.to(scores.dtype).flatten(1)
    weight = (scores.detach().sigmoid() - target).square() * valid
    entropy = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
    return ((weight * entropy).sum(dim=1) / weight.sum(dim=1).clamp_min(1e-6)).mean()


class MaskLoss(nn.Module, ABC):
    """Base of the losses that a task accepts: `(logits, masks) -> scalar`."""

    @abstractmethod
    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        """Return the loss of logits `(B, 1, H, W)` for masks `(B, H, W)`."""


class BinaryCrossEntropy(MaskLoss):
    """Module of `binary_cross_entropy`."""

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        """Return the loss of logits `(B, 1, H, W)` for masks `(B, H, W)`."""
        return binary_cross_entropy(logits, masks)


class NormalizedFocalLoss(MaskLoss):
    """Module of `normalized_focal_loss`.

    Args:
        alpha: Weight of the object's pixels, in (0, 1).
        gamma: Focusing exponent, at least 0.
    """

    def __init__(self, alpha: float = 0.5, gamma: float = 2.0) -> None:
        super().__init__()
        require(0 < alpha < 1, "alpha", "in (0, 1)", alpha)
        require(gamma >= 0, "gamma", "at least 0", gamma)
        self.alpha = alpha
        self.gamma = gamma

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        """Return the loss of logits `(B, 1, H, W)` for masks `(B, H, W)`."""
        return normalized_focal_loss(logits, masks, self.alpha, self.gamma)


class SoftIoULoss(MaskLoss):
    """Module of `soft_iou_loss`."""

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        """Return the loss of logits `(B, 1, H, W)` for masks `(B, H, W)`."""
        return soft_iou_loss(logits, masks)


class WeightedSum(MaskLoss):
    """Sum of losses.

    Args:
        losses: The terms, at least one.
        weights: One factor for each term; all 1 by default.
    """

    def __init__(self, losses: Sequence[MaskLoss], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.losses = nn.ModuleList(losses)
        self.weights = [1.0] * len(losses) if weights is None else list(weights)
        fits = len(self.weights) == len(self.losses)
        require(len(losses), "losses", "at least one", list(losses))
        require(fits, "weights", f"a factor for each of {len(self.losses)} losses", self.weights)

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        """Return the loss of logits `(B, 1, H, W)` for masks `(B, H, W)`."""
        terms = [w * f(logits, masks) for w, f in zip(self.weights, self.losses, strict=True)]
        return torch.stack(terms).sum()


def clicked_loss(logits: Tensor, prompts: Prompts) -> Tensor:
    """Mean cross-entropy between the logits of clicked pixels and the labels of their clicks.

    A click is obeyed where this is small: one pixel hardly counts in the loss of a mask. Logits are
    `(B, 1, H, W)`, clicks inside the images; without clicks it is 0.
    """
    real = prompts.labels >= 0  # (B, S)
    x, y = prompts.points.long().unbind(dim=-1)
    rows = torch.arange(len(logits), device=logits.device)[:, None].expand_as(x)
    clicked = logits.squeeze(1)[rows[real], y[real], x[real]].to(working_dtype(logits.dtype))
    if len(clicked) == 0:
        return logits.sum() * 0
    return F.binary_cross_entropy_with_logits(clicked, prompts.labels[real].to(clicked.dtype))


def iou_cross_entropy(quality: Tensor, logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy between the predicted and the true IoU of answers, and the absolute error.

    The IoU is that of the pixels whose logit is above 0, over all that are not ignored; images in
    which neither mask nor object have such a pixel do not count. Both are averaged over images, and
    0 where none counts. `quality` are logits of the predicted IoU, `(B,)`; no gradient flows into
    the answers.
    """
    if not torch.compiler.is_compiling():
        check_mask(masks, "masks")
    inside, truth = (logits.squeeze(1) > 0) & (masks != IGNORE), masks == 1
    hits, unions = (inside & truth).sum(dim=(1, 2)), (inside | truth).sum(dim=(1, 2))
    counts = unions > 0
    weight = counts / counts.sum().clamp(min=1)
    iou = hits / unions.clamp(min=1)
    entropy = F.binary_cross_entropy_with_logits(quality.float(), iou, reduction="none")
    error = (quality.detach().float().sigmoid() - iou).abs()
    return torch.dot(entropy, weight), torch.dot(error, weight)
