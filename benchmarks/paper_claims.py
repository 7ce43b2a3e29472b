"""Paired tests of the claims about the rows, object by object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from paper_rows import Claim, Figure, Plan
from paper_scores import Result

from probseg.errors import DataError
from probseg.metrics import clustered_bootstrap
from probseg.metrics.comparison import DECIMALS, holm, signed_rank
from probseg.reports.comparison import LEVEL, SIGNIFICANT

Floats = npt.NDArray[np.float64]

DRAWS = 10_000
"""Resamples of the bootstrap."""

HOLDS, NOT_SHOWN, CONTRADICTED = "holds", "not shown", "contradicted"


@dataclass(frozen=True, eq=False)
class Scored:
    """A row on a data set, all its networks together.

    Args:
        objects: Names of the objects.
        photos: Photograph of each.
        ious: After 0 ... K clicks, float64, shape ``(seeds, objects, trials, K + 1)``.
    """

    objects: tuple[str, ...]
    photos: tuple[str, ...]
    ious: Floats

    @property
    def of_objects(self) -> Floats:
        """Mean over trials, then over seeds, shape ``(objects, K + 1)``."""
        return np.asarray(self.ious.mean(axis=2).mean(axis=0))


@dataclass(frozen=True)
class Finding:
    """One claim on one data set after one number of clicks; mean IoUs are in percent.

    Args:
        figure: Name of the figure that it belongs to.
        claim: In words.
        dataset: Name of the data set.
        clicks: Number of corrective clicks.
        better: Row that should have the higher mean IoU.
        than: The other row.
        better_miou: Mean IoU of the one.
        than_miou: Mean IoU of the other.
        difference: Of the two, in points.
        low: Lower end of its 95 % interval (bootstrap over photographs); None for a single one.
        high: Upper end.
        effect_size: Mean over standard deviation of the photographs' mean differences (Cohen's
            d_z); None where all are equal, or there is one.
        ahead: Objects on which the claim's row is better.
        level: Objects on which both are equal.
        behind: Objects on which it is worse.
        objects: Number of objects.
        photos: Number of photographs.
        p: Of Wilcoxon's signed-rank test of the photographs' mean differences, two-sided.
        corrected_p: The same after Holm's correction over the figure.
        direction: 1 where ranks and mean speak for the claim, -1 where both speak against it, else
            0.
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
    effect_size: float | None
    ahead: int
    level: int
    behind: int
    objects: int
    photos: int
    p: float
    corrected_p: float
    direction: int

    @property
    def verdict(self) -> str:
        """What can be concluded, at a corrected p-value of 0.05."""
        if self.corrected_p > SIGNIFICANT or self.direction == 0:
            return NOT_SHOWN
        return HOLDS if self.direction > 0 else CONTRADICTED

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


def score(plan: Plan, results: Sequence[Result]) -> dict[str, dict[str, Scored]]:
    """Put the networks of each row together.

    Returns:
        By data set, then by row.

    Raises:
        DataError: If two results of a data set are of different objects or numbers of trials.
    """
    scored: dict[str, dict[str, Scored]] = {}
    for dataset in plan.datasets:
        of_set = [result for result in results if result.dataset == dataset]
        for result in of_set[1:]:
            first = of_set[0]
            if (result.objects, result.ious.shape) != (first.objects, first.ious.shape):
                msg = (
                    f"{dataset}: {result.row} has {len(result.objects)} objects in shape "
                    f"{result.ious.shape}, {first.row} has {len(first.objects)} in "
                    f"{first.ious.shape}, or others; evaluate both again on the same objects"
                )
                raise DataError(msg)
        for name in plan.rows:
            mine = [result for result in of_set if result.row == name]
            if mine:
                ious = np.stack([result.ious for result in mine])
                entry = Scored(mine[0].objects, mine[0].photos, ious)
                scored.setdefault(dataset, {})[name] = entry
    return scored


def examine(figure: Figure, scored: Mapping[str, Mapping[str, Scored]]) -> list[Finding]:
    """Test the claims of a figure whose rows are there, and correct the p-values together."""
    findings = [
        _test(figure.name, claim, dataset, k, rows[claim.better], rows[claim.than])
        for claim in figure.claims
        for dataset, rows in scored.items()
        if claim.better in rows and claim.than in rows
        for k in claim.clicks
    ]
    corrected = holm([finding.p for finding in findings])
    return [replace(of, corrected_p=p) for of, p in zip(findings, corrected, strict=True)]


def _test(figure: str, claim: Claim, dataset: str, k: int, better: Scored, than: Scored) -> Finding:
    """Test one claim; the p-value is not corrected yet."""
    scores = [100 * row.of_objects[:, k] for row in (better, than)]
    gains = np.round(scores[0] - scores[1], DECIMALS)
    photos = np.unique(better.photos, return_inverse=True)[1]
    means = np.bincount(photos, gains) / np.bincount(photos)
    low = high = effect = None
    if len(means) > 1:
        bounds = clustered_bootstrap(gains, better.photos, draws=DRAWS, level=LEVEL)
        low, high = float(bounds.low), float(bounds.high)
        spread = float(means.std(ddof=1))
        effect = float(means.mean()) / spread if spread > 0 else None
    ranked = signed_rank(gains, better.photos)
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
        low=low,
        high=high,
        effect_size=effect,
        ahead=int((gains > 0).sum()),
        level=int((gains == 0).sum()),
        behind=int((gains < 0).sum()),
        objects=len(gains),
        photos=len(means),
        p=ranked.p,
        corrected_p=ranked.p,
        direction=ranked.direction if ranked.direction * gains.mean() > 0 else 0,
    )
