"""Open Images (Kuznetsova et al. 2020; Benenson, Popov and Ferrari 2019): 2.8 million masks."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from probseg.data.base import InteractiveDataset, refuse_none
from probseg.data.cache import cached, plain_name, read_all
from probseg.data.layout import chosen_root
from probseg.errors import DataError, DatasetNotFoundError
from probseg.images import image_size, read_image
from probseg.masks import read_labels
from probseg.texts import open_text
from probseg.types import Sample

_logger = logging.getLogger(__name__)

SHAPES = 1.02  # largest ratio between the proportions of a mask and of its image

COLUMNS = ("MaskPath", "ImageID")

KEPT = ("mask", "photo", "area")  # names of the arrays that are kept


class OpenImages(InteractiveDataset):
    """Objects of Open Images with a mask: 2.7 million for training, 24730 for validation.

    Layout: `<split>/images/<ImageID>.jpg`, `<split>/masks/<MaskPath>` or, as the archives have
    a first letter each, `<split>/masks/<0..f>/<MaskPath>`, and the official
    `<split>-annotations-object-segmentation.csv` in the folder of the split or next to it. In a
    mask, all that is not 0 is the object. A mask may have another size than its image and is
    brought to that of the image, by taking for each pixel the nearest one. Masks without the
    proportions of their image, as where one of them was turned, are left out, and a warning in
    the log counts them.

    When the data set is built for the first time all masks and the sizes of all images are read,
    for `train` in about half an hour on eight cores, and kept in a folder `.probseg`. Files
    that are replaced in place later on are not noticed; delete `.probseg` then.

    Args:
        split: `"train"`, `"validation"` or `"test"`.
        root: The folder with the folders of the splits; by default `OpenImages` or
            `open_images` inside `$PROBSEG_DATA` or `./data`.
        min_area: Objects with fewer pixels of the image are left out.
    """

    name = "OpenImages"
    licence = "annotations CC BY 4.0; photographs listed as CC BY 2.0"

    def __init__(
        self,
        split: Literal["train", "validation", "test"] = "train",
        root: Path | str | None = None,
        min_area: int = 400,
    ) -> None:
        top = chosen_root(root, "OpenImages", "open_images")
        self.root = top / split
        file = f"{split}-annotations-object-segmentation.csv"
        listed = next((p / file for p in (self.root, top) if (p / file).is_file()), None)
        folders = [self.root / "images", self.root / "masks"]
        if listed is None or not all(folder.is_dir() for folder in folders):
            raise DatasetNotFoundError(
                self.name,
                top,
                f"{split}/images/<ImageID>.jpg, {split}/masks/<MaskPath> and {split}/{file}",
                "Download them from https://storage.googleapis.com/openimages/web/"
                "download_v7.html, unpack them into this layout, and pass the folder as `root` or "
                "set PROBSEG_DATA to the folder that holds it as OpenImages.",
            )
        inner = sorted(path for path in folders[1].iterdir() if path.is_dir())
        build = partial(_build, listed, self.root, f"{self.name} {split}")
        sources = [listed, *folders, *inner]
        options = {"split": split, "columns": " ".join(KEPT)}
        self.index = cached("open-images", sources, options, build, self.root)
        self.rows = np.flatnonzero(self.index["area"] >= max(min_area, 1))
        refuse_none(self.rows, listed, f"object of at least {min_area} pixels (`min_area`)")
        self._areas = self.index["area"][self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Read one object and its image."""
        row = self.rows[index]
        photo = self.index["photo"][row].decode()
        path = self.root / "images" / f"{photo}.jpg"
        image = read_image(path)
        height, width = image.shape[:2]
        mask_path = _mask_path(self.root, self.index["mask"][row].decode())
        mask = _read_mask(mask_path, (height, width))
        if mask is None:
            raise DataError(
                f"{mask_path}: does not have the proportions of its image {path} ({width} x "
                f"{height}); replace one of them"
            )
        return Sample(image, mask, self.object_name(index), self.name, photo)

    def object_name(self, index: int) -> str:
        """Return the name of a mask without its suffix."""
        return Path(self.index["mask"][self.rows[index]].decode()).stem


def _build(listed: Path, root: Path, what: str) -> Mapping[str, npt.NDArray[Any]]:
    """Read the list and all masks."""
    masks, photos = _read_list(listed)

    def area(row: int) -> int:
        image = root / "images" / f"{photos[row].decode()}.jpg"
        mask = _read_mask(_mask_path(root, masks[row].decode()), image_size(image))
        return -1 if mask is None else int(mask.sum())

    areas = np.fromiter(read_all(area, range(len(masks)), what), np.int64, len(masks))
    odd = np.flatnonzero(areas < 0)
    if len(odd):
        _logger.warning(
            "%d masks of %s are left out, as they do not have the proportions of their images, "
            "among them %s",
            *(len(odd), what, _mask_path(root, masks[odd[0]].decode())),
        )
    return dict(zip(KEPT, (masks, photos, areas.clip(min=0)), strict=True))


def _read_list(path: Path) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.bytes_]]:
    """Read the names of masks and of their images."""
    masks, photos = [], []
    try:
        with open_text(path, "download it again") as file:
            for row in csv.DictReader(file):
                names = [row[column] for column in COLUMNS]
                if not all(plain_name(name) for name in names):
                    raise TypeError(f"{names} are not file names")
                masks.append(names[0].encode())
                photos.append(names[1].encode())
        if not masks:
            raise TypeError("it has no mask")
    except (KeyError, TypeError, AttributeError, csv.Error) as error:
        raise DataError(
            f"{path}: cannot be read as a list with the columns {', '.join(COLUMNS)} ({error!r}); "
            "download it again"
        ) from error
    return np.array(masks), np.array(photos)


def _mask_path(root: Path, name: str) -> Path:
    """Find a mask, in the folder of its first letter if there is one."""
    direct = root / "masks" / name
    return direct if direct.is_file() else root / "masks" / name[0] / name


def _read_mask(path: Path, size: tuple[int, int]) -> npt.NDArray[np.uint8] | None:
    """Read a mask as uint8 of a size `(H, W)`: 1 on the object and 0 elsewhere.

    None if it has other proportions.
    """
    mask = (read_labels(path) > 0).astype(np.uint8)
    low, high = sorted(height / width for height, width in (mask.shape, size))
    if high / low > SHAPES:
        return None
    if mask.shape == size:
        return mask
    return np.asarray(Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST)).copy()
