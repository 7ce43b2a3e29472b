"""The figure of a comparison: the curves of mean IoU, and their paired differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from probseg.reports.comparison import Comparison
from probseg.reports.figures import LINES

Floats = npt.NDArray[np.float64]


def draw_comparison(path: Path, comparison: Comparison) -> None:
    """Draw a row of two panels per data set: all curves, and their differences from the first.

    The bands are 95 % intervals at each number of clicks by a bootstrap over photographs. Bands of
    two curves may overlap where the band of their difference is clear of zero: only the latter
    knows that the objects are the same.
    """
    rows = len(comparison.curves)
    figure = Figure(figsize=(10.4, 3.9 * rows), dpi=150, layout="constrained")
    grid = figure.subplots(rows, 2, squeeze=False)
    names = [result.name for result in comparison.results]
    for (left, right), curves in zip(grid, comparison.curves, strict=True):
        clicks = np.array(curves.clicks)
        for number, name in enumerate(names):
            _line(left, clicks, curves.means[number], curves.bands[:, number], number, name)
        for number, name in enumerate(names[1:]):
            band = curves.difference_bands[:, number]
            label = f"{name} minus {names[0]}"
            _line(right, clicks, 100 * curves.differences[number], 100 * band, number + 1, label)
        right.axhline(0, color="0.35", lw=1, zorder=0)
        _finish(left, f"{curves.dataset}, {curves.extent}", "mean IoU", "lower right")
        _finish(right, "paired differences", "difference of mean IoU in points", "best")
    FigureCanvasAgg(figure).print_png(path)


def _line(
    axes: Axes, clicks: npt.NDArray[np.int64], mean: Floats, band: Floats, number: int, label: str
) -> None:
    """Draw a curve with its band in the colour of its result."""
    colour = LINES[number % len(LINES)]
    axes.plot(clicks, mean, color=colour, marker="o", markersize=3.5, lw=1.6, label=label)
    axes.fill_between(clicks, *band, color=colour, alpha=0.16, lw=0)


def _finish(axes: Axes, title: str, ylabel: str, place: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("corrective clicks")
    axes.set_ylabel(ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc=place,
        fontsize=8,
        title="band: 95 % interval",
        title_fontsize=7,
        framealpha=0.75,
        edgecolor="none",
    )
