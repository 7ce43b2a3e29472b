"""Files that the page writes on demand: objects in other formats, and the report of the work."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from probseg.annotate.store import Effort
from probseg.convert import FOLDERS, WRITERS, Request, convert

COCO, REPORT = "coco", "report"

FORMATS = (COCO, *(name for name in WRITERS if name != COCO), REPORT)
"""What can be exported: `annotations.json` (`coco`), other formats, and `report.csv`."""


def file_name(name: str) -> str:
    """Return the name of the file or folder of a format other than `coco`."""
    if name == REPORT:
        return "report.csv"
    return f"annotations-{name}" if name in FOLDERS else f"annotations-{name}.json"


def write_export(
    name: str, annotations: Path, target: Path, efforts: Sequence[Effort], storage: PurePosixPath
) -> list[str]:
    """Write what is exported.

    Args:
        name: Of the format.
        annotations: The file `annotations.json`.
        target: The file or folder to write, which does not exist.
        efforts: For the report.
        storage: Folder of the photographs for Label Studio, whose document root is above it.

    Returns:
        What the format cannot hold, one thing a line.

    Raises:
        DataError: If it cannot hold the objects at all.
    """
    if name == REPORT:
        write_report(target, efforts)
        return []
    return convert(annotations, target, (COCO, name), Request(storage=storage)).lines()


def write_report(path: Path, efforts: Sequence[Effort]) -> None:
    """Write the work on the objects of each label as CSV, in all and in the mean of an object."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        totals = ("label", "objects", "seconds", "clicks")
        writer.writerow((*totals, "seconds_per_object", "clicks_per_object"))
        for label, objects, seconds, clicks in efforts:
            means = round(seconds / objects, 2), round(clicks / objects, 2)
            writer.writerow((label, objects, round(seconds, 1), clicks, *means))
