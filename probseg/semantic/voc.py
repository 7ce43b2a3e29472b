"""PASCAL VOC 2012 (Everingham et al. 2010): 20 categories of objects and the background."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from probseg.data.layout import chosen_root
from probseg.errors import DatasetNotFoundError
from probseg.semantic.class_names import VOC
from probseg.semantic.dataset import SemanticFiles, listed_pairs


class VOCSegmentation(SemanticFiles):
    """Classes of PASCAL VOC 2012: 1464 photographs for training and 1449 for validation.

    Layout: `JPEGImages/<id>.jpg`, the palette files `SegmentationClass/<id>.png` and the lists
    `ImageSets/Segmentation/<split>.txt`. A file's palette indices, not its colours, are the
    classes; 255 is a band along contours, which is ignored. `trainaug` is the training set of
    10582 photographs that most papers use, with the labels of SBD (Hariharan et al. 2011): it reads
    `SegmentationClassAug/<id>.png` and the list `trainaug.txt`, which VOC does not have.

    Args:
        split: `"train"`, `"val"`, `"trainval"` or `"trainaug"`.
        root: The folder `VOC2012`; by default `VOCdevkit/VOC2012` or `VOC2012` inside
            `$PROBSEG_DATA` or `./data`.

    Raises:
        DatasetNotFoundError: If the list or the folders are not there.
        DataError: If a listed photograph or its labels are missing.
    """

    name = "VOCSegmentation"
    classes = VOC
    numbers = range(21)
    ignored = (255,)

    def __init__(
        self,
        split: Literal["train", "val", "trainval", "trainaug"] = "train",
        root: Path | str | None = None,
    ) -> None:
        self.root = chosen_root(root, "VOCdevkit/VOC2012", "VOC2012")
        folder = "SegmentationClassAug" if split == "trainaug" else "SegmentationClass"
        listing = self.root / "ImageSets" / "Segmentation" / f"{split}.txt"
        photos, labels = self.root / "JPEGImages", self.root / folder
        if not (listing.is_file() and photos.is_dir() and labels.is_dir()):
            raise DatasetNotFoundError(
                self.name,
                self.root,
                f"JPEGImages/<id>.jpg, {folder}/<id>.png and ImageSets/Segmentation/{split}.txt",
                (_OF_TRAINAUG if split == "trainaug" else "") + _OF_VOC,
            )
        super().__init__(listed_pairs(listing, (photos, ".jpg"), (labels, ".png")))


_OF_VOC = (
    "`probseg data fetch PascalVOC` gets what VOC has. Or download http://host.robots.ox.ac.uk/"
    "pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar, unpack it, and pass its folder "
    "VOCdevkit/VOC2012 as `root` or set PROBSEG_DATA to the folder that holds VOCdevkit."
)

_OF_TRAINAUG = (
    "trainaug is not a part of VOC: trainaug.txt lists the photographs of SBD's train.txt and "
    "val.txt and of VOC's train.txt, without those of VOC's val.txt, 10582 in all, one <id> on a "
    "line. SegmentationClassAug has their labels from SBD's cls/<id>.mat, and from "
    "SegmentationClass where SBD has none, as PNG with 0 to 20 and 255. "
)
