"""Tables of the documentation that are made from the code: `python docs/tables.py` writes them.

A table stands in its page between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import csv
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

from probseg.data import DATASETS
from probseg.data.base import InteractiveDataset
from probseg.evaluation import PROTOCOLS

DOCS = Path(__file__).resolve().parent
MARKED = re.compile(r"(<!-- table: (\w+) -->\n\n).*?(\n<!-- end of table -->)", re.DOTALL)


def protocols() -> list[list[str]]:
    """Return the rows of the table of protocols, the header first."""
    header = ["name", "annotator", "clicks", "threshold", "trials"]
    return [
        header,
        *(
            [f"`{p.name}`", p.description, f"{p.max_clicks}", f"{p.threshold}", f"{p.trials}"]
            for p in PROTOCOLS.values()
        ),
    ]


def data_sets() -> list[list[str]]:
    """Return the rows of the table of data sets, the header first."""
    header = ["class in `probseg.data`", "objects", "layout", "options (default)", "licence"]
    return [header, *map(_data_set, DATASETS.values())]


def encoders() -> list[list[str]]:
    """Return the rows of the table of encoders, the header first, as the benchmark found them."""
    header = ["images are padded to", "networks of timm"]
    groups: dict[tuple[int, str], list[str]] = {}
    text = (DOCS.parent / "benchmarks" / "results" / "encoders.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        padding = int(row["padding"] or 0)
        special = {0: "refused: one size only", 1: "nothing: every size"}.get(padding)
        place = (padding or 10**6, special or f"multiples of {padding} pixels")
        groups.setdefault(place, []).append(f"`{row['name']}`")
    return [header, *([title, ", ".join(names)] for (_, title), names in sorted(groups.items()))]


def _data_set(kind: type[InteractiveDataset]) -> list[str]:
    documented = inspect.getdoc(kind) or ""
    summary = documented.partition("\n")[0].removesuffix(".")
    layout = re.search(r"^Layout: (.+?)\.(?=\s)", documented, re.DOTALL | re.MULTILINE)
    place = re.search(r"root: .*?by default\s+(`\w[^`]*`)", documented, re.DOTALL)
    parts = [found[1] for found in (place, layout) if found is not None]
    options = [
        f"`{option.name}`"
        + ("" if option.default in (None, option.empty) else f" ({option.default})")
        for option in inspect.signature(kind).parameters.values()
        if option.name not in ("root", "name")
    ]
    return [f"`{kind.__name__}`", summary, ": ".join(parts), ", ".join(options), kind.licence]


def attention_uses() -> list[list[str]]:
    """Return the rows of the table of what attentions can be used for, as the tests try it."""
    sys.path.append(str(DOCS.parent / "tests"))
    from support.attention_uses import table

    return table()


TABLES: dict[str, Callable[[], list[list[str]]]] = {
    "protocols": protocols,
    "data_sets": data_sets,
    "encoders": encoders,
    "attention_uses": attention_uses,
}


def with_tables(page: str) -> str:
    """Return the text of a page with its tables as the code has them."""

    def written(found: re.Match[str]) -> str:
        rows = [
            [" ".join(cell.split()).replace("|", r"\|") for cell in row]
            for row in TABLES[found[2]]()
        ]
        lines = [f"| {' | '.join(row)} |\n" for row in rows]
        lines.insert(1, f"|{':--|' * len(rows[0])}\n")
        return found[1] + "".join(lines) + found[3]

    return MARKED.sub(written, page)


if __name__ == "__main__":
    for path in DOCS.rglob("*.md"):
        before = path.read_text("utf-8")
        if (after := with_tables(before)) != before:
            path.write_text(after, "utf-8")
            print(f"wrote the tables of {path}")
