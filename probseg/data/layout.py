"""Folders of data sets, and the files in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PureWindowsPath

from probseg.errors import DataError
from probseg.images import IMAGE_SUFFIXES, LOSSLESS_SUFFIXES, refuse_only_unread
from probseg.paths import data_dir


def chosen_root(root: Path | str | None, *names: str) -> Path:
    """Return the given folder, else the first of some folders that exists in `data_dir`.

    Args:
        root: The argument of a data set.
        names: The folder's usual names; the first one is returned where there is none of them.
    """
    if root is not None:
        return Path(root)
    choices = [data_dir() / name for name in names]
    return next((place for place in choices if place.is_dir()), choices[0])


def picture_files(place: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> dict[str, Path]:
    """Map the stems of the picture files in a folder to their paths.

    Args:
        place: The folder, which may be missing.
        suffixes: Those of the files that count, in small letters.

    Returns:
        The paths in the order of their names; empty if there are none.

    Raises:
        DataError: If two files have the same stem, or all photographs are of a format that is not
            supported.
    """
    found: dict[str, Path] = {}
    for path in sorted(place.iterdir()) if place.is_dir() else []:
        # The suffixes of GrabCut's archive are .jpg, .JPG and .bmp.
        if path.name.startswith(".") or path.suffix.lower() not in suffixes:
            continue
        if path.stem in found:
            msg = f"{path}: has the same stem as {found[path.stem]}; remove one of them"
            raise DataError(msg)
        found[path.stem] = path
    if not found:
        refuse_only_unread(place)
    return found


def mask_files(place: Path) -> dict[str, Path]:
    """Map the stems of the masks in a folder to their paths, as `picture_files` does.

    Raises:
        DataError: As there, and if a mask is in a format that changes its numbers.
    """
    files = picture_files(place, IMAGE_SUFFIXES + LOSSLESS_SUFFIXES)
    for path in files.values():
        if path.suffix.lower() not in LOSSLESS_SUFFIXES:
            msg = (
                f"{path}: masks must be in a lossless format ({', '.join(LOSSLESS_SUFFIXES)}); "
                "JPEG and its like change the object numbers near contours"
            )
            raise DataError(msg)
    return files


def refuse_missing(folder: Path, kind: str, missing: list[str], others: str) -> None:
    """Raise a `DataError` if files have no partner of the same name in another folder.

    Args:
        folder: Where the partners should be.
        kind: What is missing there, in a word.
        missing: Names without partner; nothing is raised where there are none.
        others: Folder of the files that have no partner.
    """
    if missing:
        msg = (
            f"{folder}: no {kind} for {missing[:3]} ({len(missing)} in all); add files of the same "
            f"names or remove those in {others}/"
        )
        raise DataError(msg)


def leads_outside(file: str) -> bool:
    """Whether a path names no file inside a folder that it starts from, on any system."""
    path = PureWindowsPath(file)  # which knows / as well as \\, and C:
    return bool(path.anchor) or ".." in path.parts or not path.parts


def first_words(path: Path) -> list[str]:
    """Read the first word of each line of a list, blank lines left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.strip()]
