"""Images and masks of the same names in two folders, one object to a mask."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from probseg.data.base import InteractiveDataset, PublishedDataset
from probseg.data.cache import index_objects
from probseg.data.layout import picture_files, refuse_missing
from probseg.errors import DatasetNotFoundError
from probseg.images import check_same_size, image_size, read_image
from probseg.masks import RULES, read_grey
from probseg.paths import find_data
from probseg.picture_formats import IMAGE_SUFFIXES, LOSSLESS_SUFFIXES
from probseg.types import Sample


class ImageMaskPairs(PublishedDataset):
    """Base of the test sets in two folders; every mask has an image and every image a mask.

    `pairs` has image and mask of each object, in the order of the masks' names.
    """

    image_folder: str
    mask_folder: str

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = self.source.folder(root)
        images, masks = (self._files(folder) for folder in (self.image_folder, self.mask_folder))
        owners = {stem: stem if stem in images else self.photo(stem) for stem in masks}
        strangers = sorted(stem for stem, owner in owners.items() if owner not in images)
        refuse_missing(self.root / self.image_folder, "image", strangers, self.mask_folder)
        unused = sorted(set(images) - set(owners.values()))
        refuse_missing(self.root / self.mask_folder, "mask", unused, self.image_folder)
        self.pairs = [(images[owners[stem]], masks[stem]) for stem in sorted(masks)]

    def _files(self, folder: str) -> dict[str, Path]:
        files = picture_files(self.root / folder)
        if not files:
            expected = f"the folders {self.image_folder}/ (images) and {self.mask_folder}/ (masks)"
            raise self.absent(expected)
        return files

    @staticmethod
    def photo(stem: str) -> str:
        """Identify the photograph of a mask, given the name of the mask."""
        return stem

    @staticmethod
    @abstractmethod
    def read_mask(path: Path) -> npt.NDArray[np.uint8]:
        """Read a mask: uint8, shape `(H, W)`, 1 object, 0 background, 255 ignored."""

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        """Read one object and its photograph."""
        image_path, mask_path = self.pairs[index]
        image = read_image(image_path)
        mask = self.read_mask(mask_path)
        check_same_size(image.shape, mask.shape, image_path, mask_path)
        stem = self.object_name(index)
        return Sample(image, mask, stem, self.name, self.photo(stem))

    def object_name(self, index: int) -> str:
        """Return the stem of a mask."""
        return self.pairs[index][1].stem


class ImagePairs(InteractiveDataset):
    """Images `<stem>.jpg` and masks `<stem>.png` with one object each, named by two folders.

    Grey values above 128 are the object and nothing is ignored. Both folders may be the same; a
    file is then a mask if its format is lossless, else an image. All masks and the sizes of all
    images are read once, when the data set is built for the first time, so that a bad file is named
    before training starts. For numbered objects, ignored pixels or several masks to an image there
    is `ImageMaskFolder`.

    Args:
        images: Folder of the images; a relative path that does not exist is looked for in
            `$PROBSEG_DATA` (or `./data`).
        masks: Folder of the masks; likewise.
        name: Name of the data set in tables and logs.
    """

    name = "ImagePairs"

    def __init__(self, images: Path | str, masks: Path | str, name: str = "ImagePairs") -> None:
        self.name = name
        self.images, self.masks = find_data(images), find_data(masks)
        lossy = tuple(suffix for suffix in IMAGE_SUFFIXES if suffix not in LOSSLESS_SUFFIXES)
        mixed = self.images == self.masks
        owners = _files(self.images, lossy if mixed else IMAGE_SUFFIXES, name)
        mask_files = _files(self.masks, LOSSLESS_SUFFIXES, name)
        refuse_missing(self.images, "image", sorted(set(mask_files) - set(owners)), self.masks.name)
        refuse_missing(self.masks, "mask", sorted(set(owners) - set(mask_files)), self.images.name)
        self.pairs = [(owners[stem], mask_files[stem]) for stem in sorted(mask_files)]

        def count(pair: tuple[Path, Path]) -> npt.NDArray[np.int64]:
            image, mask = pair
            inside = read_grey(mask) > 128
            check_same_size(image_size(image), inside.shape, image, mask)
            return np.array([0, inside.sum()])  # of number 1 of a map

        files = (path for pair in self.pairs for path in pair)
        rows = index_objects("pairs", self.masks, count, self.pairs, files, rules=RULES)
        self._areas = np.array([area for *_, area in rows], np.int64)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        """Read one object and its image."""
        image_path, mask_path = self.pairs[index]
        image = read_image(image_path)
        mask = (read_grey(mask_path) > 128).astype(np.uint8)
        check_same_size(image.shape, mask.shape, image_path, mask_path)
        name = self.object_name(index)
        return Sample(image, mask, name, self.name, name)

    def object_name(self, index: int) -> str:
        """Return the stem of a mask."""
        return self.pairs[index][1].stem


def _files(folder: Path, suffixes: Sequence[str], name: str) -> dict[str, Path]:
    """Map the stems of the files of some formats in a folder to their paths."""
    files = picture_files(folder, suffixes)
    if not files:
        raise DatasetNotFoundError(
            name,
            folder,
            f"files with one of the suffixes {', '.join(suffixes)}",
            "Check the names of the folders and whether everything is unpacked.",
        )
    return files
