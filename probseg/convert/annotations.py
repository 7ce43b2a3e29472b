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
    """Write COCO annotations in another format, to a path that does not exist.

    `storage` is the folder of the photographs for Label Studio, whose document root is above it.
    Returns what the format cannot hold, one thing a line.
    """
    request = Request(storage=storage, ids_of=annotations)
    return convert(annotations, target, ("coco", name), request).lines()
