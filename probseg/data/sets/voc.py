"""Objects on photographs of PASCAL VOC: VOC 2012 (Everingham et al. 2010) and SBD.

SBD is by Hariharan, Arbelaez, Bourdev, Maji and Malik (2011).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from probseg.data.base import PublishedDataset, refuse_none
from probseg.data.cache import index_objects
from probseg.data.layout import first_words
from probseg.data.published import SOURCES
from probseg.data.sets.foreign_files import broken_as_data_error, load_known_mat, load_mat
from probseg.errors import DataError
from probseg.images import check_same_size, read_image
from probseg.masks import count_values, object_mask, read_labels
from probseg.types import IGNORE, Sample


class _ListedObjects(PublishedDataset):
    """Base of the sets with a list of photographs, each with a map of numbered objects.

    `objects` has the photograph and the number of each.
    """

    files: ClassVar[tuple[str, str, str]]  # of a photograph, a map and a list; `{}` for the name
    objects: list[tuple[str, int]]

    def _listed(self, split: str) -> list[str]:
        """Return the names of a split, whose photographs are there."""
        path = self.root / self.files[2].format(split)
        folders = [(self.root / file).parent for file in self.files[:2]]
        if not (path.is_file() and all(folder.is_dir() for folder in folders)):
            image, labels = (file.format("<id>") for file in self.files[:2])
            raise self.absent(f"{image}, {labels} and {self.files[2].format(split)}")
        names = first_words(path)
        for file in (file for name in names for file in self._paths(name)):
            if not file.is_file():
                raise DataError(
                    f"{file}: no such file, but {path.name} lists it; unpack the archive again"
                )
        return names

    def _paths(self, name: str) -> tuple[Path, Path]:
        """Return the photograph of a name, and its map."""
        image, labels = (self.root / file.format(name) for file in self.files[:2])
        return image, labels

    @abstractmethod
    def read_mask(self, path: Path, number: int) -> npt.NDArray[np.uint8]:
        """Read an object of a map: 1 on it, 0 elsewhere, 255 ignored."""

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Sample:
        """Read one object and its photograph."""
        name, number = self.objects[index]
        image_path, label_path = self._paths(name)
        image = read_image(image_path)
        mask = self.read_mask(label_path, number)
        check_same_size(image.shape, mask.shape, image_path, label_path)
        return Sample(image, mask, self.object_name(index), self.name, name)

    def object_name(self, index: int) -> str:
        """Return the photograph and the number of an object."""
        name, number = self.objects[index]
        return f"{name}#{number}"


class PascalVOC(_ListedObjects):
    """Instances of PASCAL VOC 2012 as objects: 3422 on the 1449 photographs for validation.

    Layout: `JPEGImages/<id>.jpg`, the palette files `SegmentationObject/<id>.png` and the lists
    `ImageSets/Segmentation/<split>.txt`. A file's palette indices, not its colours, are the
    numbers of the objects: 0 is background and 255 a band along contours and what nobody had to
    draw, which is ignored. The other objects of a photograph are background. All label files of the
    split are read once when the data set is built, to list their numbers; for `val` this takes a
    few seconds. SBD's split `train` has 545 of the photographs of `val`.

    Args:
        split: `"val"`, `"train"` or `"trainval"`.
        root: The folder `VOC2012`; by default `VOCdevkit/VOC2012`, `VOC2012` or `PascalVOC`
            inside `$PROBSEG_DATA` or `./data`.
    """

    name = "PascalVOC"
    source = SOURCES["PascalVOC"]
    licence = source.licence
    files = (
        "JPEGImages/{}.jpg",
        "SegmentationObject/{}.png",
        "ImageSets/Segmentation/{}.txt",
    )

    def __init__(
        self, split: Literal["val", "train", "trainval"] = "val", root: Path | str | None = None
    ) -> None:
        self.root = self.source.folder(root)
        self.objects = []
        for name in self._listed(split):
            areas = count_values(read_labels(self._paths(name)[1]))
            self.objects += [(name, int(n)) for n in np.flatnonzero(areas[1:IGNORE]) + 1]
        refuse_none(self.objects, self.root, f"object in split {split!r}")

    def read_mask(self, path: Path, number: int) -> npt.NDArray[np.uint8]:
        """Read an object of a palette file."""
        return object_mask(read_labels(path), number)


class SBD(_ListedObjects):
    """Instances on photographs of PASCAL VOC: 20172 for training and 6671 for validation.

    Layout: `img/<id>.jpg`, `inst/<id>.mat` and the lists `<split>.txt`, in the folder itself
    or in its `benchmark_RELEASE/dataset`. All `.mat` files of the split are read when the data
    set is built for the first time, to count the pixels of the instances; for `train` this takes
    about half a minute. What was found is kept in a folder `.probseg` until a file changes.

    Args:
        split: `"train"`, `"val"`, or `"train_noval"`, which has no image of the validation
            set of PASCAL VOC 2012: `train` shares 545 images with it, which must not be trained
            on if the model is tested there.
        root: The folder; by default `SBD` or `sbd` inside `$PROBSEG_DATA` or `./data`.
        min_area: Instances with fewer pixels are left out; none by default.
    """

    name = "SBD"
    source = SOURCES["SBD"]
    licence = source.licence
    files = ("img/{}.jpg", "inst/{}.mat", "{}.txt")

    def __init__(
        self,
        split: Literal["train", "val", "train_noval"] = "train",
        root: Path | str | None = None,
        min_area: int = 0,
    ) -> None:
        top = self.source.folder(root)
        inner = top / "benchmark_RELEASE" / "dataset"
        self.root = inner if inner.is_dir() else top

        def count(path: Path) -> npt.NDArray[np.int64]:
            return count_values(_instances(path, load_mat)) * (np.arange(256) > 0)

        maps = [self._paths(name)[1] for name in self._listed(split)]
        rows = index_objects(f"sbd-{split}", self.root, count, maps, maps)
        large = [(path.stem, number, area) for path, number, area in rows if area >= min_area]
        self.objects = [(name, number) for name, number, _ in large]
        self._areas = np.array([area for _, _, area in large], np.int64)
        size = f"object of at least {min_area} pixels (`min_area`)"
        refuse_none(self.objects, self.root, f"{size} in split {split!r}")

    def read_mask(self, path: Path, number: int) -> npt.NDArray[np.uint8]:
        """Read an instance of a file that was counted."""
        mask: npt.NDArray[np.uint8] = (_instances(path, load_known_mat) == number).astype(np.uint8)
        return mask


def _instances(path: Path, load: Callable[[Path, str], Any]) -> npt.NDArray[np.uint8]:
    """Read the instance numbers `(H, W)`, 0 being the background."""
    expected = "instances, expected a struct GTinst with the field Segmentation"
    with broken_as_data_error(path, expected):
        labels = np.asarray(load(path, "GTinst")["Segmentation"][0, 0])
    whole = labels.ndim == 2 and np.issubdtype(labels.dtype, np.integer)
    if not whole or not labels.size or labels.min() < 0 or labels.max() > 255:
        raise DataError(
            f"{path}: expected instances as whole numbers in 0..255 of shape (H, W), got "
            f"{labels.dtype} of shape {labels.shape}; unpack the archive again"
        )
    return labels.astype(np.uint8)
