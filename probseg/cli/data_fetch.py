"""The verb data fetch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

from probseg.cli.progress import bars
from probseg.data.fetch import fetch
from probseg.data.published import get_published

if TYPE_CHECKING:
    from probseg.cli.arguments import Verbs


def add_verb(verbs: Verbs) -> None:
    """Add fetch to the verbs of `probseg data`."""
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


def _fetch(options: argparse.Namespace) -> None:
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
        msg = f"must be 64 hexadecimal digits, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return text.lower()
