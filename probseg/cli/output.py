"""What verbs show: progress bars, tables of findings, and lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
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
from rich.table import Table

from probseg.paths import Progress, write_text
from probseg.terminal import console
from probseg.texts import one_line

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
