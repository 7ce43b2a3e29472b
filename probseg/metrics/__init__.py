"""Scores of masks and of interactive segmentation: functions of numpy arrays.

Scores add up over batches and processes in a `torchmetrics.MeanMetric`, which takes the arrays of
the functions as tensors.
"""

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
    standard_error_objects,
    standard_error_trials,
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

__all__ = [
    "REPORTED_CLICKS",
    "Failures",
    "Interval",
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
    "standard_error_objects",
    "standard_error_trials",
    "survival",
]
