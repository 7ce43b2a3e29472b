"""BSDS500 (Arbelaez, Maire, Fowlkes and Malik 2011): segments drawn by several people."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from probseg.data.base import PublishedDataset
from probseg.data.lists import names_to_leave_out
from probseg.data.published import SOURCES
from probseg.data.reading import index_objects
from probseg.errors import DataError, DatasetNotFoundError
from probseg.images import check_same_size, read_image
from probseg.masks import read_labels
from probseg.object_numbers import count_values
from probseg.types import Sample, read_only


class BSDS500(PublishedDataset):
    """Segments by several people, as objects: 7665 on 155 photographs for training.

    Layout: `images/<split>/<id>.jpg` and `labels/<split>/<id>_a<k>.png`, one map of region
    numbers (from 1) per annotator. All maps of the split are read when the data set is built for
    the first time; what was found is kept in a folder `.probseg` until a file changes.

    Args:
        split: `"train"`, `"val"` or `"test"`.
        root: The folder; by default `bsds500` inside `$PROBSEG_DATA` or `./data`.
        exclude: File whose first column lists the `<id>` of the images to leave
            out, relative to `root`: GrabCut and Berkeley share 99 images with BSDS500, which
            must not be trained on.
        min_fraction: Smallest region used, as a fraction of the image.
        max_fraction: Largest region used, as a fraction of the image.

    Raises:
        DatasetNotFoundError: If the folders are not there.
        DataError: If an image has no label map or nothing is left after selection.
    """

    name = "BSDS500"
    source = SOURCES["BSDS500"]
    licence = source.licence

    def __init__(
        self,
        split: Literal["train", "val", "test"] = "train",
        root: Path | str | None = None,
        exclude: str | None = "splits/exclude_from_training.tsv",
        min_fraction: float = 0.005,
        max_fraction: float = 0.5,
    ) -> None:
        self.root = self.source.folder(root)
        images = sorted((self.root / "images" / split).glob("[!.]*.jpg"))
        if not images:
            raise DatasetNotFoundError(
                self.name,
                self.root,
                f"images/{split}/<id>.jpg and labels/{split}/<id>_a<k>.png",
                self.source.way_out(self.name),
            )
        unwanted = self._excluded(exclude)
        wanted = [image for image in images if image.stem not in unwanted]
        pairs = [(image, path) for image in wanted for path in self._maps(split, image)]
        found = index_objects(
            f"bsds500-{split}",
            self.root,
            lambda pair: _count(pair[1], min_fraction, max_fraction),
            pairs,
            (path for _, path in pairs),
            min_fraction=min_fraction,
            max_fraction=max_fraction,
        )
        self.objects = [(*pair, number) for pair, number, _ in found]  # image, label map, region
        self._areas = np.array([area for *_, area in found], np.int64)
        if not self.objects:
            msg = f"{self.root}: no region is left in split {split!r} after selection"
            raise DataError(msg)

    def _maps(self, split: str, image: Path) -> list[Path]:
        place = self.root / "labels" / split
        maps = sorted(place.glob(f"{image.stem}_a*.png"))
        if not maps:
            msg = (
                f"{place}: no label map {image.stem}_a<k>.png for {image}; add it or remove the "
                "image"
            )
            raise DataError(msg)
        return maps

    def _excluded(self, exclude: str | None) -> set[str]:
        if exclude is None:
            return set()
        path = self.root / exclude
        if not path.is_file():
            msg = (
                f"{path}: no such list; pass exclude=None if the model will not be tested on "
                "GrabCut or Berkeley, whose images are among those of BSDS500"
            )
            raise DataError(msg)
        photos = (self.root / "images").glob("*/[!.]*.jpg")  # the list is one for all splits
        known = [("bsds_id", None), *((photo.stem, photo) for photo in photos)]  # and the heading
        return names_to_leave_out(path, "exclude", known, self.name)

    def __len__(self) -> int:
        """Return the number of regions."""
        return len(self.objects)

    def __getitem__(self, index: int) -> Sample:
        """Read one region and its image."""
        image_path, label_path, number = self.objects[index]
        image = read_image(image_path)
        labels = read_labels(label_path)
        check_same_size(image.shape, labels.shape, image_path, label_path)
        mask = (labels == number).astype(np.uint8)
        return Sample(image, mask, self.object_name(index), self.name, image_path.stem)

    @property
    def areas(self) -> npt.NDArray[np.int64]:
        """Pixels of each region, shape `(len(self),)`."""
        return read_only(self._areas)

    def object_name(self, index: int) -> str:
        """Return the stem of a label map and the number of a region."""
        _, label_path, number = self.objects[index]
        return f"{label_path.stem}#{number}"


def _count(path: Path, min_fraction: float, max_fraction: float) -> npt.NDArray[np.int64]:
    """Count the pixels of each region of a map whose share of the map is within bounds."""
    labels = read_labels(path)
    areas = count_values(labels)
    share = areas / labels.size
    areas[(share < min_fraction) | (share > max_fraction)] = 0
    areas[0] = 0
    return areas
