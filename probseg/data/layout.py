"""Folders of data sets, and the files in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PureWindowsPath

from probseg.errors import DataError
from probseg.paths import LEADS_OUT, data_dir, leads_out
from probseg.picture_formats import (
    IMAGE_SUFFIXES,
    LOSSLESS_SUFFIXES,
    UNREAD_SUFFIXES,
    list_pictures,
    not_supported,
    of_one_stem,
    refuse_only_unread,
    second_of_a_stem,
)
from probseg.texts import read_lines


def chosen_root(root: Path | str | None, *names: str) -> Path:
    """Return the given folder, else the first of some folders that exists in `data_dir`."""
    if root is not None:
        return Path(root)
    choices = [data_dir() / name for name in names]
    return next((place for place in choices if place.is_dir()), choices[0])


def picture_files(
    place: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES, root: Path | None = None
) -> dict[str, Path]:
    """Map the stems of the picture files in a folder to their paths."""
    found = list_pictures(place, suffixes)  # .jpg, .JPG and .bmp in GrabCut's archive
    for path in found:
        if leads_out(path, root or place):
            msg = f"{path}: {LEADS_OUT}"
            raise DataError(msg)
    for path, first in of_one_stem(found).items():
        msg = f"{path}: {second_of_a_stem(first)}"
        raise DataError(msg)
    if not found:
        refuse_only_unread(place)
    return {path.stem: path for path in found}


def sort_pictures(
    place: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES, root: Path | None = None
) -> tuple[dict[str, Path], dict[Path, str]]:
    """Divide the pictures in a folder into those that are read and the others, by their names."""
    files, refused = [], {}
    for path in list_pictures(place, IMAGE_SUFFIXES + UNREAD_SUFFIXES):
        if leads_out(path, root or place):
            refused[path] = LEADS_OUT
        elif path.suffix.lower() in suffixes:
            files.append(path)
        else:
            expected = f"is not lossless; expected {', '.join(suffixes)}"
            refused[path] = (suffixes == IMAGE_SUFFIXES and not_supported(path)) or expected
    twins = of_one_stem(files)
    refused |= {path: second_of_a_stem(first) for path, first in twins.items()}
    return {path.stem: path for path in files if path not in twins}, refused


def unread_folders(*places: Path) -> dict[Path, str]:
    """Find folders with pictures inside of folders of photographs and masks, where none is read.

    Hidden folders do not count, nor does `masks/`, which photographs may lie next to.
    """
    reasons = {}
    for folder in sorted(path for place in places for path in place.glob("[!.]*")):
        if not folder.is_dir() or leads_out(folder, folder.parent):
            continue
        inside = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        count = sum(len(list_pictures(path)) for path in inside)
        if count and folder.name != "masks":
            pictures = "a picture" if count == 1 else f"{count} pictures"
            reasons[folder] = f"is a folder with {pictures}, not used; move them one folder up"
    return reasons


def mask_files(place: Path, root: Path | None = None) -> dict[str, Path]:
    """Map the stems of the masks in a folder to their paths."""
    files, refused = sort_pictures(place, LOSSLESS_SUFFIXES, root)
    for path, reason in refused.items():
        msg = f"{path}: {reason}"
        raise DataError(msg)
    return files


def refuse_missing(folder: Path, kind: str, missing: list[str], others: str) -> None:
    """Raise a `DataError` if files have no partner of the same name in another folder."""
    if missing:
        msg = (
            f"{folder}: no {kind} for {missing[:3]} ({len(missing)} in all); add files of the same "
            f"names or remove those in {others}/"
        )
        raise DataError(msg)


def leads_outside(file: str) -> bool:
    """Whether a path names no file inside a folder that it starts from, on any system."""
    path = PureWindowsPath(file)  # which knows / as well as \\, and C:
    no_name = not path.parts or any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in file)
    return no_name or bool(path.anchor) or ".." in path.parts


def first_words(path: Path) -> list[str]:
    """Read the first word of each line of a list of a published data set, blank lines left out."""
    lines: dict[str, int] = {}
    for number, line in read_lines(path, "unpack the archive again"):
        word = line.split()[0]
        if word in lines:
            msg = (
                f"{path}, line {number}: {word!r} is in line {lines[word]} too; unpack the archive "
                "again"
            )
            raise DataError(msg)
        lines[word] = number
    return list(lines)
