"""Test sets that are a folder of images and a folder of masks, one object to a mask."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from probseg.data.base import PublishedDataset
from probseg.data.layout import picture_files, refuse_missing
from probseg.errors import DatasetNotFoundError
from probseg.images import check_same_size, read_image
from probseg.types import Sample


class ImageMaskPairs(PublishedDataset):
    """Base of the test sets in two folders; every mask has an image and every image a mask.

    Args:
        root: The folder with both; by default the one that `Source.folder` finds.

    Attributes:
        image_folder: Name of the folder of images.
        mask_folder: Name of the folder of masks.
        pairs: Image and mask of each object, in the order of the masks' names.

    Raises:
        DatasetNotFoundError: If the folders are not there.
        DataError: If images and masks do not pair up or two files have the same stem.
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
        found = picture_files(self.root / folder)
        if not found:
            layout = f"the folders {self.image_folder}/ (images) and {self.mask_folder}/ (masks)"
            way_out = self.source.way_out(self.name)
            raise DatasetNotFoundError(self.name, self.root, layout, way_out)
        return found

    @staticmethod
    def photo(stem: str) -> str:
        """Identify the photograph of a mask, given the name of the mask."""
        return stem

    @staticmethod
    @abstractmethod
    def read_mask(path: Path) -> npt.NDArray[np.uint8]:
        """Read a mask: uint8, shape `(H, W)`, 1 object, 0 background, 255 ignored."""

    def __len__(self) -> int:
        """Return the number of objects."""
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
