"""A classifier of pixels whose weights adapt to the clicks on an image."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.ops.logistic import logistic_em
from probseg.ops.numerics import working_dtype

PRECISIONS = 1e-6, 1e6
"""Range of the precision of the prior: beyond it, float32 cannot tell it from 0 or infinity."""


@dataclass(frozen=True)
class ClickAdaptation:
    """EM updates of a classifier's weights from the clicked pixels.

    Args:
        iterations: Number of EM steps; 0 changes nothing, 3 are close to convergence.
        prior_precision: Precision of the Gaussian prior around the trained weights, from
            1e-6 to 1e6.

    Raises:
        ValueError: If a number is out of range.
    """

    iterations: int = 0
    prior_precision: float = 10.0

    def __post_init__(self) -> None:
        if self.iterations < 0:
            msg = f"`iterations` must be at least 0, got {self.iterations}"
            raise ValueError(msg)
        smallest, largest = PRECISIONS
        if not smallest <= self.prior_precision <= largest:
            msg = (
                f"`prior_precision` must be from {smallest:g} to {largest:g}, got "
                f"{self.prior_precision}"
            )
            raise ValueError(msg)


class AdaptiveClassifier(nn.Conv2d):
    """1x1 convolution to a logit that learns from the clicks on the image that it classifies.

    The contribution of each channel to the logit, weight times feature, is multiplied by a factor
    of its own, and the bias shifted. The factors are Gaussian around 1 before any click, the shift
    around 0, in units of the length of the weights; the clicked cells are labelled observations,
    from which `logistic_em` finds the mode of the posterior. Without clicks, or without
    iterations, this is the convolution. All is differentiable.

    An observation is a cell that a click's disk covers; a disk of radius 5 pixels covers 5 cells of
    4 x 4 pixels.

    Args:
        channels: Channels of the features.
        settings: Number of EM steps, and precision of the prior of factors and shift.
    """

    def __init__(self, channels: int, settings: ClickAdaptation) -> None:
        super().__init__(channels, 1, kernel_size=1)
        self.settings = settings

    def adapt_clicks(self, iterations: int | None = None, prior: float | None = None) -> None:
        """Change the settings; None leaves one as it is."""
        given = {"iterations": iterations, "prior_precision": prior}
        changes = {name: value for name, value in given.items() if value is not None}
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]

    def forward(self, features: Tensor, clicks: Tensor | None = None) -> Tensor:
        """Classify.

        Args:
            features: Shape `(B, C, h, w)`.
            clicks: Positive and negative click maps in [0, 1], shape `(B, 2, H, W)`; None for
                none.

        Returns:
            Logits `(B, 1, h, w)`.
        """
        logits = super().forward(features)
        if clicks is None or self.settings.iterations == 0:
            return logits
        dtype = working_dtype(features.dtype)
        covered = F.adaptive_avg_pool2d(clicks.to(dtype), (features.shape[-2], features.shape[-1]))
        covered, found = covered.flatten(2), features.flatten(2)  # (B, 2, h w), (B, C, h w)
        if not torch.compiler.is_exporting():  # a graph takes all cells: their number is fixed
            counts = covered.sum(dim=1)
            most = int((counts > 0).sum(dim=1).amax())
            if most == 0:
                return logits
            cells = counts.topk(most, dim=1).indices[:, None]  # (B, 1, S); padding has none
            covered = covered.gather(2, cells.expand(-1, 2, -1))
            found = found.gather(2, cells.expand(-1, features.shape[1], -1))
        counts = covered.sum(dim=1)  # (B, S)
        positive, negative = covered.unbind(dim=1)
        assert self.bias is not None, "a convolution with bias"
        length = self.weight.norm().clamp(min=1e-6)
        scale = torch.cat([self.weight.flatten(), length[None]]).to(dtype)  # (C + 1,)
        prior_mean = torch.cat([torch.ones_like(scale[1:]), self.bias.to(dtype) / length])
        rows = F.pad(found.mT.to(dtype), (0, 1), value=1.0) * scale  # (B, S, C + 1)
        evidence = (positive - negative) / 2
        steps, prior = self.settings.iterations, self.settings.prior_precision
        adapted = logistic_em(rows, evidence, counts, prior_mean, prior, steps)
        weights = (adapted * scale).to(features.dtype)
        moved = (weights[:, None, :-1] @ features.flatten(2)) + weights[:, None, -1:]
        return moved.view_as(logits)
