"""Figures: mean IoU, survival curves, a sheet of example runs, and the curves of a comparison.

Nothing here touches matplotlib's global state, so it works without a display and in threads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from probseg.clicks.annotators import BoolMap
from probseg.errors import log_drawing_errors
from probseg.evaluation.protocols import Protocol
from probseg.evaluation.records import PICTURE_CLICKS, Frame, ObjectRecord, Picture
from probseg.evaluation.summary import Summary
from probseg.formats.colours import CLICK_COLOURS, CLICK_MARKERS
from probseg.reports.tables import clicks_so_far
from probseg.texts import count

if TYPE_CHECKING:
    from probseg.reports.comparison import Comparison

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito (2008)
DOTS: Any = {"marker": "o", "markersize": 3.5, "lw": 1.6}
LIGHT, DARK = ("#1b1f24", "#ffffff"), ("#e4e7eb", "#171b20")  # ink and paper
TRUTH, PREDICTION, BOX = "#ffd400", "#00c8ff", "#ff9f1c"
MAX_ROWS = 8
TILE = 2.2  # width of a picture in inches
TITLE = 0.3  # height of the line above a row of pictures in inches
Target = Path | IO[bytes]


def draw_curve(
    target: Target, summaries: Mapping[str, Summary], protocol: Protocol, *, dark: bool = False
) -> None:
    """Draw mean IoU against the number of clicks, one line per data set.

    The band is the 95 % interval of the bootstrap over photographs, the bars are the standard error
    over trials.
    """
    figure, (axes,) = _panels([protocol.name], dark)
    first = protocol.first_result
    lines = LINES[::-1] if dark else LINES  # the brighter colours first on dark paper
    for number, (name, summary) in enumerate(summaries.items()):
        colour = lines[number % len(lines)]
        clicks = np.arange(first, summary.max_clicks + 1)
        mean = np.array(summary.miou)[first:]
        label = f"{name} ({count(summary.n_objects, 'object')}, {count(summary.n_trials, 'trial')})"
        axes.plot(clicks, mean, color=colour, label=label, **DOTS)
        if summary.ci_low is not None and summary.ci_high is not None:
            low, high = summary.ci_low[first:], summary.ci_high[first:]
            axes.fill_between(clicks, low, high, color=colour, alpha=0.18, lw=0)
        if summary.se_trials is not None:
            spread = np.array(summary.se_trials)[first:]
            axes.errorbar(clicks, mean, spread, color=colour, fmt="none", capsize=3, elinewidth=1.2)
    axes.set_ylabel("mean IoU")
    axes.set_xlabel(clicks_so_far(protocol))
    meanings = ["band: 95 % interval over photographs"]
    if any(summary.se_trials is not None for summary in summaries.values()):
        meanings.append("bars: ± SE over trials")
    ink = axes.xaxis.label.get_color()
    legend = axes.legend(
        frameon=False,
        loc="lower right",
        fontsize=8,
        labelcolor=ink,
        title="; ".join(meanings),
        title_fontsize=7,
    )
    legend.get_title().set_color(ink)
    _save(figure, target)


def draw_survival(
    target: Target, summaries: Mapping[str, Summary], protocol: Protocol, *, dark: bool = False
) -> None:
    """Draw the share of runs that have not reached an IoU after k clicks, a panel per data set."""
    figure, panels = _panels(list(summaries), dark)
    lines = LINES[::-1] if dark else LINES  # the brighter colours first on dark paper
    for axes, summary in zip(panels, summaries.values(), strict=True):
        clicks = np.arange(summary.max_clicks + 1)
        for number, (percent, shares) in enumerate(summary.survival.items()):
            colour = lines[number % len(lines)]
            axes.step(clicks, shares, where="post", color=colour, lw=1.8, label=f"{percent} % IoU")
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.set_xlabel(clicks_so_far(protocol))
    panels[0].set_ylabel("runs not there yet")
    handles, labels = panels[0].get_legend_handles_labels()
    ink = panels[0].xaxis.label.get_color()
    figure.legend(handles, labels, frameon=False, loc="outside right center", labelcolor=ink)
    _save(figure, target)


def draw_overlays(target: Target, records: Sequence[ObjectRecord], protocol: Protocol) -> None:
    """Draw a sheet of runs: image with box, truth, and the predictions after more and more clicks.

    Of the runs that have a picture, the first of each data set are drawn, `MAX_ROWS` in all. Where
    not all objects are drawn, a title says how many are.
    """
    before: Counter[str] = Counter()
    places = []
    for number, record in enumerate(records):
        if record.picture is not None:
            places.append((before[record.dataset], number))
            before[record.dataset] += 1
    chosen = [records[number] for _, number in sorted(places)[:MAX_ROWS]]
    chosen.sort(key=lambda record: record.key)
    pictures = [(record, record.picture) for record in chosen if record.picture is not None]
    objects = len({(record.dataset, record.name) for record in records})
    most = max(picture.frames[-1].k for _, picture in pictures)
    stages = [k for k in PICTURE_CLICKS if protocol.first_result <= k < most]
    shapes = [picture.mask.shape for _, picture in pictures]
    heights = [min(1.6, max(0.4, height / width)) for height, width in shapes]  # by width of a tile
    columns = 2 + len(stages) + 1
    figure = Figure(
        figsize=(TILE * columns, TILE * sum(heights) + TITLE * (len(pictures) + 1)),
        dpi=110,
        layout="constrained",
    )
    if len(pictures) < objects:
        head = f"{len(pictures)} of {count(objects, 'object')}"
        figure.suptitle(head, x=0.005, ha="left", fontsize=9)
    grid = figure.subplots(len(pictures), columns, squeeze=False, height_ratios=heights)
    for row, (record, picture) in zip(grid, pictures, strict=True):
        with log_drawing_errors(f"{record.dataset} / {record.name} on the sheet"):
            draw_picture(row[0], picture.image, f"{record.dataset} / {record.name}")
            if picture.box:
                x0, y0, x1, y1 = picture.box
                corner = (x0 - 0.5, y0 - 0.5)  # whole numbers are pixel centres
                row[0].add_patch(Rectangle(corner, x1 - x0, y1 - y0, fill=False, ec=BOX, lw=1.6))
            draw_picture(row[1], picture.image, "truth", picture.mask == 1, TRUTH)
            for axes, k in zip(row[2:], stages, strict=False):
                reached = [frame for frame in picture.frames if frame.k <= k]
                _draw_frame(axes, picture, reached[-1], count(k, "click"))
            last = picture.frames[-1]
            _draw_frame(row[-1], picture, last, f"final, {count(last.k, 'click')}")
    _save(figure, target)


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
            colour = LINES[number % len(LINES)]
            band = curves.bands[:, number]
            left.plot(clicks, curves.means[number], color=colour, label=name, **DOTS)
            left.fill_between(clicks, *band, color=colour, alpha=0.16, lw=0)
            if number > 0:
                mean = 100 * curves.differences[number - 1]
                band = 100 * curves.difference_bands[:, number - 1]
                label = f"{name} minus {names[0]}"
                right.plot(clicks, mean, color=colour, label=label, **DOTS)
                right.fill_between(clicks, *band, color=colour, alpha=0.16, lw=0)
        right.axhline(0, color="0.35", lw=1, zorder=0)
        left.set_title(f"{curves.dataset}, {curves.extent}", loc="left", fontsize=10)
        left.set_ylabel("mean IoU")
        right.set_title("paired differences", loc="left", fontsize=10)
        right.set_ylabel("difference of mean IoU in points")
        for axes, place in ((left, "lower right"), (right, "best")):
            axes.set_xlabel("corrective clicks")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.margins(x=0.02)
            axes.grid(alpha=0.25, lw=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            title = "band: 95 % interval"
            frame: Any = {"framealpha": 0.75, "edgecolor": "none"}
            axes.legend(loc=place, fontsize=8, title=title, title_fontsize=7, **frame)
    _save(figure, path)


def _draw_frame(axes: Axes, picture: Picture, frame: Frame, title: str) -> None:
    """Draw a prediction with the clicks that led to it, numbered, and its IoU."""
    draw_picture(axes, picture.image, title, frame.prediction, PREDICTION)
    for number, click in enumerate(picture.clicks[: frame.k], start=1):
        colour, marker = CLICK_COLOURS[click.positive], CLICK_MARKERS[click.positive]
        (mark,) = axes.plot(click.x, click.y, marker, ms=8, mfc=colour, mec="white", mew=0.8)
        mark.set(clip_on=False, in_layout=False)  # marks need no room; measuring them takes long
        axes.annotate(
            f"{number}",
            (click.x, click.y),
            color="white",
            fontsize=5.5,
            fontweight="bold",
            ha="center",
            va="center_baseline",
            in_layout=False,
        )
    axes.text(
        0.02,
        0.03,
        f"IoU {frame.iou:.3f}",
        transform=axes.transAxes,
        color="white",
        fontsize=7,
        bbox={"facecolor": "black", "alpha": 0.65, "edgecolor": "none", "pad": 2},
        in_layout=False,
    )


def draw_picture(
    axes: Axes,
    image: npt.NDArray[np.uint8],
    title: str,
    mask: BoolMap | None = None,
    colour: str = "none",
) -> None:
    """Draw an image, with a mask in colour and what lies outside it darker."""
    shown = image.astype(np.float32) / 255
    if mask is not None:
        inside = mask[..., None]
        shown = np.where(inside, 0.65 * shown + 0.35 * np.array(to_rgb(colour)), 0.55 * shown)
    axes.imshow(shown, interpolation="antialiased")
    if mask is not None and min(mask.shape) > 1 and mask.any() and not mask.all():
        axes.contour(mask, levels=[0.5], colors=[colour], linewidths=0.9)
    axes.set_title(title, fontsize=7.5, loc="left", pad=3)
    axes.set_axis_off()


def _panels(titles: Sequence[str], dark: bool) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes for curves over clicks, up to three in a row."""
    ink, paper = DARK if dark else LIGHT
    columns = min(len(titles), 3)
    rows = math.ceil(len(titles) / columns)
    size = (7.6, 4.0) if len(titles) == 1 else (3.6 * columns, 3.2 * rows)
    figure = Figure(figsize=size, dpi=200, layout="constrained", facecolor=paper)
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axes, title in zip(grid, titles, strict=False):
        axes.set_title(title, loc="left", fontsize=10, color=ink)
        axes.set_facecolor(paper)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.margins(x=0.02)
        axes.grid(alpha=0.25, lw=0.6, color=ink)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["bottom", "left"]].set_color(ink)
        axes.tick_params(colors=ink)
        axes.xaxis.label.set_color(ink)
        axes.yaxis.label.set_color(ink)
    for unused in grid[len(titles) :]:
        unused.set_visible(False)
    return figure, grid[: len(titles)]


def _save(figure: Figure, target: Target) -> None:
    FigureCanvasAgg(figure).print_png(target)
