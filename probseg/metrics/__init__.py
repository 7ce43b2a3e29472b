"""How good a mask is, and how many clicks it took: plain functions of numpy arrays."""

from probseg.metrics.interaction import (
    REPORTED_CLICKS,
    Failures,
    Summary,
    failures,
    miou_at,
    noc,
    standard_error_objects,
    standard_error_trials,
    summarise,
)
from probseg.metrics.overlap import iou

__all__ = [
    "REPORTED_CLICKS",
    "Failures",
    "Summary",
    "failures",
    "iou",
    "miou_at",
    "noc",
    "standard_error_objects",
    "standard_error_trials",
    "summarise",
]
