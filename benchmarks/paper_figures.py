"""Draws the counterparts of the paper's figures: mean IoU against clicks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from paper_claims import Scored
from paper_rows import Figure, Plan

from probseg.metrics import miou_at, standard_error_objects, standard_error_trials
from probseg.reports.figures import LINES
from probseg.reports.tables import clicks_so_far, count

MARKERS = "os^Dvp"
ERRORS = (
    "bars: ± standard error over trials, as in the paper\n"
    "band: ± standard error over objects, of the first line"
)


def draw(
    path: Path, figure: Figure, plan: Plan, scored: Mapping[str, Mapping[str, Scored]]
) -> None:
    """Draw a panel for each data set with a line for each row that was evaluated.

    The lines are means over the row's networks. The choice of objects moves all lines together, so
    that one band of it is enough: what the tests judge are differences on the same objects.

    Args:
        path: Where to write the PNG.
        figure: What to draw.
        plan: Has the labels of the rows.
        scored: By data set and row.
    """
    canvas = Canvas(figsize=(5.2 * len(scored), 4.6), dpi=150, layout="constrained")
    panels = canvas.subplots(1, len(scored), squeeze=False)[0]
    for axes, (dataset, rows) in zip(panels, scored.items(), strict=True):
        first = plan.protocol.first_answer
        drawn = [(number, name) for number, name in enumerate(figure.rows) if name in rows]
        for number, name in drawn:
            _line(axes, rows[name], number, plan.rows[name].label, first)
        for number, name in drawn[:1]:
            _band(axes, rows[name], number, first)
        objects = count(len(next(iter(rows.values())).objects), "object")
        axes.set_title(f"{dataset} ({objects})", loc="left", fontsize=10)
        axes.set_xlabel(clicks_so_far(plan.protocol))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.02)
        axes.grid(alpha=0.25, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean IoU")
    canvas.suptitle(figure.title, fontsize=11)
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    canvas.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8.5,
        title=ERRORS,
        title_fontsize=7.5,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(canvas).print_png(path)


def _line(axes: Axes, row: Scored, number: int, label: str, first: int) -> None:
    """Draw the curve of a row with its error over trials."""
    ious = row.ious.mean(axis=0)  # over the networks: (objects, trials, K + 1)
    mean = miou_at(ious)[first:]
    clicks = np.arange(first, first + len(mean))
    colour = LINES[number % len(LINES)]
    style = {"color": colour, "lw": 1.5, "marker": MARKERS[number % len(MARKERS)], "ms": 3.5}
    axes.plot(clicks, mean, label=label, **style)
    if ious.shape[1] > 1:
        spread = standard_error_trials(ious)[first:]
        axes.errorbar(clicks, mean, spread, color=colour, fmt="none", capsize=2.5, elinewidth=1.1)


def _band(axes: Axes, row: Scored, number: int, first: int) -> None:
    """Draw the error of a row's curve over objects."""
    ious = row.ious.mean(axis=0)
    if ious.shape[0] > 1:
        mean, spread = miou_at(ious)[first:], standard_error_objects(ious)[first:]
        clicks = np.arange(first, first + len(mean))
        colour = LINES[number % len(LINES)]
        axes.fill_between(clicks, mean - spread, mean + spread, color=colour, alpha=0.12, lw=0)
