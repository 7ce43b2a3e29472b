"""Scores of masks and of interactive segmentation: functions of numpy arrays.

`NumberOfClicks`, `MeanIoUAtK` and `ClickAUC` are `torchmetrics.Metric`s, which add up over batches
and processes; a `torchmetrics.MeanMetric` takes the arrays of the functions as tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probseg.kinds import lazy_getattr
from probseg.metrics.interaction import (
    REPORTED_CLICKS,
    Failures,
    Regressions,
    area_under_curve,
    failures,
    median_noc,
    miou_at,
    noc,
    regressions,
    standard_error,
    survival,
)
from probseg.metrics.masks import (
    boundary_iou,
    brier_score,
    click_compliance,
    expected_calibration_error,
    iou,
    size_jump,
)
from probseg.metrics.statistics import Interval, clustered_bootstrap

if TYPE_CHECKING:
    from probseg.metrics.accumulated import ClickAUC, MeanIoUAtK, NumberOfClicks

__all__ = [
    "REPORTED_CLICKS",
    "ClickAUC",
    "Failures",
    "Interval",
    "MeanIoUAtK",
    "NumberOfClicks",
    "Regressions",
    "area_under_curve",
    "boundary_iou",
    "brier_score",
    "click_compliance",
    "clustered_bootstrap",
    "expected_calibration_error",
    "failures",
    "iou",
    "median_noc",
    "miou_at",
    "noc",
    "regressions",
    "size_jump",
    "standard_error",
    "survival",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        name: f"probseg.metrics.accumulated.{name}"
        for name in ("ClickAUC", "MeanIoUAtK", "NumberOfClicks")
    },
)
