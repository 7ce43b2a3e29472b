"""Writes what came out of a plan: a page with tables, a CSV file with tests, and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from benchmarks.paper.claims import Finding, Scored, ScoredRows
from benchmarks.paper.plan import Figure, Plan
from benchmarks.paper.results import Result, write_csv
from probseg.metrics import (
    REPORTED_CLICKS,
    miou_at,
    noc,
    standard_error,
)
from probseg.paths import write_text
from probseg.reports.figures import LINES
from probseg.reports.tables import ScoreTable, as_markdown, as_text, clicks_so_far
from probseg.texts import count

PERCENTS = (80, 85, 90)
MARKERS = "os^Dvp"
ERRORS = (
    "bars: ± standard error over trials, as in the paper\n"
    "band: ± standard error over objects, of the first line"
)

HOW_TO_READ = """\
{about}

mIoU@k: mean IoU in percent after k {clicks}, ± standard error over objects ± standard error
over trials (as the paper has it), and ± standard error over training seeds where a row has several
networks. NoC@q: mean number of corrective clicks to an IoU of q percent, ± standard error over
objects; a run that never gets there counts as {of.max_clicks}. \
Protocol `{of.name}`, version {of.version}, {of.trials}
trials; IoUs are rounded to four digits.

{tests}"""

BY_RANKS = """\
The tests are paired: each object counts with its mean over trials and networks, photographs with
the mean over their objects. p is from Wilcoxon's signed-rank test, corrected after Holm over all
tests of a figure; the interval is a bootstrap over photographs, not corrected; d is the mean of the
photographs' differences over their standard deviation. A claim holds where the corrected p is at
most 0.05 and ranks and mean both speak for it, and is contradicted where both speak against it.
"Not shown" does not mean that there is no effect. The tests ask whether these networks differ on
other photographs; how much another training would change, only several seeds tell."""

BY_SEEDS = """\
The tests are paired by photograph and seed, on the photographs of all data sets together: each
counts with the mean over its objects and trials. Photographs and seeds are crossed random effects,
so that p and the 95 % interval are about other photographs and other trainings (Banerjee 1960: the
size of the test is at most its level, whatever the number of seeds). p is corrected after Holm over
all tests of this page; the interval is not. "Detectable" is the difference that such a test shows
with a power of 80 %, before the correction; d is the mean of the photographs' differences over
their standard deviation. A claim holds where the corrected p is at most 0.05 and the mean speaks
for it, and is contradicted where it speaks against it. "Not shown" does not mean that there is no
effect."""


def table(header: Sequence[str], lines: list[list[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return as_markdown(ScoreTable("", "", list(header), lines))


def write_claims(path: Path, findings: Sequence[Finding]) -> None:
    """Write a line for each test; numbers have four digits."""
    columns = [field.name for field in fields(Finding) if field.name != "direction"]
    columns += ["verdict", "sentence"]
    lines = [[_short(getattr(finding, column)) for column in columns] for finding in findings]
    write_csv(path, [columns, *lines])


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write_page(
    path: Path,
    plan: Plan,
    scored: ScoredRows,
    findings: Sequence[Finding],
    results: Sequence[Result],
    missing: Sequence[str],
) -> None:
    """Write all tables, the verdicts, what is missing and where the numbers come from."""
    clicks, tests = clicks_so_far(plan.protocol), BY_SEEDS if plan.pooled else BY_RANKS
    told = HOW_TO_READ.format(about=plan.about, clicks=clicks, of=plan.protocol, tests=tests)
    lines = [f"# {plan.title}", "", told, ""]
    for dataset, rows in scored.items():
        first = next(iter(rows.values()))
        extent = count(len(first.objects), "object"), count(len(set(first.photos)), "photograph")
        lines += [f"## {dataset}", "", f"{' on '.join(extent)}.", "", *_scores(plan, rows), ""]
    for figure in plan.figures:
        if any(name in rows for name in figure.rows for rows in scored.values()):
            picture = f"![{figure.title}]({plan.name}_{figure.name}.png)"
            lines += [f"## {figure.title}", "", picture, ""]
            lines += _claims(plan, figure, [of for of in findings if of.figure == figure.name])
    if missing:
        lines += ["## What is missing", "", *(f"- {as_text(text)}" for text in missing), ""]
    lines += ["## What the numbers come from", "", *_sources(results)]
    write_text(path, "\n".join(lines) + "\n")


def _scores(plan: Plan, rows: dict[str, Scored]) -> list[str]:
    """Return the scores of a data set, a line for each row."""
    protocol = plan.protocol
    clicks = [k for k in REPORTED_CLICKS if protocol.first_result <= k <= protocol.max_clicks]
    header = ["row", "networks", *(f"mIoU@{k}" for k in clicks), *(f"NoC@{q}" for q in PERCENTS)]
    lines = []
    for name, row in rows.items():
        together = row.ious.mean(axis=0)
        mean = 100 * miou_at(together)
        spreads = [standard_error(together.mean(axis=axis)) for axis in (1, 0)]  # objects, trials
        spreads.append(standard_error(row.ious.mean(axis=(1, 2))))
        line = [f"{plan.rows[name].label} (`{name}`)", f"{len(row.ious)}"]
        for k in clicks:
            known = [f"{100 * of[k]:.1f}" for of in spreads if np.isfinite(of[k])]
            line.append(" ± ".join([f"{mean[k]:.1f}", *known]))
        for q in PERCENTS:
            counts = np.mean([noc(ious, q / 100).mean(axis=1) for ious in row.ious], axis=0)
            line.append(f"{counts.mean():.2f} ± {standard_error(counts):.2f}")
        lines.append(line)
    return table(header, lines)


def _claims(plan: Plan, figure: Figure, findings: Sequence[Finding]) -> list[str]:
    """Return the verdicts on a figure's claims, and the numbers behind them."""
    lines = []
    for claim in figure.claims:
        rows = (claim.better, claim.than)
        mine = [of for of in findings if (of.better, of.than) == rows and of.claim == claim.text]
        told = " ".join(finding.sentence for finding in mine) or "Not tested: a row is missing."
        lines.append(f"- **{claim.text}** {told}")
    if findings:
        header = ["claim", "data", "k", "mIoU@k", "against", "difference", "95 % interval"]
        header += ["detectable"] if plan.pooled else []
        header += ["d", "ahead / level / behind", "p", "corrected p", "verdict"]
        lines += ["", *table(header, [_cells(plan, finding) for finding in findings])]
    return [*lines, ""] if lines else []


def _cells(plan: Plan, finding: Finding) -> list[str]:
    interval = "n/a" if finding.low is None else f"{finding.low:+.2f} to {finding.high:+.2f}"
    effect = "n/a" if finding.effect_size is None else f"{finding.effect_size:+.2f}"
    cells = [f"`{finding.better}` over `{finding.than}`", finding.dataset, f"{finding.clicks}"]
    cells += [f"{finding.better_miou:.2f}", f"{finding.than_miou:.2f}"]
    cells += [f"{finding.difference:+.2f}", interval]
    if plan.pooled and finding.detectable is not None:
        cells.append(f"{finding.detectable:.2f}")
    cells += [effect, f"{finding.ahead} / {finding.level} / {finding.behind}"]
    return [*cells, f"{finding.p:.2g}", f"{finding.corrected_p:.2g}", finding.verdict]


def _sources(results: Sequence[Result]) -> list[str]:
    """Return what each network's results were made with."""
    lines = {}
    for result in results:
        source = result.source
        settings = ", ".join(f"{k} {v:g}" for k, v in source["adaptation"].items())
        line = [result.row, source["model"], settings or "as trained"]
        line += [source["weights_sha256"][:12], source["commit"] or "unknown"]
        line += [source["torch"], source["device"]]
        lines[result.row, result.seed, source["weights_sha256"], source["commit"]] = line
    header = ["row", "model", "adaptation", "weights", "commit", "torch", "device"]
    return table(header, [*lines.values()])


def draw(path: Path, figure: Figure, plan: Plan, scored: ScoredRows) -> None:
    """Draw a panel for each data set with a line for each row that was evaluated.

    The lines are means over the row's networks. The choice of objects moves all lines together, so
    that one band of it is enough: what the tests judge are differences on the same objects.
    """
    canvas = Canvas(figsize=(5.2 * len(scored), 4.6), dpi=150, layout="constrained")
    panels = canvas.subplots(1, len(scored), squeeze=False)[0]
    for axes, (dataset, rows) in zip(panels, scored.items(), strict=True):
        drawn = [(number, name) for number, name in enumerate(figure.rows) if name in rows]
        for number, name in drawn:
            label, first = plan.rows[name].label, plan.protocol.first_result
            _line(axes, rows[name], number, label, first, band=number == drawn[0][0])
        objects = count(len(next(iter(rows.values())).objects), "object")
        axes.set_title(f"{dataset} ({objects})", loc="left", fontsize=10)
        axes.set_xlabel(clicks_so_far(plan.protocol))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.02)
        axes.grid(alpha=0.25, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean IoU")
    canvas.suptitle(figure.title, fontsize=11)
    legends = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels)
    handles = {label: handle for legend in legends for handle, label in legend}
    style = {"ncols": 2, "frameon": False, "fontsize": 8.5, "title": ERRORS, "title_fontsize": 7.5}
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", **style)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(canvas).print_png(path)


def _line(axes: Axes, row: Scored, number: int, label: str, first: int, band: bool) -> None:
    """Draw the curve of a row with its error over trials, and with a band of that over objects."""
    ious = row.ious.mean(axis=0)  # over the networks: (objects, trials, K + 1)
    mean = miou_at(ious)[first:]
    clicks = np.arange(first, first + len(mean))
    colour = LINES[number % len(LINES)]
    style = {"color": colour, "lw": 1.5, "marker": MARKERS[number % len(MARKERS)], "ms": 3.5}
    axes.plot(clicks, mean, label=label, **style)
    if ious.shape[1] > 1:
        spread = standard_error(ious.mean(axis=0))[first:]
        axes.errorbar(clicks, mean, spread, color=colour, fmt="none", capsize=2.5, elinewidth=1.1)
    if band and ious.shape[0] > 1:
        spread = standard_error(ious.mean(axis=1))[first:]
        axes.fill_between(clicks, mean - spread, mean + spread, color=colour, alpha=0.12, lw=0)
