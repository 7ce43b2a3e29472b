"""What `paper_factors.py` has written: gains of key adaptation by factor, distribution, seed."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from paper_claims import POWER
from scipy.special import stdtr, stdtrit

from probseg.paths import replacing
from probseg.reports.comparison import LEVEL
from probseg.reports.tables import ScoreTable, as_markdown

Floats = npt.NDArray[np.float64]

NAMES: Mapping[str, str] = {"paper_factors": "24", "paper_factors_lite2": "31"}
"""Of the plans, which differ by the trunk alone, and of their entries in the lab notebook."""

FACTORS = ("normalised", "projections", "path")
MEASURES = ("first_mask", "adapted", "offset", "moved", "spread")
COLUMNS = ("seed", *FACTORS, "shift", "steps", *MEASURES)

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
        """Return mean and interval."""
        return f"{self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def read(path: Path) -> list[dict[str, float | str]]:
    """Read the lines of a file of results; there are none without the file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: text if name == "shift" else float(text) for name, text in line.items()}
            for line in csv.DictReader(file)
        ]


def table(lines: list[dict[str, float | str]]) -> Floats:
    """Return the measures of the seeds that have all lines.

    Returns:
        Shape `(seeds, 2, 2, 2, shifts, measures)`: factors with their levels in the order of
        `LEVELS`, `SHIFTS`, `MEASURES`.
    """
    found = {
        tuple(line[of] for of in ("seed", *FACTORS, "shift")): [line[of] for of in MEASURES]
        for line in lines
    }
    cells = [*itertools.product(*LEVELS.values(), SHIFTS)]
    whole = [
        [found[seed, *cell] for cell in cells]
        for seed in sorted({key[0] for key in found})
        if all((seed, *cell) in found for cell in cells)
    ]
    shape = (len(whole), 2, 2, 2, len(SHIFTS), len(MEASURES))
    return np.array(whole, dtype=np.float64).reshape(shape)


def gains(measures: Floats) -> Floats:
    """Return the gains of key adaptation: `table` without its last axis, in points."""
    return np.asarray(measures[..., MEASURES.index("adapted")] - measures[..., 0])


def effect(of: Floats, factor: str) -> Floats:
    """Return the effect of a factor, a mean over the other two.

    Args:
        of: Shape `(seeds, 2, 2, 2, shifts)`.
        factor: Of `FACTORS`.

    Returns:
        Shape `(seeds, shifts)`.
    """
    first, second = np.moveaxis(of, 1 + FACTORS.index(factor), 0)
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
    measures = {name: table(read(folder / f"{name}.csv")) for name in NAMES}
    return [_report(folder, name, of) for name, of in measures.items() if len(of) > 1]


def _report(folder: Path, name: str, measures: Floats) -> str:
    seeds = len(measures)
    registered = estimate(effect(gains(measures), "normalised")[:, SHIFTS.index("own")])
    told = (
        f"Gain of key adaptation, {EFFECTS['normalised']}, own distribution: {registered} points, "
        f"{seeds} seeds. {_verdict(registered, seeds)}"
    )
    about = ABOUT.format(name=name, entry=NAMES[name], seeds=SEEDS)
    lines = ["# When adapted keys help", "", about, "", told, ""]
    for title, rows in _tables(measures):
        lines += [f"## {title}", "", *as_markdown(rows), ""]
    with replacing(folder / f"{name}.md") as draft:
        draft.write_text("\n".join(lines), encoding="utf-8")
    return told


def _verdict(found: Estimate, seeds: int) -> str:
    if seeds < SEEDS:
        return f"Incomplete: {SEEDS - seeds} of {SEEDS} seeds are missing, so it is not tested."
    shown = "different from 0" if found.p <= 1 - LEVEL else "not shown to differ from 0"
    return f"Detectable: {found.detectable:.2f}. p = {found.p:.2g}: {shown}."


def _tables(measures: Floats) -> Iterator[tuple[str, ScoreTable]]:
    gained = gains(measures)
    rows = [
        [name, *(str(estimate(effect(gained, factor)[:, n])) for n in range(len(SHIFTS)))]
        for factor, name in EFFECTS.items()
    ]
    yield "Effects on the gain", ScoreTable("", "", ["effect", *SHIFTS], rows)

    over_cells = gained.mean(axis=(1, 2, 3))
    rows = [["all networks", *map(str, map(estimate, over_cells.T))]]
    away = map(estimate, (over_cells - over_cells[:, :1]).T[1:])
    rows.append(["minus own distribution", "", *map(str, away)])
    yield "Gains by distribution", ScoreTable("", "", ["gain", *SHIFTS], rows)

    rows = [
        [name, *(str(estimate(of[:, n])) for n in range(len(SHIFTS)))]
        for name, of in _cells(gained)
    ]
    yield "Gains of each network", ScoreTable("", "", ["network", *SHIFTS], rows)

    own = measures[..., SHIFTS.index("own"), :]
    header = ["network", "first mask", "adapted", "offset", "moved", "spread"]
    rows = [[name, *(f"{mean:.2f}" for mean in of.mean(axis=0))] for name, of in _cells(own)]
    yield "First masks and keys, own distribution", ScoreTable("", "", header, rows)


def _cells(of: Floats) -> Iterator[tuple[str, Floats]]:
    """Yield each network's name and its part of `(seeds, 2, 2, 2, ...)`."""
    for levels in itertools.product(range(2), repeat=3):
        normalised, projections, path = (
            LEVELS[factor][level] for factor, level in zip(FACTORS, levels, strict=True)
        )
        words = ["normalised" if normalised else "plain"]
        words += ["one projection" if projections == 1 else "two projections"]
        words += ["path"] if path else []
        yield ", ".join(words), of[:, *levels]
