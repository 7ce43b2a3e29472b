"""The console of the verbs."""

from __future__ import annotations

from typing import Any

from rich.console import Console

WIDTH = 150
"""Columns of a table where the output is no terminal."""


def console(**options: Any) -> Console:  # noqa: ANN401
    """Return a console, of `WIDTH` columns where the output is no terminal.

    Args:
        **options: Of `rich.console.Console`.
    """
    return Console(width=None if Console().is_terminal else WIDTH, **options)
