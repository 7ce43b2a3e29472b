"""The verb data, and its verbs list and fetch; others are imported when they are called."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probseg.cli.arguments import Parser, add_verbs
from probseg.data.published import MEGABYTE, SOURCES, get_published
from probseg.errors import USER_ERRORS, UsageError
from probseg.kinds import Registry
from probseg.terminal import Grid, console, print_table

if TYPE_CHECKING:
    from probseg.cli.arguments import AddVerb, Verbs

EXAMPLES = """\
examples:
  probseg data list
  probseg data fetch GrabCut
  probseg data fetch DAVIS585 --source ~/Downloads/DAVIS585.zip
  probseg data check GrabCut
  probseg data check my_folder --json problems.json
  probseg data convert annotations.json masks --from coco --to png
  probseg data check SBD --split train --against PascalVOC
"""


def run(arguments: Sequence[str]) -> None:
    """Run `probseg data`; the status is 1 if problems or shared photographs were found."""
    parser = Parser(
        prog="probseg data",
        description="Published data sets, and your own folders.",
        epilog=EXAMPLES,
    )
    add_verbs(parser, VERBS, arguments)
    options = parser.parse_args(list(arguments))
    try:
        options.action(options)
    except USER_ERRORS:
        raise
    except OSError as error:  # permissions, full disks
        raise UsageError(str(error)) from error


def _add_list(verbs: Verbs) -> None:
    verb = verbs.add_parser("list", help="names, sizes, folders and licences of all data sets")
    verb.set_defaults(action=_list)


def _add_fetch(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "fetch",
        help="download and unpack a data set",
        description="Download and unpack a data set. The same command resumes it.",
    )
    verb.add_argument("name", metavar="NAME", help="one of `probseg data list`")
    verb.add_argument("--root", type=Path, metavar="DIR", help="target folder")
    verb.add_argument(
        "--source",
        metavar="URL",
        help="address or file of the archive; for several archives their folder, ending in /",
    )
    verb.add_argument("--sha256", type=_sha256, metavar="HEX", help="expected checksum")
    verb.add_argument("--force", action="store_true", help="fetch again, replace other files")
    verb.set_defaults(action=_fetch)


VERBS: Mapping[str, AddVerb] = Registry(
    "data_verb",
    {"check": "probseg.cli.data_check.add_verb", "fetch": _add_fetch, "list": _add_list},
)
"""The function that adds each verb to the parser."""


def _list(options: argparse.Namespace) -> None:
    words = ("there", "folder", "licence and notes")
    rows = []
    for name, source in SOURCES.items():
        root = source.folder()
        there = "no" if not root.is_dir() else "in part" if source.missing(root) else "yes"
        counts = [
            "\n".join(
                f"{part} {full[field]}".strip()
                for part, full in source.full.items()
                if full[field] is not None
            )
            or "-"
            for field in (0, 1)  # objects, photographs
        ]
        size = sum(archive.size for archive in source.archives)
        download = f"{size / MEGABYTE:,.0f} MB" if size else "by hand"
        notes = f"{source.licence}; {source.way}" if source.way else source.licence
        rows.append([name, *counts, download, there, str(root), notes])
    grid = Grid(["name", "objects", "photographs", "download", *words], rows)
    print_table(console(), "Data sets", grid, texts=words)


def _fetch(options: argparse.Namespace) -> None:
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    from probseg.data.fetch import fetch
    from probseg.terminal import bars

    with bars(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as progress:
        fetch(
            get_published(options.name),
            options.root,
            address=options.source,
            sha256=options.sha256,
            force=options.force,
            progress=progress,
        )


def _sha256(text: str) -> str:
    if len(text) != 64 or not set(text.lower()) <= set("0123456789abcdef"):
        raise argparse.ArgumentTypeError(f"must be 64 hexadecimal digits, got {text!r}")
    return text.lower()
