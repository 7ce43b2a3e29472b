"""Comparison of several results: metrics, intervals and tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from probseg.errors import DataError, UnknownNameError
from probseg.metrics import clustered_bootstrap
from probseg.metrics.statistics import DECIMALS, holm, mcnemar, signed_rank
from probseg.reports.comparison_inputs import Paired, Result, pair, protocol_differences
from probseg.reports.comparison_scores import object_scores, style_of, title_of

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
"""Confidence of all intervals."""

SIGNIFICANT = 0.05
"""Largest corrected p-value that counts as a difference."""


@dataclass(frozen=True)
class Row:
    """One metric of two results on one data set.

    Args:
        dataset: Name of the data set.
        other: Name of the result that is compared with the reference.
        metric: Name of the metric, such as `miou@5`.
        reference_mean: Mean over objects of the reference; the share of objects for failures.
        other_mean: That of the other.
        difference: `other_mean - reference_mean`.
        low: Lower end of the difference's interval; None for a single photograph.
        high: Upper end.
        ahead: Objects on which the other is better.
        behind: Objects on which it is worse.
        level: Objects on which both have the same score.
        test: `Wilcoxon` or `McNemar`.
        zeros: Photographs whose difference is zero; None for McNemar's test.
        ties: Photographs whose difference is as large as another one's; None for McNemar's test.
        p: Two-sided p-value.
        corrected_p: The same after Holm's correction over all rows.
        direction: 1 where the other is the better one by the test and by the means, -1 where the
            reference is, 0 where the two contradict each other or nothing differs.
    """

    dataset: str
    other: str
    metric: str
    reference_mean: float
    other_mean: float
    difference: float
    low: float | None
    high: float | None
    ahead: int
    behind: int
    level: int
    test: str
    zeros: int | None
    ties: int | None
    p: float
    corrected_p: float
    direction: int

    @property
    def significant(self) -> bool:
        """Whether a difference was shown."""
        return self.corrected_p <= SIGNIFICANT


@dataclass(frozen=True)
class Curves:
    """Mean IoU of all results on one data set; the first one is the reference.

    Args:
        dataset: Name of the data set.
        n_objects: Number of objects.
        n_photos: Number of photographs.
        clicks: Numbers of corrective clicks, length K'.
        means: Shape `(results, K')`.
        bands: Lower and upper ends of the intervals, shape `(2, results, K')`; NaN for a single
            photograph.
        differences: Of the others from the reference, shape `(results - 1, K')`.
        difference_bands: Shape `(2, results - 1, K')`.
        ranks: Mean rank of each result over photographs by mean IoU over all clicks; 1 is best.
    """

    dataset: str
    n_objects: int
    n_photos: int
    clicks: tuple[int, ...]
    means: Floats
    bands: Floats
    differences: Floats
    difference_bands: Floats
    ranks: tuple[float, ...]

    @property
    def extent(self) -> str:
        """Number of objects, and of photographs where it differs, in words."""
        objects = f"{self.n_objects} object{'' if self.n_objects == 1 else 's'}"
        if self.n_photos == self.n_objects:
            return objects
        return f"{objects} in {self.n_photos} photograph{'' if self.n_photos == 1 else 's'}"


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison.

    Args:
        results: The compared results; the first one is the reference.
        rows: By data set, other result and metric.
        curves: One entry per data set.
        notes: Remarks on left-out objects, protocols and seeds, in sentences.
        draws: Number of bootstrap samples.
        seed: Seed of the bootstrap.
    """

    results: tuple[Result, ...]
    rows: tuple[Row, ...]
    curves: tuple[Curves, ...]
    notes: tuple[str, ...]
    draws: int
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
    over all data sets, metrics and others.

    Args:
        results: At least two, with different names.
        metrics: Names such as `miou@5`; all by default. Fewer tests are corrected less, so what
            is of interest has to be chosen before looking at the numbers.
        common_only: Whether to leave out the objects that some result lacks.
        allow_different_protocols: Whether the results may have been made in different ways.
        draws: Number of bootstrap samples.
        seed: Seed of the bootstrap.

    Raises:
        DataError: If there is nothing to compare with, or the results do not fit together.
        UnknownNameError: If there is no such metric.
    """
    if len({result.name for result in results}) < max(2, len(results)):
        msg = (
            "`results` must be at least two, with different names, got "
            f"{[result.name for result in results]}"
        )
        raise DataError(msg)
    differences = protocol_differences(results)
    if differences and not allow_different_protocols:
        lines = "\n".join(f"  {difference}" for difference in differences)
        msg = (
            f"the results were made by different protocols:\n{lines}\n"
            "test again under one protocol, or compare them nonetheless with "
            "--allow-different-protocols"
        )
        raise DataError(msg)
    notes = [f"The protocols differ in {difference}." for difference in differences]
    notes += _metadata_notes(results)
    paired, left_out = pair(results, common_only=common_only)
    notes += left_out
    rows: list[Row] = []
    curves = []
    for data in paired:
        more, missing = _rows(data, results, metrics, draws, seed)
        rows += more
        notes += missing
        curves.append(_curves(data, draws, seed))
    notes += _power_notes(curves, len(rows))
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


def _rows(
    data: Paired,
    results: Sequence[Result],
    metrics: Sequence[str] | None,
    draws: int,
    seed: int,
) -> tuple[list[Row], list[str]]:
    """Compare the others with the reference; p-values are not corrected yet."""
    scores = [object_scores(of_result, data.first, data.percents) for of_result in data.scores]
    for name in metrics or ():
        if name not in scores[0]:
            raise UnknownNameError(kind="metric", name=name, known=scores[0])
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
        p = mcnemar(reference == 1, values == 1, data.photos).p
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


def _metadata_notes(results: Sequence[Result]) -> list[str]:
    notes = []
    seeds = [result.metadata.get("seed") for result in results]
    if len(set(seeds)) > 1:
        each = [f"{seed} in {result.name}" for seed, result in zip(seeds, results, strict=True)]
        notes.append(f"The seeds differ ({', '.join(each)}); boxes and clicks may, where random.")
    weights = [result.metadata.get("weights_sha256") for result in results]
    for result, of_result in zip(results[1:], weights[1:], strict=True):
        if of_result is not None and of_result == weights[0]:
            notes.append(f"{results[0].name} and {result.name} have the same weights.")
    return notes


def _power_notes(curves: Sequence[Curves], n_tests: int) -> list[str]:
    """Return notes on data sets too small to show even a constant difference."""
    return [
        f"{of.dataset} has too few photographs ({of.n_photos}) for {n_tests} tests: no difference "
        "can become significant. Compare more objects, or fewer metrics."
        for of in curves
        if n_tests * min(1, 2.0 ** (1 - of.n_photos)) > SIGNIFICANT
    ]
