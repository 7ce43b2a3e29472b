"""The option `--against` of `probseg data check`: photographs that two data sets share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Column, Table

from probseg.cli.data_check import Place
from probseg.cli.output import bars, print_findings, print_line, write_findings
from probseg.lab.leakage import Leak, Photos, find_leaks, photos_of_dataset, photos_of_folder


def compare(train: Place, test: Place, json_file: Path | None) -> None:
    """Print the photographs that two data sets share.

    Args:
        train: The data set that is trained on.
        test: The data set that is tested on.
        json_file: File to write them to.

    Raises:
        DatasetNotFoundError: If a data set has no photographs.
        DataError: If a photograph cannot be read.
        SystemExit: With status 1 if there are any.
    """
    ours, theirs = _photos(train), _photos(test)
    with bars() as progress:
        leaks = find_leaks(ours, theirs, progress)
    write_findings(json_file, {"shared": [leak._asdict() for leak in leaks]})
    if leaks:
        _print_leaks(leaks, ours.name, theirs.name)
    trained, tested = {leak.train for leak in leaks}, {leak.test for leak in leaks}
    print_line(
        f"{len(trained)} of the {len(ours.paths)} photographs of {ours.name} are among the "
        f"{len(theirs.paths)} of {theirs.name}, where they are {len(tested)}"
    )
    if leaks:
        raise SystemExit(1)


def _photos(place: Place) -> Photos:
    if place.dataset is None:
        return photos_of_folder(place.root)
    return photos_of_dataset(place.dataset, place.root, place.split)


def _print_leaks(leaks: Sequence[Leak], train: str, test: str) -> None:
    table = Table(
        Column(train, overflow="fold"),
        Column(test, overflow="fold"),
        Column("found by"),
        Column("correlation", justify="right"),
        title="Photographs in both",
        box=box.SIMPLE,
    )
    rows = [(leak.train, leak.test, leak.found, f"{leak.correlation:.3f}") for leak in leaks]
    print_findings(table, rows)
