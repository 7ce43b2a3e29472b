"""Figures of an evaluation: the curve of mean IoU and a sheet of example runs.

Nothing here touches matplotlib's global state, so it works without a display and in threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from probseg.clicks.annotators import BoolMap
from probseg.interact.loop import PICTURE_CLICKS, Frame, ObjectRecord, Picture
from probseg.interact.protocols import Protocol
from probseg.metrics import Summary

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito (2008)
TRUTH, PREDICTION, BOX = "#ffd400", "#00c8ff", "#ff9f1c"
POSITIVE, NEGATIVE = "#17a34a", "#dc2626"
MAX_ROWS = 8
TILE = 2.2  # width of a picture in inches
TITLE = 0.3  # height of the line above a row of pictures in inches


def draw_curve(path: Path, summaries: Mapping[str, Summary], protocol: Protocol) -> None:
    """Draw mean IoU against the number of clicks, one line per data set.

    The band is the standard error over objects, the bars are the standard error over trials.
    """
    figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    first = 0 if protocol.box else 1
    for number, (name, summary) in enumerate(summaries.items()):
        colour = LINES[number % len(LINES)]
        clicks = np.arange(first, summary.max_clicks + 1)
        mean = np.array(summary.miou)[first:]
        label = (
            f"{name} ({_count(summary.n_objects, 'object')}, {_count(summary.n_trials, 'trial')})"
        )
        axes.plot(clicks, mean, color=colour, marker="o", markersize=3.5, lw=1.6, label=label)
        if summary.se_objects is not None:
            spread = np.array(summary.se_objects)[first:]
            axes.fill_between(clicks, mean - spread, mean + spread, color=colour, alpha=0.16, lw=0)
        if summary.se_trials is not None:
            spread = np.array(summary.se_trials)[first:]
            axes.errorbar(clicks, mean, spread, color=colour, fmt="none", capsize=3, elinewidth=1.2)
    axes.set_xlabel("corrective clicks (after 2 box clicks)" if protocol.box else "clicks")
    axes.set_ylabel("mean IoU")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{protocol.name}, version {protocol.version}", loc="left", fontsize=10)
    meanings = ["band: ± SE over objects"]
    if any(summary.se_trials is not None for summary in summaries.values()):
        meanings.append("bars: ± SE over trials")
    axes.legend(
        frameon=False, loc="lower right", fontsize=8, title="; ".join(meanings), title_fontsize=7
    )
    _save(figure, path)


def draw_overlays(path: Path, records: Sequence[ObjectRecord]) -> None:
    """Draw a sheet of runs: image with box, truth, and the prediction as the clicks go on.

    Args:
        path: Where to write the picture.
        records: Runs; the first `MAX_ROWS` that have a picture are drawn.
    """
    pictures = [(record, record.picture) for record in records if record.picture][:MAX_ROWS]
    first = 0 if pictures[0][1].box else 1
    most = max(picture.frames[-1].k for _, picture in pictures)
    stages = [k for k in PICTURE_CLICKS if first <= k < most]
    shapes = [picture.mask.shape for _, picture in pictures]
    heights = [
        min(1.6, max(0.4, height / width)) for height, width in shapes
    ]  # of a tile, by width
    columns = 2 + len(stages) + 1
    figure = Figure(
        figsize=(TILE * columns, TILE * sum(heights) + TITLE * len(pictures)),
        dpi=110,
        layout="constrained",
    )
    grid = figure.subplots(len(pictures), columns, squeeze=False, height_ratios=heights)
    for row, (record, picture) in zip(grid, pictures, strict=True):
        _draw(row[0], picture.image, f"{record.dataset} / {record.name}")
        if picture.box:
            x0, y0, x1, y1 = picture.box
            corner = (x0 - 0.5, y0 - 0.5)  # whole numbers are pixel centres
            row[0].add_patch(Rectangle(corner, x1 - x0, y1 - y0, fill=False, ec=BOX, lw=1.6))
        _draw(row[1], picture.image, "truth", picture.mask == 1, TRUTH)
        for axes, k in zip(row[2:], stages, strict=False):
            reached = [frame for frame in picture.frames if frame.k <= k]
            _draw_frame(axes, picture, reached[-1], _count(k, "click"))
        last = picture.frames[-1]
        _draw_frame(row[-1], picture, last, f"final, {_count(last.k, 'click')}")
    _save(figure, path)


def _draw_frame(axes: Axes, picture: Picture, frame: Frame, title: str) -> None:
    """Draw a prediction with the clicks that led to it, numbered, and its IoU."""
    _draw(axes, picture.image, title, frame.prediction, PREDICTION)
    for number, click in enumerate(picture.clicks[: frame.k], start=1):
        colour = POSITIVE if click.positive else NEGATIVE
        axes.plot(click.x, click.y, "o", ms=8.5, mfc=colour, mec="white", mew=0.8, clip_on=False)
        axes.annotate(
            f"{number}",
            (click.x, click.y),
            color="white",
            fontsize=5.5,
            fontweight="bold",
            ha="center",
            va="center_baseline",
        )
    axes.text(
        0.02,
        0.03,
        f"IoU {frame.iou:.3f}",
        transform=axes.transAxes,
        color="white",
        fontsize=7,
        bbox={"facecolor": "black", "alpha": 0.65, "edgecolor": "none", "pad": 2},
    )


def _draw(
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
    if mask is not None and mask.any() and not mask.all():
        axes.contour(mask, levels=[0.5], colors=[colour], linewidths=0.9)
    axes.set_title(title, fontsize=7.5, loc="left", pad=3)
    axes.set_axis_off()


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure).print_png(path)
