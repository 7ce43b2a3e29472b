"""Scores of an interactive segmentation, from the IoU after every click.

All functions take ``ious`` of shape ``(objects, trials, K + 1)``: entry ``k`` of the last axis is
the IoU after ``k`` corrective clicks, and ``K`` is the largest number of clicks. Entry 0 is the IoU
before any corrective click: of the first prediction where the annotator drew a box, of the empty
mask (0) where the first click is what starts the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

REPORTED_CLICKS = (0, 1, 2, 3, 5, 10, 20)
"""Numbers of clicks whose mean IoU is in tables and cards, as far as a protocol has them."""


def miou_at(ious: Floats) -> Floats:
    """Return the mean over trials and objects after each number of clicks, shape ``(K + 1,)``."""
    return np.asarray(_checked(ious).mean(axis=1).mean(axis=0))


def standard_error_objects(ious: Floats) -> Floats:
    """Return the standard error over objects: how much the choice of images matters.

    The standard deviation (with ``objects - 1``) of the objects' means over trials, divided by the
    root of the number of objects. NaN for a single object.

    Returns:
        Shape ``(K + 1,)``.
    """
    return _standard_error(_checked(ious).mean(axis=1))


def standard_error_trials(ious: Floats) -> Floats:
    """Return the standard error over trials: how much the noise of the protocol matters.

    The standard deviation (with ``trials - 1``) of the trials' means over objects, divided by the
    root of the number of trials; the dispersion that Gabbur et al. (2021) report. It says nothing
    of how the result would change with other images. NaN for a single trial.

    Returns:
        Shape ``(K + 1,)``.
    """
    return _standard_error(_checked(ious).mean(axis=0))


def noc(ious: Floats, threshold: float) -> npt.NDArray[np.int64]:
    """Return the number of corrective clicks that each run needs to reach an IoU.

    The first ``k`` with ``iou >= threshold``. A run that never gets there counts as ``K``, as is
    usual, so a success at the last click and a failure look alike (see `failures`). It is 0 where
    the box alone was enough; without a box the empty mask of ``k = 0`` reaches nothing.

    Args:
        ious: Shape ``(objects, trials, K + 1)``.
        threshold: IoU to reach, in ``(0, 1]``.

    Returns:
        Shape ``(objects, trials)``.
    """
    reached = _checked(ious) >= _checked_threshold(threshold)
    last = ious.shape[2] - 1
    return np.asarray(np.where(reached.any(axis=2), reached.argmax(axis=2), last))


class Failures(NamedTuple):
    """Number of runs (object and trial) that failed, counted in two ways.

    Args:
        at_cap: Runs that needed ``K`` clicks or never reached the IoU: the ``>= K`` of RITM's
            tables, which includes a success exactly at the last click.
        never: Runs that never reached the IoU.
    """

    at_cap: int
    never: int


def failures(ious: Floats, threshold: float) -> Failures:
    """Count the runs that did not reach an IoU, both ways.

    Args:
        ious: Shape ``(objects, trials, K + 1)``.
        threshold: IoU to reach, in ``(0, 1]``.
    """
    clicks = noc(ious, threshold)
    return Failures(
        at_cap=int((clicks == ious.shape[2] - 1).sum()),
        never=int((ious < threshold).all(axis=2).sum()),
    )


@dataclass(frozen=True)
class Summary:
    """All scores of one data set.

    Args:
        n_objects: Number of objects.
        n_trials: Runs per object.
        max_clicks: Largest number of corrective clicks, ``K``.
        miou: Mean IoU after ``0 ... K`` corrective clicks.
        se_objects: Standard error of ``miou`` over objects; None for a single object.
        se_trials: Standard error of ``miou`` over trials; None for a single trial.
        noc: Mean number of clicks to reach an IoU, by IoU in percent.
        failures_at_cap: Runs at the largest number of clicks or beyond, by IoU in percent.
        failures_never: Runs that never reached the IoU, by IoU in percent.
    """

    n_objects: int
    n_trials: int
    max_clicks: int
    miou: list[float]
    se_objects: list[float] | None
    se_trials: list[float] | None
    noc: dict[int, float]
    failures_at_cap: dict[int, int]
    failures_never: dict[int, int]


def summarise(ious: Floats, percents: Sequence[int] = (80, 85, 90)) -> Summary:
    """Compute all scores of one data set.

    Args:
        ious: Shape ``(objects, trials, K + 1)``.
        percents: IoUs to reach, in percent.

    Raises:
        ValueError: If ``ious`` is not of rank 3, is empty, or holds a value outside [0, 1].
    """
    ious = _checked(ious)
    failed = {percent: failures(ious, percent / 100) for percent in percents}
    return Summary(
        n_objects=ious.shape[0],
        n_trials=ious.shape[1],
        max_clicks=ious.shape[2] - 1,
        miou=miou_at(ious).tolist(),
        se_objects=standard_error_objects(ious).tolist() if ious.shape[0] > 1 else None,
        se_trials=standard_error_trials(ious).tolist() if ious.shape[1] > 1 else None,
        noc={percent: float(noc(ious, percent / 100).mean()) for percent in percents},
        failures_at_cap={percent: count.at_cap for percent, count in failed.items()},
        failures_never={percent: count.never for percent, count in failed.items()},
    )


def _checked(ious: Floats) -> Floats:
    ious = np.asarray(ious, dtype=np.float64)
    if ious.ndim != 3 or ious.size == 0:
        message = f"ious: expected a non-empty shape (objects, trials, K + 1), got {ious.shape}"
        raise ValueError(message)
    if not ((ious >= 0) & (ious <= 1)).all():
        message = (
            "ious: expected values in [0, 1], got others (NaN, or percent instead of fractions?)"
        )
        raise ValueError(message)
    return ious


def _checked_threshold(threshold: float) -> float:
    if not 0 < threshold <= 1:
        message = f"threshold: expected a fraction in (0, 1], got {threshold}"
        raise ValueError(message)
    return threshold


def _standard_error(means: Floats) -> Floats:
    """Return the standard error of the mean over the first axis, shape ``(K + 1,)``."""
    count = means.shape[0]
    if count == 1:
        return np.full(means.shape[1:], np.nan)  # numpy would warn of 0 degrees of freedom
    return np.asarray(means.std(axis=0, ddof=1) / math.sqrt(count))
