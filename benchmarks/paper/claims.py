"""Paired tests of the claims about the rows, object by object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtrit

from benchmarks.paper.plan import Claim, Figure, Plan
from benchmarks.paper.results import Floats, Result
from probseg.errors import DataError
from probseg.metrics import clustered_bootstrap
from probseg.metrics.statistics import DECIMALS, holm, signed_rank
from probseg.reports.comparison import LEVEL, SIGNIFICANT

DRAWS = 10_000  # resamples of the bootstrap
POWER = 0.8  # of the smallest difference that a test could have shown
POOLED = "all photographs"  # of all data sets


@dataclass(frozen=True, eq=False)
class Scored:
    """A row on a data set: IoUs after 0 ... K clicks, shape `(seeds, objects, trials, K + 1)`."""

    objects: tuple[str, ...]
    photos: tuple[str, ...]
    ious: Floats


ScoredRows = Mapping[str, Mapping[str, Scored]]
"""By data set, then by row."""


@dataclass(frozen=True)
class Outcome:
    """A test of differences: p, its direction, the 95 % interval and the detectable difference."""

    p: float
    direction: int
    low: float | None = None
    high: float | None = None
    detectable: float | None = None

    @property
    def interval(self) -> tuple[float, float]:
        assert self.low is not None and self.high is not None, "of several photographs"  # noqa: PT018
        return self.low, self.high


@dataclass(frozen=True)
class Finding:
    """One claim on one data set after one number of clicks; mean IoUs are in percent.

    `effect_size` is Cohen's d_z of the photographs; `ahead`, `level` and `behind` count objects.
    """

    figure: str
    claim: str
    dataset: str
    clicks: int
    better: str
    than: str
    better_miou: float
    than_miou: float
    difference: float
    low: float | None
    high: float | None
    detectable: float | None
    effect_size: float | None
    ahead: int
    level: int
    behind: int
    objects: int
    photos: int
    seeds: int
    p: float
    corrected_p: float
    direction: int

    @property
    def verdict(self) -> str:
        return verdict(self.corrected_p, self.direction)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        interval = "no interval"
        if self.low is not None and self.high is not None:
            interval = f"95 % interval {self.low:+.2f} to {self.high:+.2f}"
        p = "p < 0.001" if self.corrected_p < 0.001 else f"p = {self.corrected_p:.3f}"
        clicks = f"{self.clicks} click{'' if self.clicks == 1 else 's'}"
        return (
            f"{self.verdict.capitalize()} on {self.dataset} after {clicks}: "
            f"{self.difference:+.2f} points ({interval}, {p})."
        )


def verdict(corrected_p: float, direction: int) -> str:
    """Return what a test lets conclude, at a corrected p-value of 0.05."""
    if corrected_p > SIGNIFICANT or direction == 0:
        return "not shown"
    return "holds" if direction > 0 else "contradicted"


def score(plan: Plan, results: Sequence[Result]) -> dict[str, dict[str, Scored]]:
    """Put the networks of each row together; all results of a data set have the same objects."""
    scored: dict[str, dict[str, Scored]] = {}
    for dataset in plan.datasets:
        of_set = [result for result in results if result.dataset == dataset]
        for result in of_set[1:]:
            first = of_set[0]
            if (result.objects, result.ious.shape) != (first.objects, first.ious.shape):
                raise DataError(
                    f"{dataset}: {result.row} and {first.row} were evaluated on other objects"
                )
        for name in plan.rows:
            mine = [result for result in of_set if result.row == name]
            if mine:
                ious = np.stack([result.ious for result in mine])
                of_row = Scored(mine[0].objects, mine[0].photos, ious)
                scored.setdefault(dataset, {})[name] = of_row
    return scored


def examine_all(plan: Plan, scored: ScoredRows) -> list[Finding]:
    """Test all claims: together on the union of the data sets if pooled, else figure by figure."""
    if plan.pooled:
        return examine(plan.figures, {POOLED: union(scored)})
    return [finding for figure in plan.figures for finding in examine([figure], scored)]


def union(scored: ScoredRows) -> dict[str, Scored]:
    """Return the rows that all data sets have, on the objects of all of them."""
    first, *others = scored.values()
    together = {}
    for name in first:
        if all(name in rows for rows in others):
            parts = {dataset: rows[name] for dataset, rows in scored.items()}
            together[name] = Scored(
                tuple(f"{dataset}/{of}" for dataset, part in parts.items() for of in part.objects),
                tuple(photo for part in parts.values() for photo in part.photos),
                np.concatenate([part.ious for part in parts.values()], axis=1),
            )
    return together


def examine(figures: Sequence[Figure], scored: ScoredRows) -> list[Finding]:
    """Test the claims of figures whose rows are there, and correct the p-values together."""
    findings = [
        _test(figure.name, claim, dataset, k, rows[claim.better], rows[claim.than])
        for figure in figures
        for claim in figure.claims
        for dataset, rows in scored.items()
        if claim.better in rows and claim.than in rows
        for k in claim.clicks
    ]
    corrected = holm([finding.p for finding in findings])
    return [replace(of, corrected_p=p) for of, p in zip(findings, corrected, strict=True)]


def _test(figure: str, claim: Claim, dataset: str, k: int, better: Scored, than: Scored) -> Finding:
    """Test one claim; the p-value is not corrected yet."""
    scores = [100 * row.ious.mean(axis=2).mean(axis=0)[:, k] for row in (better, than)]
    gains = np.round(scores[0] - scores[1], DECIMALS)
    photos = np.unique(better.photos, return_inverse=True)[1]
    means = np.bincount(photos, gains) / np.bincount(photos)
    spread = float(means.std(ddof=1)) if len(means) > 1 else 0.0
    seeds = len(better.ious) if len(better.ious) == len(than.ious) else 1
    if seeds > 1 and len(means) > 1:
        pairs = 100 * (better.ious - than.ious)[..., k].mean(axis=2)  # (seeds, objects)
        of_photos = np.stack([np.bincount(photos, pair) for pair in pairs])
        outcome = by_seeds(np.round(of_photos / np.bincount(photos), DECIMALS))
    else:
        outcome = _by_ranks(gains, better.photos)
    return Finding(
        figure=figure,
        claim=claim.text,
        dataset=dataset,
        clicks=k,
        better=claim.better,
        than=claim.than,
        better_miou=float(scores[0].mean()),
        than_miou=float(scores[1].mean()),
        difference=float(gains.mean()),
        effect_size=float(means.mean()) / spread if spread > 0 else None,
        ahead=int((gains > 0).sum()),
        level=int((gains == 0).sum()),
        behind=int((gains < 0).sum()),
        objects=len(gains),
        photos=len(means),
        seeds=seeds,
        corrected_p=outcome.p,
        **vars(outcome),
    )


def _by_ranks(gains: Floats, photos: Sequence[str]) -> Outcome:
    """Test the gains of objects by Wilcoxon's signed ranks of the photographs' means.

    The interval is a bootstrap over photographs. It has a direction where ranks and mean agree.
    """
    ranked = signed_rank(gains, photos)
    direction = ranked.direction if ranked.direction * gains.mean() > 0 else 0
    if len(set(photos)) < 2:
        return Outcome(ranked.p, direction)
    bounds = clustered_bootstrap(gains, photos, draws=DRAWS, level=LEVEL)
    return Outcome(ranked.p, direction, float(bounds.low), float(bounds.high))


def by_seeds(gains: Floats) -> Outcome:
    """Test mean gains `(seeds, photographs)` for other photographs and for other trainings.

    Photographs and seeds are crossed random effects. The variance of the mean is at most `A + B`,
    the mean squares of the seeds and of the photographs over the number of gains, as both contain
    what is left of a gain. Half the interval is `sqrt(A t_A^2 + B t_B^2)`, with the quantiles of
    Student's t for the degrees of freedom of each: the test of Banerjee (1960), whose size is at
    most its level, also in the far tail that a correction for many tests uses. Where one of the two
    is much larger, this is the t-test of the means over the other.
    """
    seeds, photos = gains.shape
    mean = float(gains.mean())
    variances = np.array(
        [gains.mean(axis=1).var(ddof=1) / seeds, gains.mean(axis=0).var(ddof=1) / photos]
    )
    if variances.sum() <= 0:
        return Outcome(1.0 if mean == 0 else 0.0, int(np.sign(mean)), mean, mean, 0.0)

    def half_width(tail: float) -> float:
        """Return half the interval that leaves this share of both tails."""
        quantiles = stdtrit([seeds - 1, photos - 1], tail / 2)
        return math.sqrt(float(variances @ quantiles**2))

    def excess(logarithm: float) -> float:
        return half_width(math.exp(logarithm)) - abs(mean)

    smallest = math.log(1e-100)
    p = math.exp(brentq(excess, smallest, 0.0)) if excess(smallest) > 0 else 0.0
    half, detectable = half_width(1 - LEVEL), half_width(1 - LEVEL) + half_width(2 * (1 - POWER))
    return Outcome(p, int(np.sign(mean)), mean - half, mean + half, detectable)
