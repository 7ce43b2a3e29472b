"""The table and the figure of attention.py."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from attention_cases import CASES
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from measure import read_rows

NUMBERS = (
    "seconds",
    "seconds_median",
    "yardstick_seconds",
    "yardstick_median",
    "ratio",
    "ratio_median",
    "extra_mib",
)
"""Columns with what was measured; a row without them has a reason."""

_TITLES = {"forward": "forward", "backward": "forward + backward"}
_STYLES = {"pytorch": "-", "probseg": "-", "materialised": "--", "n x n each step": ":"}
_PANELS = {"seconds": "seconds", "extra_mib": "peak extra memory (MiB)"}
_RESOLUTION_MIB = 0.1
"""Smallest memory that is drawn: less is not told from nothing, and a log axis has no zero."""

Rows = dict[tuple[str, str, int, str], dict[str, str]]


def report(stem: Path) -> None:
    """Write `stem.md` and `stem.png` from `stem.csv`; of equal rows the last one counts.

    Args:
        stem: Path without the ending.
    """
    latest = {
        (row["case"], row["contestant"], int(row["n"]), row["direction"]): row
        for row in read_rows(stem.with_suffix(".csv"))
    }
    # Small first, then in the order of the cases: the file is in the order of the measurements.
    order = list(CASES)
    rows = dict(sorted(latest.items(), key=lambda item: (item[0][2], order.index(item[0][0]))))
    stem.with_suffix(".md").write_text(_table(rows))
    _figure(rows, stem.with_suffix(".png"))


def _directions(rows: Rows) -> list[str]:
    present = {direction for *_, direction in rows}
    return [direction for direction in _TITLES if direction in present]


def _table(rows: Rows) -> str:
    origins = {
        f"{row['machine']}, threads: {row['threads']}, PyTorch {row['torch']}, "
        f"commit {row['commit']}"
        for row in rows.values()
    }
    lines = ["# Probabilistic attention: time and memory", ""]
    lines += [f"- {origin}" for origin in sorted(origins)]
    lines += [
        "",
        "Seconds (best run; multiple of PyTorch's fused standard attention, measured in turns in "
        "the same process), peak extra MiB. How to read it: benchmarks/README.md.",
    ]
    contestants = [name for name in _STYLES if any(name == key[1] for key in rows)]
    for direction in _directions(rows):
        lines += ["", f"## {_TITLES[direction].capitalize()}", ""]
        lines += [f"| N | case | {' | '.join(contestants)} |"]
        lines += [f"|---:|---|{'---|' * len(contestants)}"]
        problems = dict.fromkeys((n, case) for case, _, n, way in rows if way == direction)
        for n, case in problems:
            cells = [_cell(rows.get((case, name, n, direction))) for name in contestants]
            lines += [f"| {n:,} | {case} | {' | '.join(cells)} |"]
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, str] | None) -> str:
    if row is None:
        return ""
    if row["reason"]:
        return row["reason"].replace("|", "/")
    seconds = f"{float(row['seconds']):.3g} s ({float(row['ratio']):.2f}x)"
    return f"{seconds}, {float(row['extra_mib']):.0f}" if row["extra_mib"] else seconds


def _figure(rows: Rows, path: Path) -> None:
    mpl.use("Agg")
    directions = _directions(rows)
    if not directions:
        return
    figure, grid = plt.subplots(
        len(directions), len(_PANELS), figsize=(12, 5 * len(directions)), squeeze=False
    )
    # A case of a single size is a dot without a line, which the table shows better.
    sizes = {case: {n for name, _, n, _ in rows if name == case} for case in CASES}
    drawn = [case for case in CASES if len(sizes[case]) > 1]
    palette = plt.get_cmap("tab10")
    colours = {
        case: "black" if case == "standard" else palette(index) for index, case in enumerate(drawn)
    }
    for direction, axes_row in zip(directions, grid, strict=True):
        for (column, label), axes in zip(_PANELS.items(), axes_row, strict=True):
            for case, colour in colours.items():
                for contestant, style in _STYLES.items():
                    points = _points(rows, case, contestant, direction, column)
                    if points:
                        axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", ms=4)
            _decorate(axes, _TITLES[direction], label, sorted({n for _, _, n, _ in rows}))
    handles = [Line2D([], [], color=colour, label=case) for case, colour in colours.items()]
    handles += [
        Line2D([], [], color="grey", linestyle=style, label=name)
        for name, style in _STYLES.items()
        if name != "pytorch"
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _points(
    rows: Rows, case: str, contestant: str, direction: str, column: str
) -> list[tuple[int, float]]:
    floor = _RESOLUTION_MIB if column == "extra_mib" else 0.0
    return [
        (n, max(floor, float(row[column])))
        for (name, who, n, way), row in rows.items()
        if (name, who, way) == (case, contestant, direction) and row[column]
    ]


def _decorate(axes: Axes, title: str, label: str, sizes: list[int]) -> None:
    axes.set(xscale="log", yscale="log", title=title, xlabel="tokens N", ylabel=label)
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
