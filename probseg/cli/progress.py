"""Progress bars of the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from probseg.paths import Progress


@contextmanager
def bars(*columns: ProgressColumn) -> Iterator[Progress]:
    """Show a bar on stderr for each task that is reported; nothing where that is no terminal.

    Args:
        *columns: Columns to the right of a bar; by default the numbers of items and the time left.

    Yields:
        The function that reports progress.
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
