"""The verb zoo."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from probseg.cli.zoo_publish import add_verbs
from probseg.errors import UsageError
from probseg.paths import zoo_dir
from probseg.zoo.store import CARD, find, read_index, verify

EXAMPLES = """\
examples:
  probseg zoo list
  probseg zoo show resnet16_csa
  probseg zoo verify
  probseg zoo publish runs/my/version_0/checkpoints/last.ckpt resnet16_csa.mine \\
      --facts facts.json --results runs/my/version_1/test/ritm/results.json
"""


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
    parser = argparse.ArgumentParser(
        prog="probseg zoo",
        description="The models that come with probseg.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="list|show|verify|publish")
    verb = verbs.add_parser("list", help="names, sizes and figures of all models")
    verb.set_defaults(action=_list)
    verb = verbs.add_parser("show", help="the card of a model")
    verb.add_argument("name", help="architecture.tag, or architecture for its first tag")
    verb.set_defaults(action=_show)
    verb = verbs.add_parser("verify", help="check the weight files against their checksums")
    verb.add_argument("name", nargs="*", help="models to check; all by default")
    verb.set_defaults(action=_verify)
    add_verbs(verbs)
    return parser


def _list(options: argparse.Namespace) -> None:
    table = Table(title="Models with weights")
    table.add_column("name", no_wrap=True)
    table.add_column("parameters")
    table.add_column("mIoU@5 in % (data/protocol)")
    for entry in read_index().values():
        figures = [
            f"{100 * value:.1f} ({key.removesuffix('/miou@5')})"
            for key, value in entry.metrics.items()
            if key.endswith("/miou@5")
        ]
        size = f"{entry.parameters / 1e6:.2f} M"
        table.add_row(entry.name, size, "\n".join(figures))
    Console().print(table)


def _show(options: argparse.Namespace) -> None:
    entry = find(options.name)
    card = (zoo_dir() / entry.name / CARD).read_text(encoding="utf-8")
    Console().print(Markdown(card.split("---\n", 2)[-1]))  # without the YAML front matter


def _verify(options: argparse.Namespace) -> None:
    for name in options.name or read_index():
        folder = verify(name)
        Console().print(f"{folder.name}: checksum is right")
