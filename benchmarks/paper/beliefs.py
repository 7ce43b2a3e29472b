"""Tests and figure of evidence and entropy of the mixture; the claims were written before.

The measurements in `benchmarks/results`, of the networks of `paper_frozen.yaml`, are of commit
1ede450, whose `benchmarks/paper_beliefs.py` made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from scipy.stats import rankdata

from benchmarks.paper.claims import Outcome, by_seeds, verdict
from benchmarks.paper.report import table
from benchmarks.paper.results import Floats, read_columns, write_csv
from probseg.metrics.comparison import holm
from probseg.paths import write_text
from probseg.reports.figures import LINES

BELIEFS, EVIDENCE = "{}_beliefs.csv.gz", "{}_evidence.csv.gz"

AREAS = ("posterior", "output", "both")
MEASURES = ("entropy", "output_entropy", "evidence", "iou", "ece", "brier")
MEASURES += tuple(f"auroc_{of}" for of in AREAS)
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
KEYS = [("prob_ka1", "prob"), ("prob_full_ka1", "prob_full"), ("trained_ka1", "trained_off")]
KEYS += [("csa_ka1", "csa")]
VALUES = [("csa_bp5", "csa_bp5_off"), ("both_bp5", "both_off")]
GAINS = [*KEYS, ("prob_fine_ka1", "prob_fine")]
GAINS += [(f"{of}_fit_ka1", f"{of}_fit_off") for of in ("prob", "prob_full", "csa")]
"""Pairs of settings that claims compare: with and without an adaptation."""

HOW_TO_READ = """\
Networks of `{plan}.yaml`, three seeds each; `paper_beliefs.py` measures. Gain: difference of the
two values, positive where it speaks for the claim. A claim holds where the gain is above 0 and p,
corrected after Holm within its section, is at most 0.05. Photographs and seeds are crossed random
effects, as in `{plan}.md`; areas under the curve and rank correlations enter by the jackknife's
pseudo-values of the photographs. "Detectable" is the gain that a test shows with a power of 80 %,
before the correction."""

COLUMNS = ["claim", "setting", "value", "against", "gain", "95 % interval", "detectable", "p"]
COLUMNS += ["corrected p", "verdict"]


@dataclass(frozen=True)
class Test:
    """A claim about a network or setting, with what was measured and what it is compared with."""

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
        # Equal values have no direction, and p = 1.
        return verdict(self.corrected_p, self.outcome.direction)

    @property
    def cells(self) -> list[str]:
        low, high = self.outcome.interval
        numbers = [f"{self.value:.3f}", f"{self.against:.3f}", f"{self.gain:+.3f}"]
        numbers += [f"{low:+.3f} to {high:+.3f}", f"{self.outcome.detectable:.3f}"]
        numbers += [f"{self.outcome.p:.2g}", f"{self.corrected_p:.2g}"]
        return [self.claim, f"`{self.setting}`", *numbers, self.verdict]


Beliefs = Mapping[str, Mapping[str, Floats]]
"""By setting and measure: mean over each photograph's objects, shape `(seeds, photographs)`."""

Evidence = Mapping[str, Mapping[str, Mapping[str, Floats]]]
"""By network, version and score, shape `(seeds, photographs)`."""


def report(results: Path, plan: str) -> list[Test]:
    """Test all claims about the measurements of a plan, and write page, tests and figure.

    Without measurements in the folder `results`, nothing is done.
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
    lines = [[test.section, *test.cells, test.photos] for test in tests]
    header = ["section", *COLUMNS, "photographs"]
    write_csv(results / f"{plan}_beliefs_claims.csv", [header, *lines])
    _draw(results / f"{plan}_beliefs.png", evidence, beliefs)
    page = "\n".join(_page(plan, tests, evidence, beliefs)) + "\n"
    write_text(results / f"{plan}_beliefs.md", page)
    return tests


def _beliefs(path: Path) -> Beliefs:
    lines = read_columns(path)
    settings = {}
    for setting in dict.fromkeys(line["setting"] for line in lines):
        mine = [line for line in lines if line["setting"] == setting]
        photos = np.unique([line["photo"] for line in mine], return_inverse=True)[1]
        seeds = np.array([int(line["seed"]) for line in mine])
        values = np.array([[float(line[of]) for of in MEASURES] for line in mine])
        means = np.full((seeds.max() + 1, photos.max() + 1, len(MEASURES)), np.nan)
        for seed, photo in np.ndindex(means.shape[:2]):
            means[seed, photo] = values[(seeds == seed) & (photos == photo)].mean(axis=0)
        settings[setting] = {of: means[..., n] for n, of in enumerate(MEASURES)}
    return settings


def _evidence(path: Path) -> Evidence:
    lines = sorted(read_columns(path), key=lambda line: (int(line["seed"]), line["photo"]))
    seeds = 1 + int(lines[-1]["seed"])
    networks: dict[str, dict[str, dict[str, Floats]]] = {}
    for network in dict.fromkeys(line["network"] for line in read_columns(path)):
        for version in ("photograph", *VERSIONS):
            mine = [of for of in lines if (of["network"], of["version"]) == (network, version)]
            scores = {of: np.array([float(line[of]) for line in mine]) for of in SCORES}
            reshaped = {of: values.reshape(seeds, -1) for of, values in scores.items()}
            networks.setdefault(network, {})[version] = reshaped
    return networks


def _areas(versions: Mapping[str, Mapping[str, Floats]], version: str, score: str) -> Floats:
    """Return pseudo-values of the area under the curve of a score for a version."""
    sign = SCORES[score][1]
    usual, other = (sign * versions[name][score] for name in ("photograph", version))
    return np.stack([pairs_area(*pair) for pair in zip(usual, other, strict=True)])


def pairs_area(usual: Floats, other: Floats) -> Floats:
    """Return pseudo-values of the area under the curve, each without one pair, shape `(n,)`."""
    n = len(usual)
    above = (other > usual[:, None]) + 0.5 * (other == usual[:, None])  # (n, n)
    without = above.sum() - above.sum(axis=0) - above.sum(axis=1) + above.diagonal()
    return np.asarray(n * above.mean() - (n - 1) * without / (n - 1) ** 2)


def correlations(measure: Floats, iou: Floats) -> Floats:
    """Return pseudo-values of the rank correlation with the error, `(seeds, photographs)`."""

    def correlation(*columns: Floats) -> float:
        return float(np.corrcoef(*map(rankdata, columns))[0, 1])

    pseudo = np.empty_like(measure)
    for seed, pair in enumerate(zip(measure, -iou, strict=True)):
        whole, n = correlation(*pair), len(pair[0])
        for photo in range(n):
            rest = correlation(*(np.delete(column, photo) for column in pair))
            pseudo[seed, photo] = n * whole - (n - 1) * rest
    return pseudo


def _of_evidence(evidence: Evidence) -> Iterator[Test]:
    section = "Log evidence in and out of distribution"
    for version, words in VERSIONS.items():
        areas, surest = (_areas(evidence["prob"], version, of) for of in ("evidence", "surest"))
        lower = f"It is lower than for photographs: {words}."
        yield _test(section, lower, "prob", areas, 0.5 + 0 * areas)
        better = f"It detects them better than the output: {words}."
        yield _test(section, better, "prob", areas, surest)


def _of_errors(beliefs: Beliefs) -> Iterator[Test]:
    section = "Entropy of the posterior and errors of the mask"
    for setting in ERRORS_OF:
        of = beliefs[setting]
        pixels = [of[f"auroc_{name}"] for name in AREAS]
        kept = np.isfinite(pixels).all(axis=(0, 1))  # photographs with an error in every network
        posterior, output, both = (area[:, kept] for area in pixels)
        masks = correlations(of["entropy"], of["iou"])
        outputs = correlations(of["output_entropy"], of["iou"])
        for claim, value, against in (
            ("It detects wrong pixels.", posterior, 0.5 + 0 * posterior),
            ("It detects them better than the output's.", posterior, output),
            ("Both together detect them better than the output's alone.", both, output),
            ("Its mean predicts bad masks (rank correlation).", masks, 0 * masks),
            ("Its mean predicts them better than the output's.", masks, outputs),
        ):
            yield _test(section, claim, setting, value, against)


def _of_adaptation(beliefs: Beliefs) -> Iterator[Test]:
    section = "After adaptation against before"
    lower = {
        "entropy": "The posterior is surer.",
        "output_entropy": "The output is surer.",
        "ece": "The calibration error is lower.",
        "brier": "The Brier score is lower.",
    }
    for pairs, entropy in ((KEYS, "entropy"), (VALUES, "output_entropy")):
        for on, off in pairs:
            for of in (entropy, "ece", "brier"):
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


def _page(plan: str, tests: Sequence[Test], evidence: Evidence, beliefs: Beliefs) -> Iterator[str]:
    about = HOW_TO_READ.format(plan=plan)
    yield from ["# Evidence and entropy of the mixture of Gaussians", "", about, ""]
    yield from [f"![Areas under the curve]({plan}_beliefs.png)", ""]
    for section in dict.fromkeys(test.section for test in tests):
        mine = [test.cells for test in tests if test.section == section]
        yield from [f"## {section}", "", *table(COLUMNS, mine), ""]
    header = ["version", "network", *(words for words, _ in SCORES.values())]
    rows = [
        [words, f"`{network}`", *(f"{_areas(versions, version, of).mean():.2f}" for of in SCORES)]
        for version, words in VERSIONS.items()
        for network, versions in evidence.items()
    ]
    title = "## Detection of other images, areas under the curve"
    yield from [title, "", *table(header, rows), ""]
    rows = [
        [f"`{setting}`", *(f"{np.nanmean(of[name]):.3f}" for name in MEASURES)]
        for setting, of in beliefs.items()
    ]
    yield from ["## All settings, means over photographs and seeds", ""]
    yield from table(["setting", *MEASURES], rows)


def _draw(path: Path, evidence: Evidence, beliefs: Beliefs) -> None:
    """Draw the areas under the curve for other images and for wrong pixels."""
    canvas = Canvas(figsize=(11, 4.2), dpi=150, layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=[3, 2])
    versions = evidence["prob"]
    areas = {
        words: [_areas(versions, of, name) for of in VERSIONS]
        for name, (words, _) in SCORES.items()
        if name != "queries"
    }
    _bars(left, areas, [*VERSIONS.values()], "probabilistic attention: detection of ...")
    errors = {of: [beliefs[setting][f"auroc_{of}"] for setting in ERRORS_OF] for of in AREAS}
    _bars(right, errors, [*ERRORS_OF], "detection of wrong pixels by the entropy of ...")
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
        low, high = np.transpose([by_seeds(group).interval for group in kept])
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
