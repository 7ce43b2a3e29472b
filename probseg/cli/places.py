"""What the command line calls a data set: a published one, or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from probseg.data.base import PublishedDataset
from probseg.data.published import PUBLISHED, find_published
from probseg.errors import UnknownNameError, UsageError
from probseg.paths import find_data, no_folder


class Place(NamedTuple):
    """A published data set, or any other folder.

    Args:
        dataset: Class of the data set; None for another folder.
        root: Its folder.
        split: Its split; None for all usual ones.
    """

    dataset: type[PublishedDataset] | None
    root: Path
    split: str | None


def find_place(name: str, root: Path | None, split: str | None, prefix: str = "") -> Place:
    """Find a data set by its name or folder.

    Args:
        name: Name of a published data set, or path of a folder.
        root: Folder of the published data set; None for its usual place.
        split: Split of the published data set; None for all usual ones.
        prefix: Of the options `root` and `split`, for errors: `"against-"`.

    Raises:
        UsageError: If the folder does not exist, or a root or a split is given that it cannot have.
        UnknownNameError: If there is no such data set, or no such split of it.
    """
    folder = find_data(name)
    is_path = len(Path(name).parts) > 1
    dataset = find_published(folder.name if is_path else name)
    if dataset is not None and root is None and is_path:
        root = folder
        if dataset.source.missing(root) and all((root / x).is_dir() for x in ("images", "masks")):
            dataset = None  # another folder with the name of a data set
    if dataset is not None:
        _check_split(dataset, split, prefix)
        return Place(dataset, dataset.source.folder(root), split)
    if root is not None and root != folder:
        msg = (
            f"--{prefix}root {root}: {name} is a folder, not the name of a data set; leave one out"
        )
        raise UsageError(msg)
    if folder.is_file() or (is_path and not folder.exists()):
        msg = f"{name}: {no_folder(folder)}; give a folder, or one of: {', '.join(PUBLISHED)}"
        raise UsageError(msg)
    if not folder.is_dir():
        raise UnknownNameError(kind="data set or folder", name=name, known=PUBLISHED)
    if split is not None:
        msg = f"--{prefix}split {split}: {name} is a folder and has no splits; leave the option out"
        raise UsageError(msg)
    return Place(None, folder, None)


def _check_split(dataset: type[PublishedDataset], split: str | None, prefix: str) -> None:
    """Raise unless a data set has a split."""
    if split is None or split in dataset.source.full:
        return
    known = [part for part in dataset.source.full if part]
    if not known:
        msg = f"--{prefix}split {split}: {dataset.name} has no splits; leave the option out"
        raise UsageError(msg)
    raise UnknownNameError(kind=f"split of {dataset.name}", name=split, known=known)
