"""The verb data."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table

from probseg.cli.arguments import Parser, check_writable, new_file
from probseg.convert import FOLDERS, READERS, WRITERS, Request, convert, is_free
from probseg.convert.ledger import IMAGES, OBJECTS
from probseg.data.base import PublishedDataset
from probseg.data.checks import Report, check_dataset, check_folder
from probseg.data.fetching import fetch
from probseg.data.published import PUBLISHED, find_published, get_published
from probseg.data.source import MEGABYTE, Source
from probseg.errors import USER_ERRORS, UnknownNameError, UsageError
from probseg.lab.leakage import Leak, Photos, find_leaks, photos_of_dataset, photos_of_folder
from probseg.paths import find_data, no_file, no_folder
from probseg.terminal import Grid, console, print_table
from probseg.transfer import Progress

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
SHOWN = 50
"""Rows of a table of problems or shared photographs; the JSON file has them all."""


class _Place(NamedTuple):
    """A published data set, or any other folder if `dataset` is None."""

    dataset: type[PublishedDataset] | None
    root: Path


def run(arguments: Sequence[str]) -> None:
    """Run `probseg data`.

    Args:
        arguments: Command-line arguments after `data`.

    Raises:
        UsageError: If an option cannot be used, or a file cannot be written.
        UnknownNameError: If there is no such data set.
        DatasetNotFoundError: If a data set is not where it was looked for.
        DownloadError: If a download fails.
        ChecksumError: If an archive is not the one that is expected.
        DataError: If an archive or a photograph cannot be used.
        SystemExit: With status 1 if problems or shared photographs were found.
    """
    options = _parser().parse_args(list(arguments))
    try:
        options.action(options)
    except USER_ERRORS:
        raise
    except OSError as error:  # permissions, full disks
        raise UsageError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="probseg data",
        description="Published data sets, and your own folders.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(required=True, metavar="list|fetch|check|convert")
    verb = verbs.add_parser("list", help="names, sizes, folders and licences of all data sets")
    verb.set_defaults(action=_list)
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
    verb = verbs.add_parser(
        "check",
        help="check all files of a data set, or find photographs that another one shares",
        description="Check all files and list faults; or, with --against, list the photographs "
        "shared with another data set. The status is 1 if there are any.",
    )
    verb.add_argument("name", metavar="NAME", help="data set, or folder with images/ and masks/")
    verb.add_argument("--root", type=Path, metavar="DIR", help="folder of the data set")
    verb.add_argument("--split", help="train, val, ...; all usual ones by default")
    verb.add_argument("--against", metavar="TEST", help="data set or folder to compare with")
    verb.add_argument("--against-root", type=Path, metavar="DIR", help="folder of TEST")
    verb.add_argument("--against-split", metavar="SPLIT", help="split of TEST")
    verb.add_argument("--json", type=new_file, metavar="FILE", help="write everything to a file")
    verb.set_defaults(action=_check)
    verb = verbs.add_parser(
        "convert",
        help="masks from one file format to another",
        description="Write the masks of A as B in another format, and print what it cannot hold. "
        f"Formats to read: {', '.join(READERS)}; to write: {', '.join(WRITERS)}.",
    )
    verb.add_argument("source", type=Path, metavar="A", help="a folder, or a JSON file")
    verb.add_argument("target", type=Path, metavar="B", help="a new folder, or a new JSON file")
    verb.add_argument(
        "--from", dest="reader", choices=READERS, metavar="FORMAT", required=True, help="of A"
    )
    verb.add_argument(
        "--to", dest="writer", choices=WRITERS, metavar="FORMAT", required=True, help="of B"
    )
    verb.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="photographs, to read png, index and yolo, which do not have their names and sizes",
    )
    verb.add_argument(
        "--tolerance",
        type=_tolerance,
        default=1.0,
        metavar="PIXELS",
        help="largest distance of simplified outlines (coco-polygons, yolo) from the exact ones; 0 "
        "keeps every pixel (default: %(default)s)",
    )
    verb.set_defaults(action=_convert)
    return parser


def _list(options: argparse.Namespace) -> None:
    words = ("there", "folder", "licence and notes")
    rows = []
    for name, dataset in PUBLISHED.items():
        source = dataset.source
        root = source.folder()
        missing = source.missing(root)
        there = "no" if not root.is_dir() else "in part" if missing else "yes"
        notes = f"{dataset.licence}; {source.way}" if source.way else dataset.licence
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


def _fetch(options: argparse.Namespace) -> None:
    with _bars(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as progress:
        fetch(
            get_published(options.name),
            options.root,
            address=options.source,
            sha256=options.sha256,
            force=options.force,
            progress=progress,
        )


def _check(options: argparse.Namespace) -> None:
    place = _place(options.name, options.root, options.split, "--split")
    if options.against is None:
        if options.against_root is not None or options.against_split is not None:
            msg = "--against-root and --against-split describe the data set of --against: add it"
            raise UsageError(msg)
        _look(place, options.split, options.json)
    else:
        test = _place(
            options.against, options.against_root, options.against_split, "--against-split"
        )
        _compare(place, options.split, test, options.against_split, options.json)


def _convert(options: argparse.Namespace) -> None:
    source, target = options.source, options.target
    fault = (no_folder if options.reader in FOLDERS else no_file)(source)
    if fault is not None:
        msg = f"{source}: {fault}; --from says {options.reader}"
        raise UsageError(msg)
    if not is_free(target, options.writer):
        msg = f"{target}: is there already; remove it, or choose another name for B"
        raise UsageError(msg)
    check_writable("B", target)
    request = Request(options.images, options.tolerance)
    formats = options.reader, options.writer
    with _bars(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        ledger = convert(
            source, target, formats, request, lambda count: progress("images", count, None)
        )
    objects, images = ledger.written[OBJECTS], ledger.written[IMAGES]
    lines = [f"{objects} objects of {images} images written to {target} as {options.writer}"]
    lines += [f"lost: {line}" for line in ledger.lines()] or ["nothing is lost"]
    for line in lines:
        console().print(line, markup=False, soft_wrap=True, highlight=False)


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        msg = f"must be a finite number of at least 0, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return value


def _look(place: _Place, split: str | None, json_file: Path | None) -> None:
    with _bars(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        dataset = place.dataset
        if dataset is None:
            reports = [check_folder(place.root, progress)]
        else:
            parts: tuple[str | None, ...] = (split,) if split else dataset.source.splits or (None,)
            reports = [check_dataset(dataset, place.root, part, progress) for part in parts]
    if json_file is not None:
        content = [{**r._asdict(), "problems": [p._asdict() for p in r.problems]} for r in reports]
        _write(json_file, {"reports": content})
    for report in reports:
        _print_report(report)
    if not all(report.sound for report in reports):
        raise SystemExit(1)


def _print_report(report: Report) -> None:
    terminal = console()
    serious = [problem for problem in report.problems if problem.serious]
    notes = [problem for problem in report.problems if not problem.serious]
    for title, problems in (("Problems", serious), ("Worth knowing", notes)):
        if problems:
            table = Table(title=f"{title}: {report.dataset}", box=box.SIMPLE)
            table.add_column("file", overflow="fold")
            table.add_column("finding", overflow="fold")
            _fill(table, [(problem.path, problem.text) for problem in problems])
            terminal.print(table)
    photos = _counted(report.photos, "photograph")
    if report.with_objects != report.photos:
        photos = f"{report.with_objects} of {photos}"
    line = (
        f"{report.dataset} in {report.root}: {_counted(report.objects, 'object')} on {photos}, "
        f"{_counted(len(serious), 'problem')}, {_counted(len(notes), 'note')}"
    )
    terminal.print(line, markup=False, soft_wrap=True)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _compare(
    place: _Place, split: str | None, test: _Place, test_split: str | None, json_file: Path | None
) -> None:
    ours, theirs = _photos(place, split), _photos(test, test_split)
    with _bars(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        leaks = find_leaks(ours, theirs, progress)
    if json_file is not None:
        _write(json_file, {"shared": [leak._asdict() for leak in leaks]})
    terminal = console()
    if leaks:
        terminal.print(_leak_table(leaks, ours.name, theirs.name))
    trained, tested = {leak.train for leak in leaks}, {leak.test for leak in leaks}
    line = (
        f"{len(trained)} of the {len(ours.paths)} photographs of {ours.name} are among the "
        f"{len(theirs.paths)} of {theirs.name}, where they are {len(tested)}"
    )
    terminal.print(line, markup=False, soft_wrap=True)
    if leaks:
        raise SystemExit(1)


def _leak_table(leaks: Sequence[Leak], train: str, test: str) -> Table:
    table = Table(title="Photographs in both", box=box.SIMPLE)
    table.add_column(train, overflow="fold")
    table.add_column(test, overflow="fold")
    table.add_column("found by")
    table.add_column("correlation", justify="right")
    _fill(table, [(x.train, x.test, x.found, f"{x.correlation:.3f}") for x in leaks])
    return table


def _fill(table: Table, rows: Sequence[tuple[str, ...]]) -> None:
    for row in rows[:SHOWN]:
        table.add_row(*map(escape, row))
    if len(rows) > SHOWN:
        table.caption = f"{len(rows) - SHOWN} more; --json FILE has them all"


def _photos(place: _Place, split: str | None) -> Photos:
    if place.dataset is None:
        return photos_of_folder(place.root)
    return photos_of_dataset(place.dataset, place.root, split)


def _place(name: str, root: Path | None, split: str | None, option: str) -> _Place:
    """Return the named data set and its folder."""
    place = find_data(name)
    is_path = len(Path(name).parts) > 1
    dataset = find_published(place.name if is_path else name)
    if dataset is not None and root is None and is_path:
        root = place
        if dataset.source.missing(root) and all((root / x).is_dir() for x in ("images", "masks")):
            dataset = None  # another folder with the name of a data set
    if dataset is None:
        if root is not None and root != place:
            msg = f"--root {root}: {name} is a folder, not the name of a data set; leave one out"
            raise UsageError(msg)
        if place.is_file() or (is_path and not place.exists()):
            msg = f"{name}: {no_folder(place)}; give a folder, or one of: {', '.join(PUBLISHED)}"
            raise UsageError(msg)
        if not place.is_dir():
            raise UnknownNameError(kind="data set or folder", name=name, known=PUBLISHED)
        if split is not None:
            msg = f"{option} {split}: {name} is a folder and has no splits; leave the option out"
            raise UsageError(msg)
        return _Place(None, place)
    if split is not None and split not in dataset.source.full:
        known = [part for part in dataset.source.full if part]
        if not known:
            msg = f"{option} {split}: {dataset.name} has no splits; leave the option out"
            raise UsageError(msg)
        raise UnknownNameError(kind=f"split of {dataset.name}", name=split, known=known)
    return _Place(dataset, dataset.source.folder(root))


@contextlib.contextmanager
def _bars(*columns: ProgressColumn) -> Iterator[Progress]:
    """Show a bar on stderr for each thing that is reported; nothing where that is no terminal."""
    shown = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        console=Console(stderr=True),
        redirect_stdout=sys.stdout.isatty(),  # lines of a file belong into the file
    )
    tasks: dict[str, TaskID] = {}

    def progress(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = shown.add_task(what, total=total)
        shown.update(tasks[what], completed=done, total=total)

    shown.disable = not shown.console.is_terminal
    with shown:
        yield progress


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _sha256(text: str) -> str:
    if len(text) != 64 or not set(text.lower()) <= set("0123456789abcdef"):
        msg = f"must be 64 hexadecimal digits, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return text.lower()
