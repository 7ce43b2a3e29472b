"""Base classes of semantic data sets: photographs with a class per pixel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from probseg.data.base import Named
from probseg.data.layout import first_words, picture_files, refuse_missing
from probseg.errors import DataError
from probseg.images import check_same_size, read_image
from probseg.masks import read_labels
from probseg.types import IGNORE

_UNKNOWN = -1


class SemanticSample(NamedTuple):
    """One photograph with a class for each pixel.

    Args:
        image: RGB, uint8, shape `(H, W, 3)`.
        labels: Class numbers, uint8, shape `(H, W)`: from 0 to the number of classes - 1, and
            255 where no class counts.
        name: Identifies the photograph within its data set.
        dataset: Name of the data set, as it appears in log names.
    """

    image: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]
    name: str
    dataset: str


class SemanticDataset(Named, Dataset[SemanticSample], ABC):
    """Base of the data sets: a sequence of photographs, each with a class for every pixel.

    Attributes:
        classes: Names of the classes in the order of their numbers, from 0; at most 255.
    """

    classes: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of photographs."""

    @abstractmethod
    def __getitem__(self, index: int) -> SemanticSample:
        """Return one photograph and its labels."""


class SemanticFiles(SemanticDataset):
    """Base of the data sets that have one file of labels per photograph.

    Label files are read when their photograph is asked for, and their numbers are checked then.

    Args:
        pairs: Photograph and label file; the stem of the photograph identifies it.

    Attributes:
        numbers: Number that the label files have for each of `classes`.
        ignored: Numbers that the label files have where no class counts.
        pairs: As given.
    """

    numbers: Sequence[int]
    ignored: Sequence[int]

    def __init__(self, pairs: Sequence[tuple[Path, Path]]) -> None:
        self.pairs = list(pairs)

    def read_labels(self, path: Path) -> npt.NDArray[np.uint8]:
        """Read the numbers of a label file as they are: uint8, shape `(H, W)`."""
        return read_labels(path)

    def __len__(self) -> int:
        """Return the number of photographs."""
        return len(self.pairs)

    def __getitem__(self, index: int) -> SemanticSample:
        """Read one photograph and its labels.

        Raises:
            DataError: If a file cannot be read, the sizes differ, or the label file has a number
                that stands for nothing.
        """
        photo, path = self.pairs[index]
        image = read_image(photo)
        numbers = self.read_labels(path)
        check_same_size(image.shape, numbers.shape, photo, path)
        labels = class_numbers(numbers, self.numbers, self.ignored, path)
        return SemanticSample(image, labels, photo.stem, self.name)


def class_numbers(
    numbers: npt.NDArray[np.uint8], of_classes: Sequence[int], ignored: Sequence[int], path: Path
) -> npt.NDArray[np.uint8]:
    """Convert the numbers of a label file to class numbers.

    Args:
        numbers: What the file holds, uint8, shape `(H, W)`.
        of_classes: The file's number of class 0, of class 1 and so on.
        ignored: The file's numbers where no class counts.
        path: Named in the error.

    Returns:
        uint8, shape `(H, W)`: 0 to one less than the number of classes, and 255 where ignored.

    Raises:
        DataError: If the file has a number that is in neither list.
    """
    table = np.full(256, _UNKNOWN, np.int16)
    table[list(of_classes)] = np.arange(len(of_classes))
    table[list(ignored)] = IGNORE
    labels = table[numbers]
    if (labels == _UNKNOWN).any():
        strange = np.unique(numbers[labels == _UNKNOWN]).tolist()
        msg = (
            f"{path}: has the label numbers {strange}, expected {_ranges(of_classes)} for the "
            f"classes and {_ranges(ignored)} for ignored pixels; unpack the archive again, and "
            "check that the labels are those of this data set and version"
        )
        raise DataError(msg)
    return labels.astype(np.uint8)


def _ranges(numbers: Sequence[int]) -> str:
    """Write whole numbers in ascending order with runs shortened, e.g. `1..11, 13, 15`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("..".join(map(str, run)) for run in runs)


def listed_pairs(
    listing: Path, photos: tuple[Path, str], labels: tuple[Path, str]
) -> list[tuple[Path, Path]]:
    """Pair the photographs of a list with their label files.

    Args:
        listing: File with a stem at the beginning of each line.
        photos: Folder and suffix of the photographs.
        labels: Folder and suffix of the label files.

    Returns:
        Photograph and label file in the order of the list.

    Raises:
        DataError: If the list is empty or a file that it names is missing.
    """
    stems = first_words(listing)
    if not stems:
        msg = f"{listing}: is empty, expected the name of a photograph on each line; unpack again"
        raise DataError(msg)
    for folder, suffix in (photos, labels):
        there = {path.name for path in folder.iterdir()}  # quicker than a look for every file
        missing = [stem for stem in stems if stem + suffix not in there]
        if missing:
            msg = (
                f"{folder / (missing[0] + suffix)}: no such file, but {listing.name} lists it "
                f"({len(missing)} missing in all); unpack again"
            )
            raise DataError(msg)
    return [(photos[0] / (s + photos[1]), labels[0] / (s + labels[1])) for s in stems]


def folder_pairs(photos: Path, labels: Path) -> list[tuple[Path, Path]]:
    """Pair the photographs of a folder with the label files of another one by their stems.

    Args:
        photos: Folder of the photographs.
        labels: Folder of the label files.

    Returns:
        Photograph and label file in the order of their stems; empty if a folder has none.

    Raises:
        DataError: If a file has no partner, or two files have the same stem.
    """
    of_photos, of_labels = picture_files(photos), picture_files(labels)
    if not of_photos or not of_labels:
        return []
    refuse_missing(labels, "label file", sorted(set(of_photos) - set(of_labels)), photos.name)
    refuse_missing(photos, "photograph", sorted(set(of_labels) - set(of_photos)), labels.name)
    return [(of_photos[stem], of_labels[stem]) for stem in sorted(of_photos)]
