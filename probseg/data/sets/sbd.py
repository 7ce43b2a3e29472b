"""SBD (Hariharan, Arbelaez, Bourdev, Maji and Malik 2011): objects on PASCAL VOC photographs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from probseg.data.base import PublishedDataset
from probseg.data.layout import first_words
from probseg.data.published import SOURCES
from probseg.data.reading import index_objects
from probseg.data.sets.mat_files import broken_as_data_error, load_known_mat, load_mat
from probseg.errors import DataError
from probseg.images import check_same_size, read_image
from probseg.object_numbers import count_values
from probseg.types import Sample


class SBD(PublishedDataset):
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

    def __init__(
        self,
        split: Literal["train", "val", "train_noval"] = "train",
        root: Path | str | None = None,
        min_area: int = 0,
    ) -> None:
        top = self.source.folder(root)
        inner = top / "benchmark_RELEASE" / "dataset"
        self.root = inner if inner.is_dir() else top
        names = self._listed(split)
        for name in names:
            image = self.root / "img" / f"{name}.jpg"
            if not image.is_file():
                raise DataError(
                    f"{image}: no such file, but {split}.txt lists it; unpack the archive again"
                )
        maps = [self.root / "inst" / f"{name}.mat" for name in names]
        rows = index_objects(f"sbd-{split}", self.root, _count, maps, maps)
        large = [(path.stem, number, area) for path, number, area in rows if area >= min_area]
        self.objects = [(name, number) for name, number, _ in large]  # image, instance
        self._areas = np.array([area for _, _, area in large], np.int64)
        if not self.objects:
            size = f" of at least {min_area} pixels (`min_area`)" if min_area else ""
            raise DataError(
                f"{self.root}: no object{size} in split {split!r}; unpack the archive again"
            )

    def _listed(self, split: str) -> list[str]:
        path = self.root / f"{split}.txt"
        if not (path.is_file() and all((self.root / f).is_dir() for f in ("img", "inst"))):
            expected = f"img/<id>.jpg, inst/<id>.mat and {split}.txt"
            raise self.absent(expected)
        return first_words(path)

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Sample:
        """Read one instance and its image."""
        name, number = self.objects[index]
        image_path = self.root / "img" / f"{name}.jpg"
        label_path = self.root / "inst" / f"{name}.mat"
        image = read_image(image_path)
        labels = _instances(label_path, load_known_mat)  # of a file that was counted
        check_same_size(image.shape, labels.shape, image_path, label_path)
        mask = (labels == number).astype(np.uint8)
        return Sample(image, mask, self.object_name(index), self.name, name)

    def object_name(self, index: int) -> str:
        """Return the image and the number of an instance."""
        name, number = self.objects[index]
        return f"{name}#{number}"


def _count(path: Path) -> npt.NDArray[np.int64]:
    areas = count_values(_instances(path, load_mat))
    areas[0] = 0
    return areas


def _instances(path: Path, load: Callable[[Path, str], Any]) -> npt.NDArray[np.uint8]:
    """Read the instance numbers `(H, W)`, 0 being the background."""
    if not path.is_file():
        raise DataError(f"{path}: no such file, but its image is listed; unpack the archive again")
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
