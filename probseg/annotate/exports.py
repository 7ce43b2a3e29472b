"""Files that the page writes on demand: objects in other formats, and the report of the work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from probseg.annotate.store import Effort
from probseg.kinds import Offers
from probseg.texts import write_rows

COCO, REPORT = "coco", "report"

_CONVERSION: Offers[Any] = Offers("annotation_export")


def file_names() -> dict[str, str]:
    """Return the name of the file or folder of each export, by format; the report is the last."""
    return {COCO: "annotations.json", **_CONVERSION["file_names"], REPORT: "report.csv"}


def write_export(
    name: str, annotations: Path, target: Path, storage: PurePosixPath, efforts: Sequence[Effort]
) -> list[str]:
    """Write what is exported.

    Args:
        name: Of the format, which is another one than `coco`.
        annotations: The file `annotations.json`.
        target: The file or folder to write, which does not exist.
        storage: Folder of the photographs for Label Studio, whose document root is above it.
        efforts: For the report.

    Returns:
        What the format cannot hold, one thing a line.

    Raises:
        DataError: If it cannot hold the objects at all.
    """
    if name == REPORT:
        write_report(target, efforts)
        return []
    lost: list[str] = _CONVERSION["write"](name, annotations, target, storage)
    return lost


def write_report(path: Path, efforts: Sequence[Effort]) -> None:
    """Write the work on the objects of each label as CSV, in all and in the mean of an object."""
    totals = ("label", "objects", "seconds", "clicks")
    rows: list[tuple[object, ...]] = [(*totals, "seconds_per_object", "clicks_per_object")]
    for label, objects, seconds, clicks in efforts:
        means = round(seconds / objects, 2), round(clicks / objects, 2)
        rows.append((label, objects, round(seconds, 1), clicks, *means))
    with path.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, rows)
