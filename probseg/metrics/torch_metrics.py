"""The scores as classes of torchmetrics: they add up over batches, and over processes.

Their states are sums, so it does not matter how the objects are spread over batches and processes,
as long as no object is given twice. Before the first ``update`` torchmetrics warns, and means are
NaN. This module alone needs torchmetrics, which comes with Lightning::

    metric = MeanIoUAtClicks(max_clicks=20)
    metric.update(ious)    # (B, 21)
    metric.compute()       # (21,)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from probseg.metrics.boundary import DILATION, boundary_iou


class MeanIoUAtClicks(Metric):  # type: ignore[misc] # torchmetrics is not followed
    """Mean IoU after each number of clicks, see `probseg.metrics.miou_at`.

    ``compute`` returns shape ``(K + 1,)``, float64.

    Args:
        max_clicks: Largest number of corrective clicks, ``K``.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    total: Tensor
    runs: Tensor

    def __init__(self, max_clicks: int) -> None:
        super().__init__()
        self.max_clicks = max_clicks
        zeros = torch.zeros(max_clicks + 1, dtype=torch.float64)
        self.add_state("total", zeros, dist_reduce_fx="sum")
        self.add_state("runs", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, ious: Tensor) -> None:
        """Add runs.

        Args:
            ious: IoU after ``0 ... K`` corrective clicks, in [0, 1], shape ``(B, K + 1)``.

        Raises:
            ValueError: If ``ious`` has another shape or holds a value outside [0, 1].
        """
        _check_ious(ious, self.max_clicks)
        self.total += ious.sum(dim=0, dtype=torch.float64)
        self.runs += len(ious)

    def compute(self) -> Tensor:
        """Return the mean over all runs."""
        return self.total / self.runs


class NumberOfClicks(Metric):  # type: ignore[misc]
    """Clicks to reach an IoU, see `probseg.metrics.noc` and `probseg.metrics.failures`.

    ``compute`` returns a dictionary of scalars: ``noc``, the mean number of clicks (float64), and
    the numbers of failed runs, ``failures_at_cap`` and ``failures_never``.

    Args:
        threshold: IoU to reach, in (0, 1].
        max_clicks: Largest number of corrective clicks, ``K``.

    Raises:
        ValueError: If ``threshold`` is not in (0, 1].
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    clicks: Tensor
    at_cap: Tensor
    never: Tensor
    runs: Tensor

    def __init__(self, threshold: float, max_clicks: int) -> None:
        super().__init__()
        if not 0 < threshold <= 1:
            message = f"threshold: expected a fraction in (0, 1], got {threshold}"
            raise ValueError(message)
        self.threshold = threshold
        self.max_clicks = max_clicks
        for state in ("clicks", "at_cap", "never", "runs"):
            self.add_state(state, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, ious: Tensor) -> None:
        """Add runs.

        Args:
            ious: IoU after ``0 ... K`` corrective clicks, in [0, 1], shape ``(B, K + 1)``.

        Raises:
            ValueError: If ``ious`` has another shape or holds a value outside [0, 1].
        """
        _check_ious(ious, self.max_clicks)
        below = (ious < self.threshold).cumprod(dim=1)  # 1 as long as it was never reached
        clicks = below[:, :-1].sum(dim=1)  # (B,)
        self.clicks += clicks.sum()
        self.at_cap += (clicks == self.max_clicks).sum()
        self.never += below[:, -1].sum()
        self.runs += len(ious)

    def compute(self) -> dict[str, Tensor]:
        """Return the mean number of clicks and both numbers of failures."""
        return {
            "noc": self.clicks.double() / self.runs,
            "failures_at_cap": self.at_cap,
            "failures_never": self.never,
        }


class BoundaryIoU(Metric):  # type: ignore[misc]
    """Mean boundary IoU over images, see `probseg.metrics.boundary_iou`; computed on the CPU.

    ``compute`` returns a scalar, float64.

    Args:
        dilation: Width of the boundary regions as a fraction of the image's diagonal, above 0.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    total: Tensor
    images: Tensor

    def __init__(self, dilation: float = DILATION) -> None:
        super().__init__()
        self.dilation = dilation
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("images", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, masks: Tensor) -> None:
        """Add images.

        Args:
            predictions: bool, shape ``(B, H, W)``.
            masks: uint8, shape ``(B, H, W)``: 1 object, 0 background, 255 ignored.

        Raises:
            ValueError: If the shapes differ, or ``predictions`` is not bool.
        """
        pairs = zip(predictions.cpu().numpy(), masks.cpu().numpy(), strict=True)
        self.total += sum(boundary_iou(*pair, dilation=self.dilation) for pair in pairs)
        self.images += len(masks)

    def compute(self) -> Tensor:
        """Return the mean over all images."""
        return self.total / self.images


def _check_ious(ious: Tensor, max_clicks: int) -> None:
    if ious.ndim != 2 or ious.shape[1] != max_clicks + 1:
        message = f"ious: expected shape (B, {max_clicks + 1}), got {tuple(ious.shape)}"
        raise ValueError(message)
    if not ((ious >= 0) & (ious <= 1)).all():
        message = (
            "ious: expected values in [0, 1], got others (NaN, or percent instead of fractions?)"
        )
        raise ValueError(message)
