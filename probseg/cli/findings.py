"""What checks of data find: tables on the console, and everything in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from probseg.paths import write_text
from probseg.terminal import console

SHOWN = 50
"""Most rows of a table on the console."""


def print_findings(table: Table, rows: Sequence[Sequence[str]]) -> None:
    """Print a table of findings, at most `SHOWN` of them.

    Args:
        table: The table, with its columns and without rows.
        rows: Cells of all rows.
    """
    for row in rows[:SHOWN]:
        table.add_row(*map(escape, row))
    if len(rows) > SHOWN:
        table.caption = f"{len(rows) - SHOWN} more; --json FILE has them all"
    console().print(table)


def print_line(line: str) -> None:
    """Print a line that is not broken."""
    console().print(line, markup=False, soft_wrap=True)


def write_findings(path: Path | None, content: dict[str, Any]) -> None:
    """Write all findings to the file for `--json`; without one nothing is written."""
    if path is not None:
        write_text(path, json.dumps(content, indent=2) + "\n")
