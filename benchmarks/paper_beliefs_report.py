"""Tests and figure of what `paper_beliefs.py` measured; the claims were written before."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from paper_claims import CONTRADICTED, HOLDS, NOT_SHOWN, Floats, Outcome, by_seeds
from scipy.stats import rankdata

from probseg.metrics.statistics import holm
from probseg.paths import replacing
from probseg.reports.comparison import SIGNIFICANT
from probseg.reports.figures import LINES
from probseg.reports.tables import ScoreTable, as_markdown

PRECISIONS, BELIEFS, EVIDENCE = "{}_precisions.csv", "{}_beliefs.csv.gz", "{}_evidence.csv.gz"
"""Names of the measurements of a plan."""

MEASURES = (
    "entropy",
    "output_entropy",
    "evidence",
    "iou",
    "ece",
    "brier",
    "auroc_posterior",
    "auroc_output",
    "auroc_both",
)
"""Of each object: entropy of the posterior relative to that of equal weights and entropy of the
output in bits, means over pixels; log evidence; IoU; calibration error; Brier score; and the areas
under the curve for the detection of wrong pixels by the entropy of the posterior, by that of the
output, and by the sum of the ranks of both."""

SCORES = {
    "evidence": ("log evidence", -1),
    "entropy": ("entropy of the posterior", 1),
    "queries": ("squared norm of the queries", 1),
    "surest": ("largest class probability", -1),
    "norm": ("norm of the trunk's features", -1),
    "distance": ("distance of the trunk's features", 1),
}
"""Of each photograph: name, and the sign that is expected out of the distribution."""

VERSIONS = {
    "inverted": "inverted colours",
    "channels": "other order of channels",
    "noise": "noise",
    "blurred": "blurred",
    "tiles": "tiles in another order",
    "texture": "enlarged texture",
    "driving": "CamVid frames",
}
"""Images out of the distribution."""

ERRORS_OF = ("prob", "prob_full", "csa", "csa_bp5")
KEYS = (
    ("prob_ka1", "prob"),
    ("prob_full_ka1", "prob_full"),
    ("trained_ka1", "trained_off"),
    ("csa_ka1", "csa"),
)
VALUES = (("csa_bp5", "csa_bp5_off"), ("both_bp5", "both_off"))
GAINS = (
    *KEYS,
    ("prob_fine_ka1", "prob_fine"),
    ("prob_fit_ka1", "prob_fit_off"),
    ("prob_full_fit_ka1", "prob_full_fit_off"),
    ("csa_fit_ka1", "csa_fit_off"),
)
"""Pairs of settings that claims compare: with and without an adaptation."""

HOW_TO_READ = """\
Networks of `{plan}.yaml`, three seeds each; `paper_beliefs.py` measures. Gain: difference of the
two values, positive where it speaks for the claim. A claim holds where the gain is above 0 and p,
corrected after Holm within its section, is at most 0.05. Photographs and seeds are crossed random
effects, as in `{plan}.md`; areas under the curve and rank correlations enter by the jackknife's
pseudo-values of the photographs. "Detectable" is the gain that a test shows with a power of 80 %,
before the correction."""


@dataclass(frozen=True)
class Test:
    """A claim with its test.

    Args:
        section: Of claims that are corrected together.
        claim: In words.
        setting: Network or setting that it is about.
        value: What was measured.
        against: What it is compared with.
        gain: Difference of the two, positive where it speaks for the claim.
        photos: Number of photographs.
        outcome: Of the gain.
        corrected_p: After Holm's correction.
    """

    section: str
    claim: str
    setting: str
    value: float
    against: float
    gain: float
    photos: int
    outcome: Outcome
    corrected_p: float = 1.0

    @property
    def verdict(self) -> str:
        """What can be concluded, at a corrected p-value of 0.05."""
        if self.corrected_p > SIGNIFICANT:
            return NOT_SHOWN
        return HOLDS if self.outcome.direction > 0 else CONTRADICTED


def auroc(scores: npt.NDArray[np.floating], positive: npt.NDArray[np.bool_]) -> float:
    """Return the area under the receiver operating characteristic; ties count half.

    Args:
        scores: Higher for positives, if they are any good, shape `(n,)`.
        positive: Which are, shape `(n,)`.

    Returns:
        The area, NaN if all or none are positive.
    """
    positives = int(positive.sum())
    pairs = positives * (len(positive) - positives)
    if pairs == 0:
        return float("nan")
    ranks = rankdata(scores)
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / pairs)


def report(results: Path, plan: str) -> list[Test]:
    """Test all claims about the measurements of a plan, and write table, tests and figure.

    Args:
        results: Folder of the measurements; without them, nothing is done.
        plan: Its name.
    """
    paths = [results / name.format(plan) for name in (BELIEFS, EVIDENCE)]
    if not all(path.is_file() for path in paths):
        return []
    beliefs, evidence = _beliefs(paths[0]), _evidence(paths[1])
    tests: list[Test] = []
    for found in (_of_evidence(evidence), _of_errors(beliefs), _of_adaptation(beliefs)):
        section = [*found]
        corrected = holm([test.outcome.p for test in section])
        tests += [replace(of, corrected_p=p) for of, p in zip(section, corrected, strict=True)]
    _write_tests(results / f"{plan}_beliefs_claims.csv", tests)
    _draw(results / f"{plan}_beliefs.png", evidence, beliefs)
    _write_page(results / f"{plan}_beliefs.md", plan, tests, evidence, beliefs)
    return tests


Beliefs = Mapping[str, Mapping[str, Floats]]
"""By setting and measure: mean over each photograph's objects, shape `(seeds, photographs)`."""

Evidence = Mapping[str, Mapping[str, Mapping[str, Floats]]]
"""By network, version and score, shape `(seeds, photographs)`."""


def _beliefs(path: Path) -> Beliefs:
    lines = _read(path)
    found = {}
    for setting in dict.fromkeys(line["setting"] for line in lines):
        mine = [line for line in lines if line["setting"] == setting]
        photos = np.unique([line["photo"] for line in mine], return_inverse=True)[1]
        seeds = np.array([int(line["seed"]) for line in mine])
        table = np.array([[float(line[of]) for of in MEASURES] for line in mine])
        means = np.full((seeds.max() + 1, photos.max() + 1, len(MEASURES)), np.nan)
        for seed, photo in np.ndindex(means.shape[:2]):
            means[seed, photo] = table[(seeds == seed) & (photos == photo)].mean(axis=0)
        found[setting] = {of: means[..., n] for n, of in enumerate(MEASURES)}
    return found


def _evidence(path: Path) -> Evidence:
    lines = _read(path)
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for line in sorted(lines, key=lambda line: (int(line["seed"]), line["photo"])):
        scores = found.setdefault(line["network"], {}).setdefault(line["version"], {})
        for of in SCORES:
            scores.setdefault(of, []).append(float(line[of]))
    seeds = 1 + max(int(line["seed"]) for line in lines)
    return {
        network: {
            version: {of: np.reshape(values, (seeds, -1)) for of, values in scores.items()}
            for version, scores in versions.items()
        }
        for network, versions in found.items()
    }


def _read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def _areas(versions: Mapping[str, Mapping[str, Floats]], version: str, score: str) -> Floats:
    """Return pseudo-values of the area under the curve of a score for a version."""
    sign = SCORES[score][1]
    usual, other = (sign * versions[name][score] for name in ("photograph", version))
    return np.stack([_pairs_area(*pair) for pair in zip(usual, other, strict=True)])


def _pairs_area(usual: Floats, other: Floats) -> Floats:
    """Return pseudo-values of the area under the curve, each without one pair, shape `(n,)`."""
    n = len(usual)
    above = (other > usual[:, None]) + 0.5 * (other == usual[:, None])  # (n, n)
    without = above.sum() - above.sum(axis=0) - above.sum(axis=1) + above.diagonal()
    return np.asarray(n * above.mean() - (n - 1) * without / (n - 1) ** 2)


def _correlations(measure: Floats, iou: Floats) -> Floats:
    """Return pseudo-values of the rank correlation with the error, `(seeds, photographs)`."""

    def correlation(*columns: Floats) -> float:
        ranks = [rankdata(column) for column in columns]
        return float(np.corrcoef(*ranks)[0, 1])

    found = np.empty_like(measure)
    for seed, pair in enumerate(zip(measure, -iou, strict=True)):
        whole, n = correlation(*pair), len(pair[0])
        for photo in range(n):
            rest = correlation(*(np.delete(column, photo) for column in pair))
            found[seed, photo] = n * whole - (n - 1) * rest
    return found


def _of_evidence(evidence: Evidence) -> Iterator[Test]:
    section = "Log evidence in and out of distribution"
    for version, words in VERSIONS.items():
        areas, surest = (_areas(evidence["prob"], version, of) for of in ("evidence", "surest"))
        yield _test(
            section, f"It is lower than for photographs: {words}.", "prob", areas, 0.5 + 0 * areas
        )
        yield _test(
            section, f"It detects them better than the output: {words}.", "prob", areas, surest
        )


def _of_errors(beliefs: Beliefs) -> Iterator[Test]:
    section = "Entropy of the posterior and errors of the mask"
    for setting in ERRORS_OF:
        of = beliefs[setting]
        pixels = [of[f"auroc_{name}"] for name in ("posterior", "output", "both")]
        kept = np.isfinite(pixels).all(axis=(0, 1))  # photographs with an error in every network
        posterior, output, both = (area[:, kept] for area in pixels)
        tests: list[tuple[str, Floats, Floats]] = [
            ("It detects wrong pixels.", posterior, 0.5 + 0 * posterior),
            ("It detects them better than the output's.", posterior, output),
            ("Both together detect them better than the output's alone.", both, output),
        ]
        of_masks = _correlations(of["entropy"], of["iou"])
        of_outputs = _correlations(of["output_entropy"], of["iou"])
        tests += [
            ("Its mean predicts bad masks (rank correlation).", of_masks, 0 * of_masks),
            ("Its mean predicts them better than the output's.", of_masks, of_outputs),
        ]
        for claim, value, against in tests:
            yield _test(section, claim, setting, value, against)


def _of_adaptation(beliefs: Beliefs) -> Iterator[Test]:
    section = "After adaptation against before"
    lower = {
        "entropy": "The posterior is surer.",
        "output_entropy": "The output is surer.",
        "ece": "The calibration error is lower.",
        "brier": "The Brier score is lower.",
    }
    for pairs, measures in (
        (KEYS, ("entropy", "ece", "brier")),
        (VALUES, ("output_entropy", "ece", "brier")),
    ):
        for on, off in pairs:
            for of in measures:
                yield _test(section, lower[of], on, beliefs[on][of], beliefs[off][of], -1)
    for on, off in KEYS:
        values = beliefs[on]["evidence"], beliefs[off]["evidence"]
        yield _test(section, "The log evidence is higher.", on, *values)
    for on, off in GAINS:
        points = 100 * beliefs[on]["iou"], 100 * beliefs[off]["iou"]
        yield _test(section, "The first mask is better (points of IoU).", on, *points)


def _test(
    section: str, claim: str, setting: str, value: Floats, against: Floats, sign: int = 1
) -> Test:
    gains = np.round(sign * (value - against), 12)
    means = [float(of.mean()) for of in (value, against, gains)]
    return Test(section, claim, setting, *means, value.shape[1], by_seeds(gains))


def _interval(outcome: Outcome) -> tuple[float, float]:
    assert outcome.low is not None, "there are several photographs and seeds"
    assert outcome.high is not None, "there are several photographs and seeds"
    return outcome.low, outcome.high


def _cells(test: Test) -> list[str]:
    outcome = test.outcome
    low, high = _interval(outcome)
    return [
        test.claim,
        f"`{test.setting}`",
        f"{test.value:.3f}",
        f"{test.against:.3f}",
        f"{test.gain:+.3f}",
        f"{low:+.3f} to {high:+.3f}",
        f"{outcome.detectable:.3f}",
        f"{outcome.p:.2g}",
        f"{test.corrected_p:.2g}",
        test.verdict,
    ]


COLUMNS = (
    "claim",
    "setting",
    "value",
    "against",
    "gain",
    "95 % interval",
    "detectable",
    "p",
    "corrected p",
    "verdict",
)


def _write_tests(path: Path, tests: Sequence[Test]) -> None:
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["section", *COLUMNS, "photographs"])
        writer.writerows([test.section, *_cells(test), test.photos] for test in tests)


def _write_page(
    path: Path, plan: str, tests: Sequence[Test], evidence: Evidence, beliefs: Beliefs
) -> None:
    lines = [
        "# Evidence and entropy of the mixture of Gaussians",
        "",
        HOW_TO_READ.format(plan=plan),
        "",
    ]
    lines += [f"![Areas under the curve]({plan}_beliefs.png)", ""]
    for section in dict.fromkeys(test.section for test in tests):
        mine = [test for test in tests if test.section == section]
        table = ScoreTable("", "", COLUMNS, [_cells(test) for test in mine])
        lines += [f"## {section}", "", *as_markdown(table), ""]
    header = ["version", "network", *(words for words, _ in SCORES.values())]
    rows = [
        [VERSIONS[version], f"`{network}`", *(f"{area:.2f}" for area in areas)]
        for version in VERSIONS
        for network, areas in _mean_areas(evidence, version).items()
    ]
    lines += ["## Detection of other images, areas under the curve", ""]
    lines += [*as_markdown(ScoreTable("", "", header, rows)), ""]
    rows = [
        [f"`{setting}`", *(f"{np.nanmean(of[name]):.3f}" for name in MEASURES)]
        for setting, of in beliefs.items()
    ]
    lines += ["## All settings, means over photographs and seeds", ""]
    lines += as_markdown(ScoreTable("", "", ["setting", *MEASURES], rows))
    with replacing(path) as draft:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _mean_areas(evidence: Evidence, version: str) -> Mapping[str, list[float]]:
    return {
        network: [float(_areas(versions, version, score).mean()) for score in SCORES]
        for network, versions in evidence.items()
    }


def _draw(path: Path, evidence: Evidence, beliefs: Beliefs) -> None:
    """Draw the areas under the curve for other images and for wrong pixels."""
    canvas = Canvas(figsize=(11, 4.2), dpi=150, layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=[3, 2])
    versions = evidence["prob"]
    shown = {words: name for name, (words, _) in SCORES.items() if name != "queries"}
    _bars(
        left,
        {words: [_areas(versions, of, name) for of in VERSIONS] for words, name in shown.items()},
        [*VERSIONS.values()],
        "probabilistic attention: detection of ...",
    )
    names = {"posterior": "posterior", "output": "output", "both": "both"}
    _bars(
        right,
        {
            words: [beliefs[of][f"auroc_{name}"] for of in ERRORS_OF]
            for name, words in names.items()
        },
        [*ERRORS_OF],
        "detection of wrong pixels by the entropy of ...",
    )
    left.set_ylabel("area under the curve")
    FigureCanvasAgg(canvas).print_png(path)


def _bars(
    axes: Axes, lines: Mapping[str, Sequence[Floats]], labels: Sequence[str], title: str
) -> None:
    """Draw groups of bars with 95 % intervals over photographs and seeds."""
    width = 0.8 / len(lines)
    for number, (words, groups) in enumerate(lines.items()):
        kept = [group[:, np.isfinite(group).all(axis=0)] for group in groups]
        means = np.array([group.mean() for group in kept])
        low, high = np.transpose([_interval(by_seeds(group)) for group in kept])
        spread = [means - low, high - means]
        places = np.arange(len(groups)) + (number - (len(lines) - 1) / 2) * width
        style = {"color": LINES[number % len(LINES)], "label": words}
        axes.bar(places, means, width, yerr=spread, error_kw={"elinewidth": 0.8}, **style)
    axes.axhline(0.5, color="black", lw=0.8)
    axes.set_xticks(range(len(labels)), labels, rotation=25, ha="right", fontsize=8)
    axes.set_ylim(0, 1.3)  # the legend is above the bars
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7.5, frameon=False, ncols=2)
