"""Scores of an interactive segmentation, from the IoU after every click.

All functions take `ious` of shape `(objects, trials, K + 1)`: entry `k` of the last axis is
the IoU after `k` corrective clicks, and `K` is the largest number of clicks. Entry 0 is the IoU
before any corrective click: of the first prediction where the annotator drew a box, of the empty
mask (0) where the first click is what starts the prediction. A `threshold` is an IoU to reach, in
`(0, 1]`. They raise a ValueError if `ious` has another rank, is empty, or holds a value outside
[0, 1], or if the threshold is out of range.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

REPORTED_CLICKS = (0, 1, 2, 3, 5, 10, 20)
"""Numbers of clicks whose mean IoU is in tables and cards, as far as a protocol has them."""


def miou_at(ious: Floats) -> Floats:
    """Return the mean over trials and objects after each number of clicks, shape `(K + 1,)`."""
    return np.asarray(checked_ious(ious).mean(axis=1).mean(axis=0))


def standard_error(values: Floats) -> Floats:
    """Return the standard error of the mean over the first axis.

    Args:
        values: Independent values, shape `(N, ...)`.

    Returns:
        Standard deviation (with `N - 1`) over the root of `N`, shape `(...)`; NaN for
        `N = 1`.
    """
    count = values.shape[0]
    if count == 1:
        return np.full(values.shape[1:], np.nan)  # numpy would warn of 0 degrees of freedom
    return np.asarray(values.std(axis=0, ddof=1) / math.sqrt(count))


def area_under_curve(ious: Floats, first: int = 0) -> Floats:
    """Return each run's mean IoU along the clicks: the normalised area under its curve.

    The trapezium rule from `first` to `K` clicks, divided by `K - first`, so that a constant
    IoU `c` gives `c`::

        (iou[first] / 2 + iou[first + 1] + ... + iou[K - 1] + iou[K] / 2) / (K - first)

    The curve begins after `first` clicks: 1 where there is no prediction before the first click.
    `first = K` gives the last IoU.

    Returns:
        Shape `(objects, trials)`.
    """
    curve = checked_ious(ious)
    last = curve.shape[2] - 1
    if not 0 <= first <= last:
        raise ValueError(f"`first` must be a number of clicks in 0 ... {last}, got {first}")
    if first == last:
        return curve[:, :, last]
    return np.asarray(np.trapezoid(curve[:, :, first:], axis=2) / (last - first))


def noc(ious: Floats, threshold: float) -> npt.NDArray[np.int64]:
    """Return the number of corrective clicks that each run needs to reach an IoU.

    The first `k` with `iou >= threshold`. A run that never gets there counts as `K`, as is
    usual, so a success at the last click and a failure look alike (see `failures`), and the mean
    is too small where many fail (see `median_noc`). It is 0 where the box alone was enough;
    without a box the empty mask of `k = 0` reaches nothing.

    Returns:
        Shape `(objects, trials)`.
    """
    reached = _reached(ious, threshold)
    last = reached.shape[2] - 1
    return np.asarray(np.where(reached[:, :, -1], reached.argmax(axis=2), last))


def survival(ious: Floats, threshold: float) -> Floats:
    """Return the share of runs that have not reached an IoU after each number of clicks.

    Entry `k` is the share of runs whose IoU was below `threshold` after `0 ... k` clicks. As
    every run is followed up to `K` clicks, this is also the estimate of Kaplan and Meier (1958).
    The last entry is the share of failures.

    Returns:
        Shape `(K + 1,)`, never rising.
    """
    return np.asarray(1 - _reached(ious, threshold).mean(axis=(0, 1)))


def median_noc(ious: Floats, threshold: float) -> int | None:
    """Return the smallest number of clicks after which at least half of the runs reached an IoU.

    Unlike the mean of `noc` it does not depend on `K`: runs that fail are censored, i.e. known
    to need more than `K` clicks.

    Returns:
        Number of clicks, or None where more than half of the runs fail.
    """
    reached = _reached(ious, threshold)
    runs = reached.shape[0] * reached.shape[1]
    enough = 2 * reached.sum(axis=(0, 1)) >= runs  # whole numbers: half is half
    return int(enough.argmax()) if enough.any() else None


class Failures(NamedTuple):
    """Number of runs (object and trial) that failed, counted in two ways.

    Args:
        at_cap: Runs that needed `K` clicks or never reached the IoU: the `>= K` of RITM's
            tables (its `>=20@90`), which counts a success exactly at the last click as a failure.
        never: Runs that never reached the IoU.
    """

    at_cap: int
    never: int


def failures(ious: Floats, threshold: float) -> Failures:
    """Count the runs that did not reach an IoU, both ways."""
    reached = _reached(ious, threshold)
    return Failures(
        at_cap=int((noc(ious, threshold) == reached.shape[2] - 1).sum()),
        never=int((~reached[:, :, -1]).sum()),
    )


class Regressions(NamedTuple):
    """Clicks that lowered the IoU.

    Args:
        share: Share of the given clicks after which the IoU is lower than before, in [0, 1]; None
            where no click was given.
        size: Mean loss of IoU in those, above 0; None where there is none.
    """

    share: float | None
    size: float | None


def regressions(ious: Floats, given: npt.NDArray[np.bool_]) -> Regressions:
    """Count the clicks after which the IoU is lower than before.

    `given`, bool of the shape of `ious`, says whether the k-th click was given and had a result
    before it; entry 0, where there is no click, is not looked at. After a run ended early IoUs are
    repeated, and a click that starts the prediction follows the IoU 0 of an empty mask: both would
    pass for clicks that do no harm.
    """
    ious = checked_ious(ious)
    losses = -np.diff(ious, axis=2)[given[:, :, 1:]]
    harmful = losses[losses > 0]
    return Regressions(
        share=harmful.size / losses.size if losses.size else None,
        size=float(harmful.mean()) if harmful.size else None,
    )


def checked_ious(ious: Floats) -> Floats:
    """Return IoUs as float64; raise a ValueError for other values or shapes."""
    ious = np.asarray(ious, dtype=np.float64)
    if ious.ndim != 3 or ious.size == 0:
        raise ValueError(
            f"`ious` must have a non-empty shape (objects, trials, K + 1), got {ious.shape}"
        )
    if not ((ious >= 0) & (ious <= 1)).all():
        raise ValueError(
            "`ious` must be in [0, 1], got others (NaN, or percent instead of fractions?)"
        )
    return ious


def _reached(ious: Floats, threshold: float) -> npt.NDArray[np.bool_]:
    """Return whether each run has reached an IoU by then, shape `(objects, trials, K + 1)`."""
    if not 0 < threshold <= 1:
        raise ValueError(f"`threshold` must be a fraction in (0, 1], got {threshold}")
    return np.asarray(np.logical_or.accumulate(checked_ious(ious) >= threshold, axis=2))
