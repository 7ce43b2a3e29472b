"""Gains of key adaptation by factor, distribution and seed, and the registered test.

The lines in `benchmarks/results` are of commit 1ede450, whose `benchmarks/paper_factors.py`
evaluated the networks of `paper_factors.yaml` and `paper_factors_lite2.yaml`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import stdtr, stdtrit

from benchmarks.paper.claims import POWER
from benchmarks.paper.report import table
from benchmarks.paper.results import Floats, read_columns
from probseg.paths import write_text
from probseg.reports.comparison import LEVEL

NAMES: Mapping[str, str] = {"paper_factors": "24", "paper_factors_lite2": "31"}
"""Of the plans, which differ by the trunk alone, and of their entries in the lab notebook."""

MEASURES = ("first_mask", "adapted", "offset", "moved", "spread")
LEVELS: Mapping[str, tuple[int, int]] = {
    "normalised": (0, 1),
    "projections": (2, 1),
    "path": (0, 1),
}
"""Of each factor, first the one that the networks of `paper_frozen.yaml` have."""

SHIFTS = ("own", "colours", "blur", "camvid")
"""Distributions of the evaluation: other photographs of the training's kind, and shifted ones."""

SEEDS = 10
"""Of the registered test."""

EFFECTS = {
    "normalised": "normalised minus not",
    "projections": "one projection minus two",
    "path": "path around the stage minus none",
}

ABOUT = """\
Gains of key adaptation after training (one iteration, prior 0) on the first mask, in points of mean
IoU, of the networks of `{name}.yaml`: means over training seeds with 95 % intervals
(Student's t over seeds; photographs are fixed). Entry {entry} of the lab notebook has the design.
The effect of a factor is a mean over the other two. One contrast is registered: normalised minus
not, on the training's own distribution, tested once there are {seeds} seeds. All other numbers are
estimates without a test. Offset: distance of the means of queries and keys over the keys' spread;
moved: length of the keys' move over their length; spread: of the keys after over before."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval; two-sided p of Student's t, and detectable size."""

    mean: float
    low: float
    high: float
    p: float
    detectable: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def read(path: Path) -> Floats:
    """Return the measures of the seeds that have all lines.

    The shape is `(seeds, 2, 2, 2, shifts, measures)`: the levels of the factors in the order of
    `LEVELS`, `SHIFTS`, `MEASURES`.
    """
    there = {
        (int(line["seed"]), *(int(line[of]) for of in LEVELS), line["shift"]): line
        for line in read_columns(path)
    }
    cells = [*itertools.product(*LEVELS.values(), SHIFTS)]
    seeds = sorted({key[0] for key in there if all((key[0], *cell) in there for cell in cells)})
    whole = [[float(there[seed, *of][m]) for of in cells for m in MEASURES] for seed in seeds]
    return np.array(whole).reshape(len(whole), 2, 2, 2, len(SHIFTS), len(MEASURES))


def gains(measures: Floats) -> Floats:
    """Return the gains of key adaptation in points, shape `(seeds, 2, 2, 2, shifts)`."""
    return np.asarray(measures[..., MEASURES.index("adapted")] - measures[..., 0])


def effect(of: Floats, factor: str) -> Floats:
    """Return the effect of a factor, a mean over the other two, shape `(seeds, shifts)`."""
    first, second = np.moveaxis(of, 1 + [*LEVELS].index(factor), 0)
    return np.asarray((second - first).mean(axis=(1, 2)))


def estimate(of_seeds: Floats) -> Estimate:
    """Return the mean over at least two seeds, with Student's t for the seeds."""
    freedom = len(of_seeds) - 1
    mean = float(of_seeds.mean())
    error = float(of_seeds.std(ddof=1)) / math.sqrt(len(of_seeds))
    half, power = error * stdtrit(freedom, [(1 + LEVEL) / 2, POWER])
    p = 2 * float(stdtr(freedom, -abs(mean) / error)) if error > 0 else float(mean == 0)
    return Estimate(mean, mean - half, mean + half, p, half + power)


def report(folder: Path) -> list[str]:
    """Write the reports of plans with two complete seeds; return what they say in short."""
    measures = {name: read(folder / f"{name}.csv") for name in NAMES}
    return [_report(folder, name, of) for name, of in measures.items() if len(of) > 1]


def _report(folder: Path, name: str, measures: Floats) -> str:
    seeds = len(measures)
    registered = estimate(effect(gains(measures), "normalised")[:, SHIFTS.index("own")])
    verdict = f"Incomplete: {SEEDS - seeds} of {SEEDS} seeds are missing, so it is not tested."
    if seeds >= SEEDS:
        shown = "different from 0" if registered.p <= 1 - LEVEL else "not shown to differ from 0"
        verdict = f"Detectable: {registered.detectable:.2f}. p = {registered.p:.2g}: {shown}."
    told = (
        f"Gain of key adaptation, {EFFECTS['normalised']}, own distribution: {registered} points, "
        f"{seeds} seeds. {verdict}"
    )
    about = ABOUT.format(name=name, entry=NAMES[name], seeds=SEEDS)
    lines = ["# When adapted keys help", "", about, "", told, ""]
    for title, header, rows in _tables(measures):
        lines += [f"## {title}", "", *table(header, rows), ""]
    write_text(folder / f"{name}.md", "\n".join(lines))
    return told


def _tables(measures: Floats) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    def by_shift(of: Floats) -> list[str]:
        return [str(estimate(of_shift)) for of_shift in of.T]

    gained = gains(measures)
    rows = [[words, *by_shift(effect(gained, factor))] for factor, words in EFFECTS.items()]
    yield "Effects on the gain", ["effect", *SHIFTS], rows

    over_cells = gained.mean(axis=(1, 2, 3))
    rows = [["all networks", *by_shift(over_cells)]]
    rows.append(["minus own distribution", "", *by_shift((over_cells - over_cells[:, :1])[:, 1:])])
    yield "Gains by distribution", ["gain", *SHIFTS], rows

    rows = [[name, *by_shift(of)] for name, of in _cells(gained)]
    yield "Gains of each network", ["network", *SHIFTS], rows

    own = measures[..., SHIFTS.index("own"), :]
    header = ["network", "first mask", "adapted", "offset", "moved", "spread"]
    rows = [[name, *(f"{mean:.2f}" for mean in of.mean(axis=0))] for name, of in _cells(own)]
    yield "First masks and keys, own distribution", header, rows


def _cells(of: Floats) -> Iterator[tuple[str, Floats]]:
    """Yield each network's name and its part of `(seeds, 2, 2, 2, ...)`."""
    for levels in itertools.product(range(2), repeat=3):
        words = [("plain", "normalised")[levels[0]]]
        words += [("two projections", "one projection")[levels[1]]]
        words += ["path"] if levels[2] else []
        yield ", ".join(words), of[:, *levels]
