"""Folders whose files have neither names nor sizes of the photographs that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from probseg.convert.ledger import Ledger
from probseg.convert.parts import Request
from probseg.data.layout import picture_files
from probseg.errors import DataError
from probseg.picture_formats import unread_files


class Folder(NamedTuple):
    """A folder of masks or texts, and the photographs in the folder of the same name.

    Args:
        inside: Its path inside the whole folder, with `/` at the end; empty for the whole folder.
        files: The masks or texts by their stems.
        photos: The photographs by their stems.
        images: The folder of the photographs.
    """

    inside: str
    files: dict[str, Path]
    photos: dict[str, Path]
    images: Path


def folders(
    place: Path,
    request: Request,
    ledger: Ledger,
    name: str,
    listed: Callable[[Path], dict[str, Path]],
) -> list[Folder]:
    """List a folder and the folders in it, in the order of their names.

    Hidden files and folders are left out; other files of another kind are counted as lost.
    """
    images = request.images
    found = []
    for folder in [place, *sorted(path for path in place.rglob("*") if path.is_dir())]:
        inside = folder.relative_to(place)
        if images is None or any(part.startswith(".") for part in inside.parts):
            continue
        files, photos = listed(folder), picture_files(images / inside)
        unread = len(unread_files(images / inside))
        ledger.find(images=unread)
        ledger.lose("in formats of photographs that are not read", images=unread)
        others = set(folder.glob("[!.]*")) - {*files.values(), *photos.values()}
        ledger.change("files that are not read", sum(path.is_file() for path in others))
        prefix = "" if folder == place else f"{inside.as_posix()}/"
        found.append(Folder(prefix, files, photos, images / inside))
    if not any(folder.photos for folder in found):
        msg = (
            f"`images` must be the folder of the photographs, got {images}: the format {name} has "
            "neither their names nor their sizes"
        )
        raise DataError(msg)
    if not any(folder.files for folder in found):
        msg = f"{place}: has no file of the format {name}; check the folder"
        raise DataError(msg)
    return found
