"""The verb zoo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from probseg.cli import zoo_publish, zoo_verify
from probseg.cli.arguments import Parser
from probseg.cli.output import console
from probseg.errors import DownloadError, UsageError
from probseg.zoo.fetching import mirrors
from probseg.zoo.hub import PREFIX, hub_folder
from probseg.zoo.index import CARD
from probseg.zoo.places import Place, every, fetch, find
from probseg.zoo.table import class_figures, figure

EXAMPLES = """\
examples:
  probseg zoo list
  probseg zoo show lite0_unet_prop
  probseg zoo fetch resnet16_csa hf-hub:owner/name
  probseg zoo verify
  probseg zoo verify lite0_unet_prop --metrics --on SamplePhotos
  probseg zoo publish runs/my/version_0 resnet16_csa.mine --facts facts.yaml \\
      --results runs/my/version_1/test/*/results.json --zoo my_zoo
  probseg zoo push resnet16_csa.mine owner/name --zoo my_zoo

environment:
  PROBSEG_ZOO      addresses or folders of further zoos, with commas between them
  PROBSEG_CACHE    folder for what is fetched, in place of ~/.cache/probseg
  PROBSEG_OFFLINE  1: use no network
"""

COLUMNS = {
    "NoC@90\nritm": "GrabCut/ritm/noc@90",
    "mIoU@0\ngabbur2021": "GrabCut/gabbur2021/miou@0",
    "mIoU@5\ngabbur2021": "GrabCut/gabbur2021/miou@5",
}
"""Figures of models for clicks in the list, all on GrabCut."""

WHERE = {"shipped": "shipped", "cached": "in the cache", "mirror": "to fetch"}


def run(arguments: Sequence[str]) -> None:
    """Run ``probseg zoo``.

    Args:
        arguments: What follows ``zoo`` on the command line.

    Raises:
        UsageError: If a file is missing or cannot be used.
    """
    options = _parser().parse_args(list(arguments))
    try:
        options.action(options)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="probseg zoo",
        description="Trained models: those that come with probseg, and those of other zoos.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = "list|show|fetch|verify|publish|push|table"
    verbs = parser.add_subparsers(required=True, metavar=known)
    verb = verbs.add_parser("list", help="names, sizes and figures of all models")
    verb.set_defaults(action=_list)
    verb = verbs.add_parser("show", help="what is known of a model")
    verb.add_argument("name", help="architecture.tag, or architecture for its first tag")
    verb.set_defaults(action=_show)
    verb = verbs.add_parser("fetch", help="get models that are used without a network later")
    verb.add_argument("name", nargs="*", help="models to fetch; all of PROBSEG_ZOO by default")
    verb.set_defaults(action=_fetch)
    zoo_verify.add_verb(verbs)
    zoo_publish.add_verbs(verbs)
    return parser


def _list(options: argparse.Namespace) -> None:
    table = Table(title="Models with weights", box=box.SIMPLE)
    for header in ("name", "task"):
        table.add_column(header, no_wrap=True)
    for header in ("parameters\nM", "files\nMB"):
        table.add_column(header, justify="right")
    table.add_column("where")
    for header in (*COLUMNS, "mIoU\nof classes"):
        table.add_column(header, justify="right")
    for place in every(zoo_verify.warn_of_mirror):
        entry = place.entry
        table.add_row(
            entry.name,
            entry.task,
            f"{entry.parameters / 1e6:.2f}",
            f"{entry.size / 1e6:.1f}",
            WHERE[place.kind],
            *(figure(entry, key) for key in COLUMNS.values()),
            "\n".join(class_figures(entry)),
        )
    console().print(table)


def _show(options: argparse.Namespace) -> None:
    place = find(options.name)
    card = None if place.folder is None else place.folder / CARD
    if card is not None and card.is_file():
        text = card.read_text(encoding="utf-8").split("---\n", 2)[-1]  # without the front matter
    else:
        text = _summary(place)
    Console().print(Markdown(text))


def _summary(place: Place) -> str:
    """Return the facts of the index about a model, as Markdown."""
    entry = place.entry
    lines = [
        f"# {entry.name}",
        entry.description,
        f"For {entry.task} segmentation; {entry.parameters / 1e6:.2f} M parameters, "
        f"{entry.size / 1e6:.1f} MB; licence of the weights: {entry.license}. "
        f"It is listed by the zoo {place.zoo} ({WHERE[place.kind]}).",
        "## Training",
        *(f"- Data: {line}" for line in entry.data),
        f"- Command: `{entry.recipe}`",
        f"- Seed {entry.seed}, commit `{entry.commit}`",
        f"- {entry.hardware}; {entry.hours:g} hours",
        "## Measured",
        *(f"- {key}: {figure(entry, key)}" for key in entry.metrics),
        "## Limits",
        *(f"- {limit}" for limit in entry.limits),
    ]
    return "\n\n".join(lines)


def _fetch(options: argparse.Namespace) -> None:
    if not options.name and not mirrors():
        msg = (
            "PROBSEG_ZOO names no zoo to fetch all models of; set it, or give the names of models, "
            "such as hf-hub:owner/name"
        )
        raise UsageError(msg)
    elsewhere = (place.entry.name for place in every(_refuse) if place.kind != "shipped")
    for name in options.name or elsewhere:
        folder = hub_folder(name) if name.startswith(PREFIX) else fetch(name)
        sys.stdout.write(f"{name} is in {folder}\n")


def _refuse(error: DownloadError) -> None:
    raise error
