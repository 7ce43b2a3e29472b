"""What is shown on the console: tables that fit it, progress bars, findings and lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from probseg.paths import Progress, write_text
from probseg.texts import one_line, printable

# columns where the output is not a terminal and `COLUMNS` is not set: tables stay whole
UNLIMITED = 10_000
TEXT_WIDTH = 160  # maximum columns of the text below a table
GAP = 2  # columns between the cells of a table
TEXT = 20  # columns to which a cell of words may be wrapped


class Grid(NamedTuple):
    """Names of columns, and rows of cells; a line break in either begins another line."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Terminal(Console):
    """A console that writes `printable` text."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the parts of what is printed, control characters in names of others escaped."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment._replace(text=text)


def console(**options: Any) -> Terminal:  # noqa: ANN401
    """Return a console, of `UNLIMITED` columns where the width of the output is unknown."""
    known = Console().is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return Terminal(width=None if known else UNLIMITED, **options)


def print_paths(terminal: Console, paths: Iterable[Path]) -> None:
    """Print the files that were written, each in a line that is not broken."""
    for path in paths:
        terminal.print(f"  {one_line(str(path))}", highlight=False, markup=False, soft_wrap=True)


def print_table(
    terminal: Console, title: str, grid: Grid, caption: str = "", texts: Collection[str] = ()
) -> None:
    """Print a table; one that is too wide for the output is turned or cut, see `fitted`."""
    terminal.print(one_line(title), style="italic", markup=False, highlight=False)
    for header, rows in fit_table(grid, terminal.width - GAP, texts):
        table = Table(box=box.SIMPLE, padding=(0, GAP - 1, 0, 0))
        for place, name in enumerate(header):
            left, wraps = place == 0 or name in texts, name in texts
            least = _width([name, *(row[place] for row in rows)], wraps)
            side: Any = "left" if left else "right"
            table.add_column(
                Text(name), justify=side, overflow="fold", no_wrap=not wraps, min_width=least
            )
        for row in rows:
            table.add_row(*map(Text, row))
        terminal.print(table)
    if caption:
        width = min(terminal.width, TEXT_WIDTH)
        terminal.print(f"{caption}\n", style="dim", markup=False, highlight=False, width=width)


def fit_table(grid: Grid, width: int, texts: Collection[str] = ()) -> list[Grid]:
    """Return a table in a form that fits a number of columns of text.

    That is the table itself, or its rows as columns, or several tables, each with the first column
    and some of the others. `texts` names columns of words, which may be wrapped.
    """
    columns = [list(column) for column in zip(grid.header, *grid.rows, strict=True)]
    widths = [_width(column, column[0] in texts) + GAP for column in columns]
    if sum(widths) <= width or len(columns) < 2:
        return [grid]
    names = [" ".join(name.split("\n")) for name in grid.header]
    header, *rows = zip(names, *grid.rows, strict=True)
    turned = Grid(header, rows)
    if sum(_width(column, False) + GAP for column in (names, *grid.rows)) <= width:
        return [turned]
    parts = [[0, 1]]
    for place in range(2, len(columns)):
        if sum(widths[other] for other in parts[-1]) + widths[place] <= width:
            parts[-1].append(place)
        else:
            parts.append([0, place])
    return [
        Grid([grid.header[i] for i in part], [[row[i] for i in part] for row in grid.rows])
        for part in parts
    ]


def _width(column: Sequence[str], wraps: bool) -> int:
    """Return how wide a column must be."""
    widest = max(cell_len(line) for cell in column for line in cell.split("\n"))
    return min(widest, TEXT) if wraps else widest


SHOWN = 50  # maximum rows of a table on the console


@contextmanager
def bars(*columns: ProgressColumn) -> Iterator[Progress]:
    """Show a bar on stderr for each task that is reported; nothing where that is not a terminal.

    Columns to the right of a bar are by default the numbers of items and the time left.
    """
    shown = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        *(columns or (MofNCompleteColumn(), TimeRemainingColumn())),
        console=Console(stderr=True),
        redirect_stdout=sys.stdout.isatty(),  # lines of a file belong into the file
    )
    tasks: dict[str, TaskID] = {}

    def progress(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = shown.add_task(what, total=total)
        shown.update(tasks[what], completed=done, total=total)

    shown.disable = not shown.console.is_terminal
    with shown:
        yield progress


def print_findings(table: Table, rows: Sequence[Sequence[str]]) -> None:
    """Print a table, which has columns and no rows yet, with at most `SHOWN` of the rows."""
    for row in rows[:SHOWN]:
        table.add_row(*map(escape, row))
    if len(rows) > SHOWN:
        table.caption = f"{len(rows) - SHOWN} more; --json FILE has them all"
    console().print(table)


def print_line(line: str) -> None:
    """Print a line that is not broken."""
    console().print(one_line(line), markup=False, soft_wrap=True)


def write_findings(path: Path | None, content: dict[str, Any]) -> None:
    """Write all findings to the file for `--json`; without one nothing is written."""
    if path is not None:
        write_text(path, json.dumps(content, indent=2) + "\n")
