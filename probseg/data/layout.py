"""Where data sets lie, and which files their folders hold."""

from __future__ import annotations

from pathlib import Path

from probseg.data.images import IMAGE_SUFFIXES
from probseg.errors import DataError, DatasetNotFoundError
from probseg.paths import data_dir


def chosen_root(root: Path | str | None, *names: str) -> Path:
    """Return the folder that was given, else the first of these that `data_dir` has.

    Args:
        root: The argument of a data set.
        names: The folder's usual names; the first one is returned where there is none of them.
    """
    if root is not None:
        return Path(root)
    choices = [data_dir() / name for name in names]
    return next((place for place in choices if place.is_dir()), choices[0])


def archive_files(name: str, root: Path, folder: str, layout: str) -> dict[str, Path]:
    """Map the stems of the picture files of a test set's folder to their paths.

    Args:
        name: The data set, and the name of its archive.
        root: The folder of the data set.
        folder: The folder in it; stems end at the first dot of a file name.
        layout: The folders that ``root`` must have, in words.

    Raises:
        DatasetNotFoundError: If there are no pictures.
        DataError: If two files have the same stem.
    """
    place = root / folder
    found: dict[str, Path] = {}
    for path in sorted(place.iterdir()) if place.is_dir() else []:
        # The suffixes of GrabCut's archive are .jpg, .JPG and .bmp.
        if path.name.startswith(".") or path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        stem = path.name.split(".")[0]
        if stem in found:
            msg = f"{path}: has the same stem as {found[stem]}; remove one of them"
            raise DataError(msg)
        found[stem] = path
    if not found:
        raise DatasetNotFoundError(
            name,
            root,
            layout,
            f"Download {name}.zip from the releases page of the repository "
            "SamsungLabs/ritm_interactive_segmentation, unpack it, and pass its folder as "
            "`root` or set PROBSEG_DATA to the folder that holds it.",
        )
    return found
