"""Tests the claims of `emanet.yaml`, and writes tables and figures of the ablations."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from emanet_counts import Block, Key
from emanet_plan import Claim, Plan, Row
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from paper_claims import Outcome, by_seeds, verdict

from probseg.errors import DataError
from probseg.metrics import standard_error
from probseg.metrics.statistics import DECIMALS, holm
from probseg.paths import replacing
from probseg.reports.figures import LINES
from probseg.reports.tables import ScoreTable, as_markdown

Floats = npt.NDArray[np.float64]

REFERENCES = ("fcn", "ema")
"""Rows that all others are compared with."""

OWN_ITERATIONS = 3
"""EM iterations of a test where a row names no number."""

VALUES = ["difference", "low", "high", "detectable", "p"]

HOW_TO_READ = """\
Test frames of CamVid ({frames} in {blocks} blocks), mIoU in percent, means over {seeds} seeds. All
networks of a seed are trained on the same crops in the same order, with the same dropout, and begin
with the same weights in all parts that they share.

The trainings are short: the recipe `emanet_camvid_cpu` has 30 epochs of the whole network.

Blocks are stretches of about ten consecutive frames, a second apart, of one drive. The mIoU is
divided among the blocks by linearisation: the contribution of a block is the mIoU of all frames
plus the influence of the block's pixels on it. The tests take the differences of contributions,
with blocks and seeds as crossed random effects. p and 95 % intervals are thus about other stretches
of the same two drives and about other trainings; two drives permit no statement about other drives.
"Detectable" is the difference that such a test shows with a power of 80 %, before any correction.
The p-values of the claims are corrected after Holm over all claims of this page; the intervals are
not. A claim holds where the corrected p is at most 0.05 and the mean speaks for it, and is
contradicted where the mean speaks against it. "Not shown" does not mean that
there is no effect."""


@dataclass(frozen=True)
class Difference:
    """Difference of mIoU of two rows of a training, in points, and its test.

    Args:
        training: Name of the training.
        better: Name of the one row.
        than: Name of the other row.
        points: mIoU of the one less that of the other.
        outcome: Of the test.
    """

    training: str
    better: str
    than: str
    points: float
    outcome: Outcome

    @property
    def cells(self) -> list[str]:
        """Difference with its interval, and the detectable difference."""
        of = self.outcome
        return [f"{self.points:+.2f} ({of.low:+.2f} to {of.high:+.2f})", f"{of.detectable:.2f}"]

    @property
    def values(self) -> list[str]:
        """Values of `VALUES` with four digits."""
        of = self.outcome
        return [f"{value:.4g}" for value in (self.points, of.low, of.high, of.detectable, of.p)]


def contributions(counts: Mapping[Key, Block], training: str, row: str) -> Floats:
    """Divide the mIoU of each network among the blocks.

    The mean over the blocks is the mIoU of all frames. A block's part is that mIoU plus the
    derivative by the block's weight, times the number of blocks (the infinitesimal jackknife).

    Returns:
        Percent, float64, shape `(seeds, blocks)`.
    """
    mine = {key[2:]: block for key, block in counts.items() if key[:2] == (training, row)}
    seeds = sorted({seed for seed, _ in mine})
    names = sorted({name for _, name in mine})
    found = np.array([[mine[seed, name].found for name in names] for seed in seeds], float)
    union = np.array([[mine[seed, name].union for name in names] for seed in seeds], float)
    whole = union.sum(axis=1, keepdims=True)
    iou = found.sum(axis=1, keepdims=True) / whole
    influence = len(names) * (found - iou * union) / whole
    return np.asarray(100 * (iou + influence).mean(axis=2))


def compare(counts: Mapping[Key, Block], training: str, better: str, than: str) -> Difference:
    """Test the difference of two rows of a training."""
    gains = contributions(counts, training, better) - contributions(counts, training, than)
    gains = np.round(gains, DECIMALS)
    return Difference(training, better, than, float(gains.mean()), by_seeds(gains))


def write_report(folder: Path, plan: Plan, counts: Mapping[Key, Block]) -> None:
    """Write `emanet.md`, `emanet_rows.csv`, `emanet_claims.csv` and `emanet.png`.

    Args:
        folder: Where to write.
        plan: Says what is compared.
        counts: Of the rows that were evaluated.

    Raises:
        DataError: If a training lacks a row that the others are compared with.
    """
    blocks = {block: of.frames for (_, _, _, block), of in counts.items()}
    about = HOW_TO_READ.format(frames=sum(blocks.values()), blocks=len(blocks), seeds=plan.seeds)
    missing = [name for name in plan.trainings if name not in {key[0] for key in counts}]
    plan = evaluated(plan, counts)
    lines = [f"# {plan.title}", "", about, "", "![Ablations](emanet.png)", ""]
    header = ["row", "mIoU", *_compared_with("over `fcn`"), *_compared_with("over `ema`")]
    of_rows = [["training", "row", "miou", "standard_error", "than", *VALUES]]
    for training in plan.trainings.values():
        table = ScoreTable("", "", header, [])
        for row in training.rows:
            miou = contributions(counts, training.name, row.name).mean(axis=1)
            scores = [f"{miou.mean():.2f}", f"{standard_error(miou):.2f}"]
            cells = [f"{_label(plan, row)} (`{row.name}`)", " ± ".join(scores)]
            for than in REFERENCES:
                if row.name == than:
                    cells += ["", ""]
                    continue
                difference = compare(counts, training.name, row.name, than)
                cells += difference.cells
                of_rows.append([training.name, row.name, *scores, than, *difference.values])
            table.rows.append(cells)
        extent = f"{training.about} Epochs: {training.epochs}."
        lines += [f"## {training.name}", "", extent, "", *as_markdown(table), ""]
    claims = examine(plan, counts)
    of_claims = [["training", "claim", "better", "than", *VALUES, "corrected_p", "verdict"]]
    table = ScoreTable(
        "", "", ["claim", "training", *_compared_with("difference"), "p", "verdict"], []
    )
    for claim, difference, p in claims:
        found = verdict(p, difference.outcome.direction)
        names = [difference.training, claim.text, claim.better, claim.than]
        of_claims.append([*names, *difference.values, f"{p:.4g}", found])
        text = f"{claim.text} (`{claim.better}` over `{claim.than}`)"
        table.rows.append([text, difference.training, *difference.cells, f"{p:.2g}", found])
    lines += ["## Claims", "", *as_markdown(table)]
    for name in missing:
        lines += ["", f"The training `{name}` was not evaluated."]
    _write_csv(folder / "emanet_rows.csv", of_rows)
    _write_csv(folder / "emanet_claims.csv", of_claims)
    _draw(folder / "emanet.png", plan, counts)
    with replacing(folder / "emanet.md") as draft:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")


def evaluated(plan: Plan, counts: Mapping[Key, Block]) -> Plan:
    """Return a plan with the trainings, rows and claims that have counts.

    Raises:
        DataError: If a training lacks a row that the others are compared with.
    """
    trainings = {}
    for training in plan.trainings.values():
        there = {row for name, row, _, _ in counts if name == training.name}
        if there and not there.issuperset(REFERENCES):
            msg = (
                f"{training.name}: has counts of {sorted(there)} only; run `emanet.py evaluate "
                f"--training {training.name} --only {' '.join(REFERENCES)}` too"
            )
            raise DataError(msg)
        if there:
            rows = tuple(row for row in training.rows if row.name in there)
            claims = tuple(of for of in training.claims if there.issuperset((of.better, of.than)))
            trainings[training.name] = replace(training, rows=rows, claims=claims)
    return replace(plan, trainings=trainings)


def examine(plan: Plan, counts: Mapping[Key, Block]) -> list[tuple[Claim, Difference, float]]:
    """Test all claims; return each with its difference and its p-value after Holm's correction."""
    claims = [
        (claim, compare(counts, training.name, claim.better, claim.than))
        for training in plan.trainings.values()
        for claim in training.claims
    ]
    corrected = holm([difference.outcome.p for _, difference in claims])
    return [(*of, p) for of, p in zip(claims, corrected, strict=True)]


def _label(plan: Plan, row: Row) -> str:
    label: str = plan.networks[row.network]["label"]
    return label if row.iterations is None else f"{label}; T = {row.iterations} in the test"


def _compared_with(reference: str) -> list[str]:
    return [f"{reference} (95 % interval)", "detectable"]


def _write_csv(path: Path, lines: list[list[str]]) -> None:
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def _draw(path: Path, plan: Plan, counts: Mapping[Key, Block]) -> None:
    """Draw the differences to the network without an EMAU, and the scores by EM iterations."""
    canvas = Figure(figsize=(11, 5.5), dpi=120, layout="constrained")
    own = {
        name: [row for row in training.rows if row.iterations is None and row.network != "fcn"]
        for name, training in plan.trainings.items()
    }
    layout = [[name, "iterations"] for name in plan.trainings]
    panels = canvas.subplot_mosaic(layout, height_ratios=[1 + len(rows) for rows in own.values()])
    for training in plan.trainings.values():
        axes = panels[training.name]
        rows = own[training.name]
        for number, row in enumerate(rows):
            difference = compare(counts, training.name, row.name, "fcn")
            ends = [difference.outcome.low, difference.outcome.high]
            axes.plot(ends, [number, number], color=LINES[0], lw=1.5)
            axes.plot(difference.points, number, "o", color=LINES[0], ms=5)
        axes.set_yticks(range(len(rows)), [_label(plan, row) for row in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.axvline(0, color="grey", lw=0.8)
        axes.set_xlabel("mIoU less that without the EMAU, 95 % interval")
        axes.set_title(training.name, loc="left", fontsize=10)
        scores: dict[str, dict[int, float]] = {}
        for row in training.rows:
            miou = float(contributions(counts, training.name, row.name).mean())
            scores.setdefault(row.network, {})[row.iterations or OWN_ITERATIONS] = miou
        swept = [network for network in scores if len(scores[network]) > 1]
        for number, network in enumerate(swept):
            label = plan.networks[network]["label"]
            line = sorted(scores[network].items())
            panels["iterations"].plot(
                *zip(*line, strict=True), "o-", color=LINES[number], ms=4, label=label
            )
    panels["iterations"].set_xlabel("EM iterations in the test")
    panels["iterations"].set_ylabel("mIoU, frozen trunk")
    panels["iterations"].legend(frameon=False, fontsize=8)
    for axes in panels.values():
        axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(canvas).print_png(path)
