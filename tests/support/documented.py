"""Command lines that the documentation describes: a recipe, and the options in a row of a table."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"


class Row(NamedTuple):
    """A row of a table with a column `options`."""

    cells: dict[str, str]
    options: list[str]


def rows(page: str) -> list[Row]:
    """Return the rows of all tables of a page that have a column `options`."""
    found: list[Row] = []
    header: list[str] = []
    for line in (DOCS / page).read_text("utf-8").splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
        elif "options" in header and not set(cells[0]) <= set(":-"):
            row = dict(zip(header, cells, strict=True))
            options = re.fullmatch(r"`(.*)`|none", row["options"])
            assert options, f"{page}: expected `options` or none, got {row['options']}"
            found.append(Row(row, shlex.split(options[1] or "")))
    return found


def commands(page: str, verb: str) -> list[list[str]]:
    """Return the command lines of a verb in the code blocks of a page, without `OPTIONS`."""
    text = (DOCS / page).read_text("utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    found = [shlex.split(line.partition("probseg ")[2]) for line in lines]
    return [[word for word in words if word != "OPTIONS"] for words in found if words[:1] == [verb]]
