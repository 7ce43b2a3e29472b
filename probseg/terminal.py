"""The console of the command line and of evaluations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

WIDTH = 160
"""Columns of a table where the output is no terminal."""


def console(**options: Any) -> Console:  # noqa: ANN401
    """Return a console, of `WIDTH` columns where the output is no terminal.

    Args:
        **options: Of `rich.console.Console`.
    """
    return Console(width=None if Console().is_terminal else WIDTH, **options)


def print_paths(terminal: Console, paths: Iterable[Path]) -> None:
    """Print the files that were written, each in a line that is not broken."""
    for path in paths:
        terminal.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)
