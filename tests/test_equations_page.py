"""The page of equations: complete for each text, and everything that it names exists."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from test_docs import exists, tables

from probseg import list_models
from probseg.attention import ATTENTIONS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "equations.md").read_text("utf-8")
SECTIONS = {
    title: next(tables(body))
    for title, body in re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", TEXT, re.MULTILINE)
}
ROWS = [(title, row) for title, rows in SECTIONS.items() for row in rows]

NUMBERED = {
    "Gabbur, Bilkhu & Movellan 2021": (40, 8, 0),
    "Movellan & Gabbur 2020": (38, 0, 0),
    "Singh & Buckley 2023": (7, 2, 0),
    "Li et al. 2019": (16, 5, 4),
    "A lecture on attention": (8, 5, 0),
}
"""Numbers of equations, figures and tables of each text."""


def items(rows: list[dict[str, str]]) -> list[str]:
    """Items of the first column, with ranges of equations written out."""
    found = []
    for row in rows:
        for item in row["item"].split(", "):
            first, dash, last = item.partition("-")
            if dash and first.isdigit():
                found += [str(number) for number in range(int(first), int(last) + 1)]
            else:
                found.append(item)
    return found


def named(place: str) -> list[str]:
    """Code in a cell, which has nothing else but commas."""
    assert re.fullmatch(r"(`[^`]+`(, )?)*", place), place
    return re.findall(r"`([^`]+)`", place)


@pytest.mark.parametrize("title", NUMBERED)
def test_every_equation_figure_and_table_has_a_row(title):
    found = set(items(SECTIONS[title]))
    equations, figures, others = NUMBERED[title]
    wanted = {str(number) for number in range(1, equations + 1)}
    wanted |= {f"Fig. {number}" for number in range(1, figures + 1)}
    wanted |= {f"Tab. {number}" for number in range(1, others + 1)}
    assert wanted - found == set()
    beyond = {item for item in found - wanted if item[0].isdigit() or item[:3] in ("Fig", "Tab")}
    assert beyond == set()


def test_there_is_a_table_for_each_text():
    assert SECTIONS.keys() == NUMBERED.keys()


def test_a_row_says_what_is_there_and_why_not():
    for title, row in ROWS:
        assert row["state"] in {"works", "variant", "not done"}, (title, row)
        assert bool(row["where"]) == (row["state"] != "not done"), (title, row)
        assert row["note"] or row["state"] == "works", (title, row)
        assert row["what"], (title, row)


def test_everything_named_exists():
    """Dotted names, files, commands (parsed by their own test), presets and attentions."""
    semantic = {path.stem for path in (ROOT / "configs" / "semantic").glob("*.yaml")}
    parts = {*list_models(), *ATTENTIONS, *semantic}
    count = 0
    for title, row in ROWS:
        for name in named(row["where"]):
            count += 1
            if name.startswith("probseg "):
                continue
            good = name in parts or ("." in name and exists(name, ROOT))
            assert good, f"{title}, {row['item']}: there is no {name}"
    assert count > 80


def test_public_names_are_named_where_they_are_public():
    """`probseg.ops.attend`, and not the module behind it."""
    for title, row in ROWS:
        for name in named(row["where"]):
            package, _, rest = name.removeprefix("probseg.").partition(".")
            if not name.startswith("probseg.") or "." not in rest:
                continue
            exported = import_module(f"probseg.{package}").__all__
            assert rest.rpartition(".")[2] not in exported, (title, name)
