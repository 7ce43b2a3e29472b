"""A classifier of pixels whose weights adapt to the clicks on an image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.ops.logistic import logistic_em
from probseg.ops.numerics import working_dtype


class AdaptiveClassifier(nn.Conv2d):
    """1x1 convolution to a logit that learns from the clicks on the image that it classifies.

    The contribution of each channel to the logit, weight times feature, is multiplied by a factor
    of its own, and the bias shifted. The factors are Gaussian around 1 before any click, the shift
    around 0, in units of the length of the weights; the clicked cells are labelled observations,
    from which `logistic_em` finds the mode of the posterior. Without clicks, or without
    iterations, this is the convolution. All is differentiable.

    Args:
        channels: Channels of the features.
        iterations: EM steps, 0 for none; 3 are close to convergence.
        prior: Precision of the prior of factors and shift, positive. An observation is a cell that
            a click's disk covers; a disk of radius 5 pixels covers 5 cells of 4 x 4 pixels.

    Raises:
        ValueError: If ``iterations`` is negative or ``prior`` is not positive.
    """

    def __init__(self, channels: int, iterations: int = 0, prior: float = 10.0) -> None:
        super().__init__(channels, 1, kernel_size=1)
        if iterations < 0:
            msg = f"click_iterations must be at least 0, got {iterations}"
            raise ValueError(msg)
        if not prior > 0:
            msg = f"click_prior must be a positive precision, got {prior}"
            raise ValueError(msg)
        self.iterations, self.prior = iterations, prior

    def forward(self, features: Tensor, clicks: Tensor | None = None) -> Tensor:
        """Classify.

        Args:
            features: Shape ``(B, C, h, w)``.
            clicks: Positive and negative click maps in [0, 1], shape ``(B, 2, H, W)``; None for
                none.

        Returns:
            Logits ``(B, 1, h, w)``.
        """
        logits = super().forward(features)
        if clicks is None or self.iterations == 0:
            return logits
        dtype = working_dtype(features.dtype)
        covered = F.adaptive_avg_pool2d(clicks.to(dtype), features.shape[-2:]).flatten(2)
        counts = covered.sum(dim=1)  # (B, h w)
        most = int((counts > 0).sum(dim=1).amax())
        if most == 0:
            return logits
        counts, cells = counts.topk(most, dim=1)  # (B, S); padding has none
        positive, negative = covered.gather(2, cells[:, None].expand(-1, 2, -1)).unbind(dim=1)
        found = features.flatten(2).gather(2, cells[:, None].expand(-1, features.shape[1], -1))
        length = self.weight.norm().clamp(min=1e-6)
        scale = torch.cat([self.weight.flatten(), length[None]]).to(dtype)  # (C + 1,)
        prior_mean = torch.cat([torch.ones_like(scale[1:]), self.bias.to(dtype) / length])
        rows = F.pad(found.mT.to(dtype), (0, 1), value=1.0) * scale  # (B, S, C + 1)
        evidence = (positive - negative) / 2
        adapted = logistic_em(rows, evidence, counts, prior_mean, self.prior, self.iterations)
        weights = (adapted * scale).to(features.dtype)
        moved = (weights[:, None, :-1] @ features.flatten(2)) + weights[:, None, -1:]
        return moved.view_as(logits)
