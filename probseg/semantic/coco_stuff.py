"""COCO-Stuff (Caesar, Uijlings and Ferrari 2018): COCO photographs in 171 classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from probseg.data.layout import chosen_root
from probseg.data.sets.mat_files import broken_as_data_error, load_mat
from probseg.errors import DatasetNotFoundError
from probseg.semantic.class_names import COCO_STUFF, VOC
from probseg.semantic.dataset import SemanticFiles, SemanticSample, folder_pairs, listed_pairs
from probseg.types import IGNORE

_UNUSED = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)
"""Categories of COCO, 1 to 182, without any label."""

_CATEGORIES = tuple(number for number in range(1, 183) if number not in _UNUSED)


class COCOStuff10k(SemanticFiles):
    """COCO-Stuff 10k: 9000 photographs of COCO 2014 for training and 1000 for testing.

    Layout, as version 1.1 is distributed: `images/<id>.jpg`, `annotations/<id>.mat` whose field
    `S` has the labels, and `imageLists/<split>.txt`. Labels are COCO's categories from 1 to
    182, of which 171 are used; 0 is unlabelled, which is ignored.

    Args:
        split: `"train"` or `"test"`.
        root: The folder; by default `coco_stuff10k`, `cocostuff-10k-v1.1` or `COCOStuff10k`
            inside `$PROBSEG_DATA` or `./data`.

    Raises:
        DatasetNotFoundError: If the list or the folders are not there.
        DataError: If a listed photograph or its labels are missing.
    """

    name = "COCOStuff10k"
    classes: tuple[str, ...] = COCO_STUFF
    numbers = _CATEGORIES
    ignored = (0,)

    def __init__(
        self, split: Literal["train", "test"] = "train", root: Path | str | None = None
    ) -> None:
        self.root = chosen_root(root, "coco_stuff10k", "cocostuff-10k-v1.1", "COCOStuff10k")
        listing = self.root / "imageLists" / f"{split}.txt"
        photos, labels = self.root / "images", self.root / "annotations"
        if not (listing.is_file() and photos.is_dir() and labels.is_dir()):
            raise DatasetNotFoundError(
                self.name,
                self.root,
                f"images/<id>.jpg, annotations/<id>.mat and imageLists/{split}.txt",
                "Download http://calvin.inf.ed.ac.uk/wp-content/uploads/data/cocostuffdataset/"
                "cocostuff-10k-v1.1.zip, unpack it, and pass its folder as `root` or set "
                "PROBSEG_DATA to the folder that holds it as coco_stuff10k.",
            )
        super().__init__(listed_pairs(listing, (photos, ".jpg"), (labels, ".mat")))

    def read_labels(self, path: Path) -> npt.NDArray[np.uint8]:
        """Read the categories of a `.mat` file: uint8, shape `(H, W)`."""
        expected = "labels, expected a field S with whole numbers in 0..182 for every pixel"
        with broken_as_data_error(path, expected):
            values = np.asarray(load_mat(path, "S"))
            numbers = values.astype(np.uint8)
            if values.ndim != 2 or (numbers != values).any():
                msg = f"got {values.dtype} of shape {values.shape}"
                raise ValueError(msg)
        return numbers


class COCOStuff164k(SemanticFiles):
    """COCO-Stuff 164k: 118287 photographs of COCO 2017 for training and 5000 for validation.

    Layout: `images/<split>2017/<id>.jpg` and `annotations/<split>2017/<id>.png`, the pixel maps
    of `stuffthingmaps_trainval2017.zip`. Their labels are COCO's categories less one: 0 to 181,
    of which 171 are used; 255 is unlabelled, which is ignored. The classes are those of
    `COCOStuff10k`.

    Args:
        split: `"train"` or `"val"`.
        root: The folder; by default `coco_stuff164k` or `COCOStuff164k` inside
            `$PROBSEG_DATA` or `./data`.

    Raises:
        DatasetNotFoundError: If the folders of the split are not there.
        DataError: If photographs and labels do not pair up.
    """

    name = "COCOStuff164k"
    classes: tuple[str, ...] = COCO_STUFF
    numbers = tuple(category - 1 for category in _CATEGORIES)
    ignored = (255,)

    def __init__(
        self, split: Literal["train", "val"] = "train", root: Path | str | None = None
    ) -> None:
        self.root = chosen_root(root, "coco_stuff164k", "COCOStuff164k")
        part = f"{split}2017"
        pairs = folder_pairs(self.root / "images" / part, self.root / "annotations" / part)
        if not pairs:
            raise DatasetNotFoundError(
                self.name,
                self.root,
                f"images/{part}/<id>.jpg and annotations/{part}/<id>.png",
                f"Download {part}.zip from https://cocodataset.org/#download and "
                "http://calvin.inf.ed.ac.uk/wp-content/uploads/data/cocostuffdataset/"
                "stuffthingmaps_trainval2017.zip, unpack them to images/ and annotations/, and "
                "pass the folder that holds both as `root` or set PROBSEG_DATA to the folder that "
                "holds it as coco_stuff164k.",
            )
        super().__init__(pairs)


class COCOObjects(COCOStuff164k):
    """COCO 2017 in the 21 classes of PASCAL VOC, to train on before VOC.

    Layout: that of `COCOStuff164k`, whose other classes are background here.

    Args:
        split: `"train"` or `"val"`.
        root: As for `COCOStuff164k`.

    Raises:
        DatasetNotFoundError: If the folders of the split are not there.
        DataError: If photographs and labels do not pair up.
    """

    name = "COCOObjects"
    classes = VOC

    def __getitem__(self, index: int) -> SemanticSample:
        """Read one photograph and its labels.

        Raises:
            DataError: As `COCOStuff164k` does.
        """
        sample = super().__getitem__(index)
        return sample._replace(labels=_AS_VOC[sample.labels])


_VOC_NAMES = {
    "airplane": "aeroplane",
    "couch": "sofa",
    "dining table": "diningtable",
    "motorcycle": "motorbike",
    "potted plant": "pottedplant",
    "tv": "tvmonitor",
}

_IN_VOC = [_VOC_NAMES.get(name, name) for name in COCO_STUFF]
_AS_VOC = np.full(256, IGNORE, np.uint8)
_AS_VOC[: len(_IN_VOC)] = [VOC.index(name) if name in VOC else 0 for name in _IN_VOC]
