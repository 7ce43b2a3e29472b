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
from probseg.data.layout import chosen_root, first_words, picture_files, refuse_missing
from probseg.errors import DataError, DatasetNotFoundError
from probseg.images import check_same_size, read_image
from probseg.masks import read_labels
from probseg.types import IGNORE

Pair = tuple[Path, Path]  # photograph and label file

_UNKNOWN = -1


class SemanticSample(NamedTuple):
    """One photograph with a class for each pixel."""

    image: npt.NDArray[np.uint8]  # RGB, (H, W, 3)
    labels: npt.NDArray[np.uint8]  # class numbers, and 255 where no class counts, (H, W)
    name: str  # within its data set
    dataset: str  # its name, as in log names


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
    The stem of the photograph identifies it.
    """

    places: tuple[str, ...]  # of the folder inside of that of all data
    numbers: Sequence[int]  # that the label files have for each of `classes`
    ignored: Sequence[int]  # that they have where no class counts
    pairs: list[Pair]

    def __init__(self, root: Path | str | None) -> None:
        self.root = chosen_root(root, *self.places)

    def listed(self, photos: str, labels: str, listing: str, hint: str) -> list[Pair]:
        """Pair the photographs of a list, `folder/<id>.jpg`, with their label files.

        `hint` says what to do if the list or a folder is missing.
        """
        patterns, path = [self.root / photos, self.root / labels], self.root / listing
        if not (path.is_file() and all(pattern.parent.is_dir() for pattern in patterns)):
            expected = f"{photos}, {labels} and {listing}"
            raise DatasetNotFoundError(self.name, self.root, expected, hint)
        stems = first_words(path)
        if not stems:
            raise DataError(
                f"{path}: is empty, expected the name of a photograph on each line; unpack again"
            )
        for pattern in patterns:
            there = {file.name for file in pattern.parent.iterdir()}  # quicker than a look for each
            missing = [stem for stem in stems if stem + pattern.suffix not in there]
            if missing:
                raise DataError(
                    f"{pattern.parent / (missing[0] + pattern.suffix)}: no such file, but "
                    f"{path.name} lists it ({len(missing)} missing in all); unpack again"
                )
        photo, label = patterns
        return [
            (photo.parent / (stem + photo.suffix), label.parent / (stem + label.suffix))
            for stem in stems
        ]

    def paired(self, photos: str, labels: str, hint: str) -> list[Pair]:
        """Pair the photographs of a folder with the label files of another one by their stems."""
        of_photos, of_labels = picture_files(self.root / photos), picture_files(self.root / labels)
        if not of_photos or not of_labels:
            expected = f"{photos}/<id>.jpg or .png, and {labels}/<id>.png"
            raise DatasetNotFoundError(self.name, self.root, expected, hint)
        lacking, alone = set(of_photos) - set(of_labels), set(of_labels) - set(of_photos)
        refuse_missing(self.root / labels, "label file", sorted(lacking), Path(photos).name)
        refuse_missing(self.root / photos, "photograph", sorted(alone), Path(labels).name)
        return [(of_photos[stem], of_labels[stem]) for stem in sorted(of_photos)]

    def read_labels(self, path: Path) -> npt.NDArray[np.uint8]:
        """Read the numbers of a label file as they are: uint8, shape `(H, W)`."""
        return read_labels(path)

    def __len__(self) -> int:
        """Return the number of photographs."""
        return len(self.pairs)

    def __getitem__(self, index: int) -> SemanticSample:
        """Read one photograph and its labels, whose numbers must be known."""
        photo, path = self.pairs[index]
        image = read_image(photo)
        numbers = self.read_labels(path)
        check_same_size(image.shape, numbers.shape, photo, path)
        labels = class_numbers(numbers, self.numbers, self.ignored, path)
        return SemanticSample(image, labels, photo.stem, self.name)


def class_numbers(
    numbers: npt.NDArray[np.uint8], of_classes: Sequence[int], ignored: Sequence[int], path: Path
) -> npt.NDArray[np.uint8]:
    """Convert the numbers `(H, W)` of a label file to those of the classes, and 255 where ignored.

    `of_classes` are the file's numbers of class 0, of class 1 and so on.
    """
    table = np.full(256, _UNKNOWN, np.int16)
    table[list(of_classes)] = np.arange(len(of_classes))
    table[list(ignored)] = IGNORE
    labels = table[numbers]
    if (labels == _UNKNOWN).any():
        strange = np.unique(numbers[labels == _UNKNOWN]).tolist()
        raise DataError(
            f"{path}: has the label numbers {strange}, expected {_ranges(of_classes)} for the "
            f"classes and {_ranges(ignored)} for ignored pixels; unpack the archive again, and "
            "check that the labels are those of this data set and version"
        )
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
