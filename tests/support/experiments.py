"""Experiments without the rest of a run: their model and data, and how the documentation runs them.

A whole run takes five to ten times as long to parse.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import lightning as L
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser

from probseg.cli.trainer import restore_nulls
from probseg.paths import configs_dir

KINDS = {"model": L.LightningModule, "data": L.LightningDataModule}


def options_of(part: str, words: Sequence[str]) -> list[str]:
    """Return the options of a part among options and their values."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [f"{option}={value}" for option, value in pairs if option.startswith(f"--{part}.")]


def part_of(name: str, part: Literal["model", "data"], *options: object) -> Any:
    """Make one part of an experiment; its weights take no memory."""
    path = configs_dir() / "experiment" / f"{name}.yaml"
    stored = yaml.safe_load(path.read_text(encoding="utf-8"))[part]
    given = path.parent / stored if isinstance(stored, str) else json.dumps(stored)
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(KINDS[part], part, subclass_mode=True)
    config = parser.parse_args([f"--{part}={given}", *map(str, options)])
    restore_nulls(config[part])
    with torch.device("meta"):
        return parser.instantiate(config)[part]


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
