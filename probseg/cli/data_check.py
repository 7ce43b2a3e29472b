"""The verb data check, and what the command line calls a data set."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

from rich import box
from rich.table import Column, Table

from probseg.cli.arguments import new_file
from probseg.data.base import PublishedDataset
from probseg.data.checks import Report, check_dataset, check_folder
from probseg.data.published import PUBLISHED, find_published
from probseg.errors import UsageError, check_name
from probseg.kinds import Registry
from probseg.masks import Meaning
from probseg.paths import find_data, no_folder
from probseg.terminal import bars, print_findings, print_line, write_findings
from probseg.texts import count

if TYPE_CHECKING:
    from probseg.cli.arguments import Verbs


class DataLocation(NamedTuple):
    """A published data set, or any other folder, which has no class. Without a split: all."""

    dataset: type[PublishedDataset] | None
    root: Path
    split: str | None


def locate_data(name: str, root: Path | None, split: str | None, prefix: str = "") -> DataLocation:
    """Find a published data set by its name, or any folder by its path.

    A published one may have a root and a split; `prefix` is that of these options, for errors.
    """
    folder = find_data(name)
    is_path = len(Path(name).parts) > 1
    dataset = find_published(folder.name if is_path else name)
    if dataset is not None and root is None and is_path:
        root = folder
        if dataset.source.missing(root) and all((root / x).is_dir() for x in ("images", "masks")):
            dataset = None  # another folder with the name of a data set
    splits = [] if dataset is None else [part for part in dataset.source.full if part]
    fault = None
    if dataset is None and root is not None and root != folder:
        fault = f"--{prefix}root {root}: {name} is a folder, not a data set; leave one out"
    elif dataset is None and (folder.is_file() or (is_path and not folder.exists())):
        fault = f"{name}: {no_folder(folder)}; give a folder, or one of: {', '.join(PUBLISHED)}"
    elif dataset is None and not folder.is_dir():
        check_name("data set or folder", name, PUBLISHED)
    elif split is not None and not splits:
        fault = f"--{prefix}split {split}: {name} has no splits; leave the option out"
    if fault is not None:
        raise UsageError(fault)
    if split is not None:
        check_name(f"split of {name}", split, splits)
    return DataLocation(dataset, folder if dataset is None else dataset.source.folder(root), split)


COMPARISONS: Mapping[str, Callable[[DataLocation, DataLocation, Path | None], None]] = Registry(
    "data_comparison"
)
"""Comparisons of two data sets, by the option that asks for them: they print and write what is in
both, and leave with status 1 if that is anything."""


def add_verb(verbs: Verbs) -> None:
    """Add check to the verbs of `probseg data`."""
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
    verb.add_argument(
        "--masks",
        choices=get_args(Meaning),
        help="what masks of a folder mean; by default their values decide, as in a training",
    )
    verb.add_argument("--json", type=new_file, metavar="FILE", help="write everything to a file")
    verb.set_defaults(action=_check)


def _check(options: argparse.Namespace) -> None:
    place = locate_data(options.name, options.root, options.split)
    if options.against is not None:
        other = locate_data(
            options.against, options.against_root, options.against_split, prefix="against-"
        )
        COMPARISONS["against"](place, other, options.json)
        return
    fault = None
    if options.against_root is not None or options.against_split is not None:
        fault = "--against-root and --against-split describe the data set of --against: add it"
    elif options.masks is not None and place.dataset is not None:
        fault = f"--masks {options.masks}: is for a folder; the masks of {options.name} are known"
    if fault is not None:
        raise UsageError(fault)
    with bars() as progress:
        if place.dataset is None:
            reports = [check_folder(place.root, progress, options.masks)]
        else:
            usual: tuple[str | None, ...] = place.dataset.source.splits or (None,)
            reports = [
                check_dataset(place.dataset, place.root, split, progress)
                for split in (usual if place.split is None else (place.split,))
            ]
    content = [{**r._asdict(), "problems": [p._asdict() for p in r.problems]} for r in reports]
    write_findings(options.json, {"reports": content})
    for report in reports:
        _print_report(report)
    if not all(report.sound for report in reports):
        raise SystemExit(1)


def _print_report(report: Report) -> None:
    serious = [problem for problem in report.problems if problem.serious]
    notes = [problem for problem in report.problems if not problem.serious]
    for title, problems in (("Problems", serious), ("Worth knowing", notes)):
        if problems:
            table = Table(
                Column("file", overflow="fold"),
                Column("finding", overflow="fold"),
                title=f"{title}: {report.dataset}",
                box=box.SIMPLE,
            )
            print_findings(table, [(problem.path, problem.text) for problem in problems])
    photos = count(report.photos, "photograph")
    if report.with_objects != report.photos:
        photos = f"{report.with_objects} of {photos}"
    print_line(
        f"{report.dataset} in {report.root}: {count(report.objects, 'object')} on {photos}, "
        f"{count(len(serious), 'problem')}, {count(len(notes), 'note')}"
    )
