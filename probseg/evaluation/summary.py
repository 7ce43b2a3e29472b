"""The scores of every click as arrays, and all scores of a data set from them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from probseg.evaluation.protocols import Protocol
from probseg.evaluation.records import ObjectRecord
from probseg.evaluation.scores import SCORES
from probseg.metrics.interaction import (
    area_under_curve,
    checked_ious,
    failures,
    median_noc,
    miou_at,
    noc,
    regressions,
    standard_error,
    survival,
)
from probseg.metrics.statistics import Interval, clustered_bootstrap

Floats = npt.NDArray[np.float64]

PERCENTS = (80, 85, 90, 95)
"""IoU thresholds of numbers of clicks, in percent."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of all runs of one data set, after each number of clicks.

    All arrays are float64, of shape `(objects, trials, K + 1)`, and NaN where there is nothing:
    before the first answer of the model, before the first click, after the last one (`seconds`).

    Args:
        values: An array for each of `probseg.evaluation.scores.SCORES`, by name, in the range of
            the score; `iou` has no NaN.
        seconds: Time of the model's call, at least 0.
        photos: Name of each object's photograph, which several objects may share.
        first: Number of clicks of the first result: 0 where the annotator begins with a box,
            strokes or a mask, 1 where the first click is what starts the prediction.

    Raises:
        ValueError: If a shape or a value is not as above.
    """

    values: Mapping[str, Floats]
    seconds: Floats
    photos: tuple[str, ...]
    first: int

    def __post_init__(self) -> None:
        checked_ious(self.ious)
        last = self.ious.shape[2] - 1
        checks = [
            (len(self.photos) == len(self.ious), "photos", f"{len(self.ious)} photographs"),
            (0 <= self.first <= last, "first", f"a number of clicks in 0 ... {last}"),
        ]
        for name, values in {**self.values, "seconds": self.seconds}.items():
            score = SCORES.get(name)  # seconds are not a score
            lowest, highest = (score.lowest, score.highest) if score else (0, np.inf)
            fits = values.shape == self.ious.shape and bool(
                ((values >= lowest) & (values <= highest) | np.isnan(values)).all()
            )
            words = f"values in [{lowest}, {highest}] of shape {self.ious.shape}, that of iou"
            checks.append((fits, name, words))
        for fine, name, expected in checks:
            if not fine:
                got = self.values.get(name, getattr(self, name, None))
                raise ValueError(f"`{name}` must be {expected}, got {got!r:.200}")

    @property
    def ious(self) -> Floats:
        """IoU over the whole image."""
        return self.values["iou"]

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Whether the model was called (has seconds), shape `(objects, trials, K + 1)`."""
        return np.isfinite(self.seconds)


def scores_of(records: Iterable[ObjectRecord], first: int) -> dict[str, Scores]:
    """Arrange the scores of runs in arrays; of repeated runs the first one counts.

    Args:
        records: All runs of one number of clicks, in any order; none is kept.
        first: Number of clicks of the first result, see `Protocol.first_result`.

    Returns:
        By data set. Objects are sorted by name, trials by number.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    columns: dict[str, array[float]] = {name: array("d") for name in (*SCORES, "seconds")}
    rows: dict[tuple[str, str, int], int] = {}
    photos: dict[tuple[str, str], str] = {}
    for record in records:
        if record.key in rows:
            continue
        rows[record.key] = len(rows)
        photos.setdefault(record.key[:2], record.photo)
        for step in record.steps:
            for name, value in (*step.scores.items(), ("seconds", step.seconds)):
                columns[name].append(math.nan if value is None else value)
    if not rows:
        raise ValueError("`records` must hold at least one, got none; is the data set empty?")
    runs: dict[str, dict[str, dict[int, int]]] = {}
    for dataset, name, trial in sorted(rows):
        runs.setdefault(dataset, {}).setdefault(name, {})[trial] = rows[dataset, name, trial]
    arrays = {}
    for dataset, objects in runs.items():
        trials = sorted({trial for of_object in objects.values() for trial in of_object})
        for name, of_object in objects.items():
            if [*of_object] != trials:
                raise ValueError(
                    f"`records` must hold trials {trials} of every object of {dataset}, got "
                    f"{[*of_object]} of {name}"
                )
        places = np.array([[*of_object.values()] for of_object in objects.values()])
        seconds, *values = (
            np.frombuffer(columns[name]).reshape(len(rows), -1)[places]
            for name in ("seconds", *SCORES)
        )
        arrays[dataset] = Scores(
            values=dict(zip(SCORES, values, strict=True)),
            seconds=seconds,
            photos=tuple(photos[dataset, name] for name in objects),
            first=first,
        )
    return arrays


@dataclass(frozen=True)
class Timing:
    """Seconds that half and 95 % of the calls did not exceed."""

    median: float
    p95: float


@dataclass(frozen=True)
class Summary:
    """All scores of one data set.

    Lists have one entry per number of corrective clicks, `0 ... K`; dictionaries have one per
    IoU to reach, in percent. Standard errors are over objects unless they say otherwise. Intervals
    hold 95 %, see `probseg.metrics.clustered_bootstrap`; they are None for a single photograph,
    and standard errors are for a single object.

    Args:
        n_objects: Number of objects.
        n_photos: Number of photographs.
        n_trials: Runs per object.
        max_clicks: Largest number of corrective clicks, `K`.
        miou: Mean IoU.
        se_objects: Standard error of `miou` over objects; None for a single object.
        se_trials: Standard error of `miou` over trials; None for a single trial.
        ci_low: Lower bounds of the intervals of `miou`.
        ci_high: Upper bounds of the intervals of `miou`.
        scores: The other `probseg.evaluation.scores.SCORES`, by name: the mean over the runs that
            have one; None where none has.
        of_clicks: Those of them that are scores of clicks, by name: the mean over all clicks.
        auc: Mean over the runs of `probseg.metrics.area_under_curve`, from the first result on
            (`Scores.first`).
        auc_se: Standard error of `auc`.
        auc_ci: Interval of `auc`.
        noc: Mean number of clicks to reach an IoU; failures count as `K`.
        noc_se: Standard error of `noc`.
        noc_ci: Interval of `noc`.
        noc_median: See `probseg.metrics.median_noc`; None where more than half of the runs fail.
        failures_at_cap: Runs at the largest number of clicks or beyond, a success exactly at the
            last click included, as RITM counts.
        failures_never: Runs that never reached the IoU.
        survival: Share of the runs that have not reached the IoU yet, by number of clicks.
        regressions: Share of the given clicks after which the IoU is lower, of those after the
            first result; None where there is none.
        regression_size: Mean loss of IoU in those; None where there is none.
        first_seconds: Times of the runs' first calls, which encode the image; None if unknown.
        next_seconds: Times of all later calls; None where there is none.
    """

    n_objects: int
    n_photos: int
    n_trials: int
    max_clicks: int
    miou: list[float]
    se_objects: list[float] | None
    se_trials: list[float] | None
    ci_low: list[float] | None
    ci_high: list[float] | None
    scores: dict[str, list[float | None]]
    of_clicks: dict[str, float | None]
    auc: float
    auc_se: float | None
    auc_ci: Interval | None
    noc: dict[int, float]
    noc_se: dict[int, float | None]
    noc_ci: dict[int, Interval | None]
    noc_median: dict[int, int | None]
    failures_at_cap: dict[int, int]
    failures_never: dict[int, int]
    survival: dict[int, list[float]]
    regressions: float | None
    regression_size: float | None
    first_seconds: Timing | None
    next_seconds: Timing | None

    def interval(self, k: int) -> Interval | None:
        """Return the interval of `miou` after k clicks."""
        if self.ci_low is None or self.ci_high is None:
            return None
        return Interval(self.ci_low[k], self.ci_high[k])

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)


def percents_up_to(target_iou: float | None) -> tuple[int, ...]:
    """Return the reportable IoU thresholds in percent, a part of `PERCENTS`.

    Args:
        target_iou: The IoU at which a run ends, in (0, 1]: what it would have reached is not known.
            None where runs get all their clicks.
    """
    return tuple(q for q in PERCENTS if target_iou is None or q / 100 <= target_iou)


def summarise(scores: Scores, percents: Sequence[int] = PERCENTS) -> Summary:
    """Compute all scores of one data set.

    Args:
        scores: Those of every click.
        percents: IoUs to reach, in percent; not above the one at which runs end, see
            `percents_up_to`.

    Raises:
        ValueError: If a percentage is not in `1 ... 100`.
    """
    ious = scores.ious
    n_objects, n_trials, entries = ious.shape
    n_photos = len(set(scores.photos))
    auc = area_under_curve(ious, scores.first).mean(axis=1)  # (objects,)
    # NoC: clicks to reach each IoU, as the mean over trials, (objects,).
    clicks = {percent: noc(ious, percent / 100).mean(axis=1) for percent in percents}
    # One bootstrap for mIoU@k, AUC and NoC, so that all see the same photographs.
    per_object = np.column_stack([ious.mean(axis=1), auc, *clicks.values()])
    errors: list[float | None] = [None] * per_object.shape[1]
    if n_objects > 1:
        errors = standard_error(per_object).tolist()
    intervals: list[Interval | None] = [None] * per_object.shape[1]
    ci_low = ci_high = None
    if n_photos > 1:
        low, high = (bound.tolist() for bound in clustered_bootstrap(per_object, scores.photos))
        intervals = [Interval(*pair) for pair in zip(low, high, strict=True)]
        ci_low, ci_high = low[:entries], high[:entries]
    failed = {percent: failures(ious, percent / 100) for percent in percents}
    corrections = scores.answered.copy()
    corrections[:, :, : scores.first + 1] = False  # no answer precedes the first result
    harm = regressions(ious, corrections)
    others = [name for name in scores.values if name != "iou"]
    answered = scores.answered
    follows = np.roll(np.logical_or.accumulate(answered, axis=2), 1, axis=2)  # an earlier answer
    follows[:, :, 0] = False
    return Summary(
        n_objects=n_objects,
        n_photos=n_photos,
        n_trials=n_trials,
        max_clicks=entries - 1,
        miou=miou_at(ious).tolist(),
        se_objects=standard_error(ious.mean(axis=1)).tolist() if n_objects > 1 else None,
        se_trials=standard_error(ious.mean(axis=0)).tolist() if n_trials > 1 else None,
        ci_low=ci_low,
        ci_high=ci_high,
        scores={
            name: [_mean(scores.values[name][:, :, k]) for k in range(entries)] for name in others
        },
        of_clicks={name: _mean(scores.values[name]) for name in others if SCORES[name].of_click},
        auc=float(auc.mean()),
        auc_se=errors[entries],
        auc_ci=intervals[entries],
        noc={percent: float(values.mean()) for percent, values in clicks.items()},
        noc_se=dict(zip(percents, errors[entries + 1 :], strict=True)),
        noc_ci=dict(zip(percents, intervals[entries + 1 :], strict=True)),
        noc_median={percent: median_noc(ious, percent / 100) for percent in percents},
        failures_at_cap={percent: count.at_cap for percent, count in failed.items()},
        failures_never={percent: count.never for percent, count in failed.items()},
        survival={percent: survival(ious, percent / 100).tolist() for percent in percents},
        regressions=harm.share,
        regression_size=harm.size,
        first_seconds=_timing(scores.seconds[answered & ~follows]),
        next_seconds=_timing(scores.seconds[answered & follows]),
    )


def summarise_records(records: Sequence[ObjectRecord], protocol: Protocol) -> dict[str, Summary]:
    """Return the scores by data set; repeated runs count once.

    Args:
        records: All runs, in any order.
        protocol: Their protocol. IoUs above its target, at which runs end, are left out.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    return summaries_of(scores_of(records, protocol.first_result), protocol)


def summaries_of(scores: Mapping[str, Scores], protocol: Protocol) -> dict[str, Summary]:
    """Summarise the scores of each data set; IoUs above that at which runs end are left out."""
    percents = percents_up_to(protocol.target_iou)
    return {name: summarise(of_set, percents) for name, of_set in scores.items()}


def _mean(values: Floats) -> float | None:
    """Return the mean of the values that are not NaN; None without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _timing(seconds: Floats) -> Timing | None:
    if not seconds.size:
        return None
    return Timing(*(float(value) for value in np.quantile(seconds, (0.5, 0.95))))
