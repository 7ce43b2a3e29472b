"""Comparison of several results: metrics, intervals and tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from probseg.errors import DataError, check_name
from probseg.evaluation.scores import SCORES
from probseg.evaluation.summary import PERCENTS, Scores
from probseg.metrics import REPORTED_CLICKS, area_under_curve, clustered_bootstrap, noc
from probseg.metrics.statistics import DECIMALS, holm, mcnemar, signed_rank
from probseg.reports.comparison_inputs import Paired, Result, pair, protocol_differences
from probseg.texts import count

Floats = npt.NDArray[np.float64]

LEVEL = 0.95  # confidence of all intervals
SIGNIFICANT = 0.05  # largest corrected p-value that counts as a difference


# scores that are compared after the last click; IoU has separate metrics
COMPARED = {name: score for name, score in SCORES.items() if score.compared and name != "iou"}


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
    """Return the title of a metric, such as `mIoU@5`."""
    _, at, number = metric.partition("@")
    return f"{style_of(metric).title}{at}{number}"


@dataclass(frozen=True)
class Row:
    """One metric of a result, the other, and of the reference on one data set.

    `direction` is 1 where the other is better by the test and by the means, -1 where the reference
    is, 0 where the two contradict each other or nothing differs.
    """

    dataset: str
    other: str
    metric: str
    reference_mean: float  # over objects
    other_mean: float
    difference: float
    low: float | None  # of the difference's interval; None for a single photograph
    high: float | None
    ahead: int  # objects on which the other is better
    behind: int
    level: int
    test: str  # Wilcoxon or McNemar
    zeros: int | None  # photographs without a difference; None for McNemar's test
    ties: int | None  # photographs that share the size of their difference
    p: float  # two-sided
    corrected_p: float  # by Holm, over all rows
    direction: int

    @property
    def significant(self) -> bool:
        """Whether a difference was shown."""
        return self.corrected_p <= SIGNIFICANT


@dataclass(frozen=True)
class Curves:
    """Mean IoU of R results on one data set after K' numbers of clicks; the first is the reference.

    Bands are lower and upper ends of intervals, NaN for a single photograph. Ranks are means over
    photographs by mean IoU over all clicks; 1 is best.
    """

    dataset: str
    n_objects: int
    n_photos: int
    clicks: tuple[int, ...]
    means: Floats  # (R, K')
    bands: Floats  # (2, R, K')
    differences: Floats  # (R - 1, K')
    difference_bands: Floats  # (2, R - 1, K')
    ranks: tuple[float, ...]

    @property
    def extent(self) -> str:
        """Text on the number of objects, and of photographs where it differs."""
        objects = count(self.n_objects, "object")
        if self.n_photos == self.n_objects:
            return objects
        return f"{objects} in {count(self.n_photos, 'photograph')}"


@dataclass(frozen=True)
class Comparison:
    """Results and their differences from the first one, the reference."""

    results: tuple[Result, ...]
    rows: tuple[Row, ...]  # by data set, other result and metric
    curves: tuple[Curves, ...]  # one per data set
    notes: tuple[str, ...]  # on missing objects, protocols and seeds, in sentences
    draws: int  # bootstrap samples
    seed: int


def compare(
    results: Sequence[Result],
    *,
    metrics: Sequence[str] | None = None,
    common_only: bool = False,
    allow_different_protocols: bool = False,
    draws: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare results with the first one, object by object.

    Each object counts with its mean over trials. Wilcoxon's signed-rank test of the photographs'
    mean differences gives the p-values, for failures McNemar's exact test; Holm's correction is
    over all data sets, metrics and others. Fewer `metrics` are corrected less, so they have to be
    chosen before looking at the numbers. `common_only` leaves out objects that some result lacks.
    """
    if len({result.name for result in results}) < max(2, len(results)):
        raise DataError(
            "`results` must be at least two, with different names, got "
            f"{[result.name for result in results]}"
        )
    differences = protocol_differences(results)
    if differences and not allow_different_protocols:
        lines = "\n".join(f"  {difference}" for difference in differences)
        raise DataError(
            f"the results were made by different protocols:\n{lines}\n"
            "test again under one protocol, or compare them nonetheless with "
            "--allow-different-protocols"
        )
    notes = [f"The protocols differ in {difference}." for difference in differences]
    seeds = [result.metadata.get("seed") for result in results]
    if len(set(seeds)) > 1:
        each = [f"{number} in {of.name}" for number, of in zip(seeds, results, strict=True)]
        notes.append(f"The seeds differ ({', '.join(each)}); boxes and clicks may, where random.")
    weights = results[0].metadata.get("weights_sha256")
    notes += [
        f"{results[0].name} and {result.name} have the same weights."
        for result in results[1:]
        if weights is not None and result.metadata.get("weights_sha256") == weights
    ]
    paired, left_out = pair(results, common_only=common_only)
    notes += left_out
    rows: list[Row] = []
    curves = []
    for data in paired:
        more, missing = _rows(data, results, metrics, draws, seed)
        rows += more
        notes += missing
        curves.append(_curves(data, draws, seed))
    # No p-value of a signed-rank test is below 2 ** (1 - n), that of n gains or losses alone.
    notes += [
        f"{of.dataset} has too few photographs ({of.n_photos}) for {len(rows)} tests: no difference"
        " can become significant. Compare more objects, or fewer metrics."
        for of in curves
        if len(rows) * min(1, 2.0 ** (1 - of.n_photos)) > SIGNIFICANT
    ]
    corrected = holm([row.p for row in rows])
    return Comparison(
        results=tuple(results),
        rows=tuple(
            dataclasses.replace(row, corrected_p=p) for row, p in zip(rows, corrected, strict=True)
        ),
        curves=tuple(curves),
        notes=tuple(notes),
        draws=draws,
        seed=seed,
    )


def object_scores(
    scores: Scores, first: int, percents: Sequence[int] = PERCENTS
) -> dict[str, Floats]:
    """Return the score of each object by metric.

    `miou@k` is the IoU after k clicks, `auc` the normalised area under its curve and `noc@q`
    the number of clicks to an IoU of q percent; the scores of `COMPARED` are of the answer to the
    last click. All are means over trials. `failures@q` is 1 where more than half of the trials
    never reached the IoU, else 0.

    Arrays are of shape `(objects,)`; NaN where an object has no such score. There is neither `auc`
    nor `noc@q` where the curve is a single point.
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


def _rows(
    data: Paired, results: Sequence[Result], metrics: Sequence[str] | None, draws: int, seed: int
) -> tuple[list[Row], list[str]]:
    """Compare the others with the reference; p-values are not corrected yet."""
    scores = [object_scores(of_result, data.first, data.percents) for of_result in data.scores]
    for name in metrics or ():
        check_name("metric", name, scores[0])
    names, notes = [], []
    for name in dict.fromkeys(metrics or scores[0]):
        counts = [int(np.isnan(of_result[name]).sum()) for of_result in scores]
        if any(counts):
            counted = [f"{n} of {r.name}" for n, r in zip(counts, results, strict=True) if n]
            objects = f"objects without it: {', '.join(counted)}"
            notes.append(f"{title_of(name)} on {data.dataset} is left out; {objects}.")
        else:
            names.append(name)
    reference, *others = ([of_result[name] for name in names] for of_result in scores)
    rows = []
    for result, other in zip(results[1:], others, strict=True):
        rows += [
            _row(data, result.name, name, *values)
            for name, *values in zip(names, reference, other, strict=True)
        ]
    if rows and data.n_photos > 1:
        gains = np.stack([np.stack(other) - np.stack(reference) for other in others])
        gains = gains.reshape(len(rows), -1).T  # (objects, rows)
        bounds = clustered_bootstrap(gains, data.photos, draws=draws, seed=seed, level=LEVEL)
        ends = zip(rows, bounds.low.tolist(), bounds.high.tolist(), strict=True)
        rows = [dataclasses.replace(row, low=low, high=high) for row, low, high in ends]
    return rows, notes


def _row(data: Paired, other: str, name: str, reference: Floats, values: Floats) -> Row:
    """Test one metric, without interval and correction."""
    better = 1 if style_of(name).higher_is_better else -1
    gains = better * np.round(values - reference, DECIMALS)
    zeros = ties = None
    if name.startswith("failures"):
        test = "McNemar"
        p = mcnemar(reference == 1, values == 1, data.photos)
        direction = int(np.sign(gains.sum()))
    else:
        test = "Wilcoxon"
        ranked = signed_rank(gains, data.photos)
        p, zeros, ties = ranked.p, ranked.zeros, ranked.ties
        direction = ranked.direction if ranked.direction * gains.mean() > 0 else 0
    return Row(
        dataset=data.dataset,
        other=other,
        metric=name,
        reference_mean=float(reference.mean()),
        other_mean=float(values.mean()),
        difference=float((values - reference).mean()),
        low=None,
        high=None,
        ahead=int((gains > 0).sum()),
        behind=int((gains < 0).sum()),
        level=int((gains == 0).sum()),
        test=test,
        zeros=zeros,
        ties=ties,
        p=p,
        corrected_p=p,
        direction=direction,
    )


def _curves(data: Paired, draws: int, seed: int) -> Curves:
    ious = np.stack([scores.ious.mean(axis=1)[:, data.first :] for scores in data.scores])
    n_results, _, length = ious.shape
    lines = np.concatenate([ious, ious[1:] - ious[:1]]).transpose(1, 0, 2)  # (objects, lines, K')
    bounds = clustered_bootstrap(lines, data.photos, draws=draws, seed=seed, level=LEVEL)
    bands = np.stack(bounds)
    means = lines.mean(axis=0)
    photos = np.unique(np.asarray(data.photos), return_inverse=True)[1]
    heights = [np.bincount(photos, of.mean(axis=1)) / np.bincount(photos) for of in ious]
    ranks = stats.rankdata(-np.round(heights, DECIMALS), axis=0).mean(axis=1)
    return Curves(
        dataset=data.dataset,
        n_objects=len(data.photos),
        n_photos=data.n_photos,
        clicks=tuple(range(data.first, data.first + length)),
        means=means[:n_results],
        bands=bands[:, :n_results],
        differences=means[n_results:],
        difference_bands=bands[:, n_results:],
        ranks=tuple(ranks.tolist()),
    )
