"""What the annotation page exports: its `annotations.json` in the other formats."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from probseg.convert import FOLDERS, WRITERS, Request, convert

FILE_NAMES = {
    name: f"annotations-{name}{'' if name in FOLDERS else '.json'}"
    for name in WRITERS
    if name != "coco"
}
"""Files and folders by format; `coco` is `annotations.json` itself."""


def write(name: str, annotations: Path, target: Path, storage: PurePosixPath) -> list[str]:
    """Write COCO annotations in another format.

    Args:
        name: Of the format.
        annotations: The file of COCO annotations.
        target: The file or folder to write, which does not exist.
        storage: Folder of the photographs for Label Studio, whose document root is above it.

    Returns:
        What the format cannot hold, one thing a line.

    Raises:
        DataError: If it cannot hold the objects at all.
    """
    request = Request(storage=storage, ids_of=annotations)
    return convert(annotations, target, ("coco", name), request).lines()
