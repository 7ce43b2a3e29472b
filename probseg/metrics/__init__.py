"""Scores of masks and of interactive segmentation: functions of numpy arrays.

Scores add up over batches and processes in a `torchmetrics.MeanMetric`, which takes the arrays of
the functions as tensors.
"""

from probseg.metrics.bootstrap import Interval, clustered_bootstrap
from probseg.metrics.boundary import boundary_iou
from probseg.metrics.calibration import brier_score, expected_calibration_error
from probseg.metrics.compliance import click_compliance
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
from probseg.metrics.jumps import size_jump
from probseg.metrics.overlap import iou

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
