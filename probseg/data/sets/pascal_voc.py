"""PASCAL VOC 2012 (Everingham et al. 2010): objects of 20 categories, drawn one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from probseg.data.base import PublishedDataset
from probseg.data.layout import first_words
from probseg.data.published import SOURCES
from probseg.errors import DataError
from probseg.images import check_same_size, read_image
from probseg.masks import object_mask, read_labels
from probseg.object_numbers import count_values
from probseg.types import IGNORE, Sample


class PascalVOC(PublishedDataset):
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

    def __init__(
        self, split: Literal["val", "train", "trainval"] = "val", root: Path | str | None = None
    ) -> None:
        self.root = self.source.folder(root)
        self.objects: list[tuple[str, int]] = []  # image, palette index
        for name in self._listed(split):
            missing = [p for p in (self._image(name), self._labels(name)) if not p.is_file()]
            if missing:
                raise DataError(
                    f"{missing[0]}: no such file, but {split}.txt lists it; unpack again"
                )
            areas = count_values(read_labels(self._labels(name)))
            numbers = np.flatnonzero(areas[1:IGNORE]) + 1
            self.objects += [(name, int(number)) for number in numbers]
        if not self.objects:
            raise DataError(f"{self.root}: no object in split {split!r}; unpack the archive again")

    def _listed(self, split: str) -> list[str]:
        path = self.root / "ImageSets" / "Segmentation" / f"{split}.txt"
        folders = ("JPEGImages", "SegmentationObject")
        if not (path.is_file() and all((self.root / folder).is_dir() for folder in folders)):
            expected = (
                "JPEGImages/<id>.jpg, SegmentationObject/<id>.png and "
                f"ImageSets/Segmentation/{split}.txt"
            )
            raise self.absent(expected)
        return first_words(path)

    def _image(self, name: str) -> Path:
        return self.root / "JPEGImages" / f"{name}.jpg"

    def _labels(self, name: str) -> Path:
        return self.root / "SegmentationObject" / f"{name}.png"

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Sample:
        """Read one instance and its photograph."""
        name, number = self.objects[index]
        image = read_image(self._image(name))
        labels = read_labels(self._labels(name))
        check_same_size(image.shape, labels.shape, self._image(name), self._labels(name))
        mask = object_mask(labels, number)
        return Sample(image, mask, self.object_name(index), self.name, name)

    def object_name(self, index: int) -> str:
        """Return the photograph and the number of an instance."""
        name, number = self.objects[index]
        return f"{name}#{number}"
