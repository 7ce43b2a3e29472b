"""The page of equations: complete for each text, and everything that it names exists."""

import re
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


NUMBERED = {
    "Gabbur, Bilkhu & Movellan 2021": (40, 8, 0),
    "Movellan & Gabbur 2020": (38, 0, 0),
    "Singh & Buckley 2023": (7, 2, 0),
    "Li et al. 2019": (16, 5, 4),
    "A lecture on attention": (8, 5, 0),
}
"""Numbers of equations, figures and tables of each text."""


@pytest.mark.parametrize("title", NUMBERED)
def test_every_equation_figure_and_table_has_a_row(title):
    found = set()
    for item in (item for row in SECTIONS[title] for item in row["item"].split(", ")):
        first, dash, last = item.partition("-")
        is_range = dash and first.isdigit()
        found |= {*map(str, range(int(first), int(last) + 1))} if is_range else {item}
    equations, figures, others = NUMBERED[title]
    wanted = {str(number) for number in range(1, equations + 1)}
    wanted |= {f"Fig. {number}" for number in range(1, figures + 1)}
    wanted |= {f"Tab. {number}" for number in range(1, others + 1)}
    assert wanted - found == set()
    assert [
        item for item in found - wanted if item[0].isdigit() or item[:3] in ("Fig", "Tab")
    ] == []


def test_everything_named_exists():
    """Dotted names, files, commands (parsed by their own test), presets and attentions."""
    semantic = {path.stem for path in (ROOT / "configs" / "semantic").glob("*.yaml")}
    parts = {*list_models(), *ATTENTIONS, *semantic}
    rows = [(title, row) for title, rows in SECTIONS.items() for row in rows]
    names = [
        (title, row["item"], n)
        for title, row in rows
        for n in re.findall(r"`([^`]+)`", row["where"])
    ]
    assert len(names) > 80
    for title, item, name in names:
        good = name in parts or name.startswith("probseg ") or ("." in name and exists(name, ROOT))
        assert good, f"{title}, {item}: there is no {name}"
