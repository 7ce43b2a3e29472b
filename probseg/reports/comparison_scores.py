"""The scores by which results are compared: one number per object each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.evaluation.arrays import Scores
from probseg.evaluation.scores import SCORES
from probseg.evaluation.summary import PERCENTS
from probseg.metrics import REPORTED_CLICKS, area_under_curve, noc

Floats = npt.NDArray[np.float64]


COMPARED = {name: score for name, score in SCORES.items() if score.compared and name != "iou"}
"""Scores that are compared after the last click; IoU has separate metrics."""


class MetricStyle(NamedTuple):
    """Title of a score, its unit, the factor and digits of tables, and its better side."""

    title: str
    unit: str
    scale: float
    digits: int
    higher_is_better: bool


METRIC_STYLES = {
    "miou": MetricStyle("mIoU", "points", 100, 2, True),
    "auc": MetricStyle("AUC", "points", 100, 2, True),
    "noc": MetricStyle("NoC", "clicks", 1, 2, False),
    **{
        name: MetricStyle(
            score.title, score.unit, score.scale, 2 if score.unit else 4, score.higher_is_better
        )
        for name, score in COMPARED.items()
    },
    "failures": MetricStyle("failures", "points", 100, 2, False),
}
"""Scores by the first part of a metric's name, such as `miou` of `miou@5`."""


def style_of(metric: str) -> MetricStyle:
    """Return how a metric such as `miou@5` is written."""
    return METRIC_STYLES[metric.partition("@")[0]]


def title_of(metric: str) -> str:
    """Return the name of a metric in words, such as `mIoU@5`."""
    _, at, number = metric.partition("@")
    return f"{style_of(metric).title}{at}{number}"


def object_scores(
    scores: Scores, first: int, percents: Sequence[int] = PERCENTS
) -> dict[str, Floats]:
    """Return the score of each object by metric.

    `miou@k` is the IoU after k clicks, `auc` the normalised area under its curve and `noc@q`
    the number of clicks to an IoU of q percent; the scores of `COMPARED` are of the answer to the
    last click. All are means over trials. `failures@q` is 1 where more than half of the trials
    never reached the IoU, else 0.

    Args:
        scores: Of one result on one data set.
        first: Smallest number of clicks after which there is a result.
        percents: IoUs to reach, in percent.

    Returns:
        Arrays of shape `(objects,)`; NaN where an object has no such score. There is neither
        `auc` nor `noc@q` where the curve is a single point.
    """
    ious = scores.ious
    last = ious.shape[2] - 1
    of_trials = {f"miou@{k}": ious[:, :, k] for k in REPORTED_CLICKS if first <= k <= last}
    if last > first:
        of_trials["auc"] = area_under_curve(ious, first)
        of_trials |= {f"noc@{q}": noc(ious, q / 100).astype(np.float64) for q in percents}
    of_trials |= {name: scores.values[name][:, :, last] for name in COMPARED}
    means = {name: values.mean(axis=1) for name, values in of_trials.items()}
    for q in percents:
        never = (ious < q / 100).all(axis=2)
        means[f"failures@{q}"] = (never.mean(axis=1) > 0.5).astype(np.float64)
    return means
