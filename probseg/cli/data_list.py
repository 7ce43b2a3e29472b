"""The verb data list."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from probseg.data.published import MEGABYTE, SOURCES, Source
from probseg.terminal import Grid, console, print_table

if TYPE_CHECKING:
    from probseg.cli.arguments import Verbs


def add_verb(verbs: Verbs) -> None:
    """Add list to the verbs of `probseg data`."""
    verb = verbs.add_parser("list", help="names, sizes, folders and licences of all data sets")
    verb.set_defaults(action=_list)


def _list(options: argparse.Namespace) -> None:
    words = ("there", "folder", "licence and notes")
    rows = []
    for name, source in SOURCES.items():
        root = source.folder()
        missing = source.missing(root)
        there = "no" if not root.is_dir() else "in part" if missing else "yes"
        notes = f"{source.licence}; {source.way}" if source.way else source.licence
        counts = _counts(source, 0), _counts(source, 1)
        rows.append([name, *counts, _download_size(source), there, str(root), notes])
    grid = Grid(["name", "objects", "photographs", "download", *words], rows)
    print_table(console(), "Data sets", grid, texts=words)


def _counts(source: Source, field: int) -> str:
    known = {part: full[field] for part, full in source.full.items() if full[field] is not None}
    return "\n".join(f"{part} {count}".strip() for part, count in known.items()) or "-"


def _download_size(source: Source) -> str:
    size = sum(archive.size for archive in source.archives)
    return f"{size / MEGABYTE:,.0f} MB" if size else "by hand"
