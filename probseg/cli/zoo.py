"""The verb zoo, and its verbs list, show and fetch; others are imported when they are called."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from rich.markdown import Markdown

from probseg.cli.arguments import Parser, add_verbs
from probseg.errors import UsageError
from probseg.kinds import Registry
from probseg.paths import zoo_dir
from probseg.terminal import Grid, Terminal, console, fit_table, print_table
from probseg.texts import read_text, tell
from probseg.zoo.index import CARD, class_figures, figure
from probseg.zoo.lookup import PREFIX, all_models, find_model, hub_folder
from probseg.zoo.store import check_folder

if TYPE_CHECKING:
    from probseg.cli.arguments import AddVerb, Verbs

EXAMPLES = """\
examples:
  probseg zoo list
  probseg zoo show lite2_unet_prop
  probseg zoo fetch hf-hub:owner/name
  probseg zoo verify
  probseg zoo verify lite2_unet_prop --metrics --on SamplePhotos
  probseg zoo publish runs/my/version_0 resnet16_csa.mine --facts facts.yaml \\
      --results runs/my/version_1/test/*/results.json --zoo my_zoo
  probseg zoo push resnet16_csa.mine owner/name --zoo my_zoo
  probseg zoo import ritm coco_lvis_h18s_itermask.pth models/ritm_h18s
  probseg zoo import simpleclick cocolvis_vit_base.pth models/simpleclick_vitb
  probseg zoo import sam sam_vit_b_01ec64.pth models/sam_vitb

environment:
  PROBSEG_ZOO      folders of further zoos, separated by commas
  PROBSEG_OFFLINE  1: use no network
"""

COLUMNS = {
    "NoC@90\nritm": "GrabCut/ritm/noc@90",
    "mIoU@0\ngabbur2021": "GrabCut/gabbur2021/miou@0",
    "mIoU@5\ngabbur2021": "GrabCut/gabbur2021/miou@5",
}
"""Figures of models for clicks in the list, all on GrabCut."""

PURPOSES = {
    "interactive": "To click objects in photographs",
    "semantic": "To label every pixel with a class",
    "comparison": "To compare methods, as the lab notebook does",
}
"""Titles of the groups of the list: tasks, and what was trained for comparisons."""

TABLE = re.compile(r"^\|.*(?:\n\|.*)+", re.MULTILINE)  # a table in Markdown


def run(arguments: Sequence[str]) -> None:
    """Run `probseg zoo` with the arguments that follow it."""
    parser = Parser(
        prog="probseg zoo",
        description="Trained models of probseg and of other zoos.",
        epilog=EXAMPLES,
    )
    add_verbs(parser, VERBS, arguments)
    options = parser.parse_args(list(arguments))
    try:
        options.action(options)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def _add_list(verbs: Verbs) -> None:
    verb = verbs.add_parser("list", help="names, sizes and figures of all models")
    verb.set_defaults(action=_list)


def _add_show(verbs: Verbs) -> None:
    verb = verbs.add_parser("show", help="print the card of a model")
    verb.add_argument("name", help="architecture.tag, or architecture for its first tag")
    verb.set_defaults(action=_show)


def _add_fetch(verbs: Verbs) -> None:
    verb = verbs.add_parser("fetch", help="download models of the hub, for use without a network")
    verb.add_argument("name", nargs="+", help="hf-hub:owner/name")
    verb.set_defaults(action=_fetch)


VERBS: Mapping[str, AddVerb] = Registry(
    "zoo_verb", {"fetch": _add_fetch, "list": _add_list, "show": _add_show}
)
"""The function that adds each verb to the parser."""


def _list(options: argparse.Namespace) -> None:
    header = ["name", "parameters\nM", "files\nMB", "where", *COLUMNS, "mIoU\nof classes"]
    rows: dict[str, list[list[str]]] = {title: [] for title in PURPOSES.values()}
    for entry, root in all_models():
        row = [
            entry.name,
            f"{entry.parameters / 1e6:.2f}",
            f"{entry.nbytes / 1e6:.1f}",
            "shipped" if root == zoo_dir() else str(root),
            *(figure(entry, key) for key in COLUMNS.values()),
            "\n".join(class_figures(entry)),
        ]
        rows[PURPOSES["comparison" if entry.comparison else entry.task]].append(row)
    for title, group in rows.items():
        if group:
            columns = [any(cells) for cells in zip(*group, strict=True)]
            grid = [[*compress(row, columns)] for row in (header, *group)]
            print_table(console(), title, Grid(grid[0], grid[1:]), texts=("where",))


def _show(options: argparse.Namespace) -> None:
    terminal = Terminal()

    def narrow(table: re.Match[str]) -> str:
        """Return a table in Markdown in a form that fits the terminal."""
        lines = table[0].split("\n")
        header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
        parts = [
            ["|".join(names), ":--" + "|--:" * (len(names) - 1), *map("|".join, body)]
            for names, body in fit_table(Grid(header, rows), terminal.width)
        ]
        return "\n\n".join("\n".join(part) for part in parts)

    card = find_model(options.name).folder / CARD
    text = read_text(card).split("---\n", 2)[-1]  # without the front matter
    terminal.print(Markdown(TABLE.sub(narrow, text)))


def _fetch(options: argparse.Namespace) -> None:
    for name in options.name:
        if not name.startswith(PREFIX):
            raise UsageError(
                f"`name` must be a model of the Hugging Face hub, {PREFIX}owner/name, got {name!r}"
            )
        folder = hub_folder(name)
        check_folder(folder)
        tell(f"{name} is in {folder}\n")
