"""PASCAL Context (Mottaghi et al. 2014): whole scenes of PASCAL VOC 2010 in 59 classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from probseg.data.layout import chosen_root
from probseg.errors import DatasetNotFoundError
from probseg.semantic.class_names import PASCAL_CONTEXT
from probseg.semantic.dataset import SemanticFiles, listed_pairs


class PascalContext(SemanticFiles):
    """PASCAL Context: 4998 photographs for training and 5105 for validation.

    Layout: `JPEGImages/<id>.jpg`, `SegmentationClassContext/<id>.png` and the lists
    `ImageSets/SegmentationContext/<split>.txt` in the folder of VOC 2010. The numbers 1 to 59 of
    a label file are the classes in alphabetical order; 0 is everything else, which is ignored, and
    so is 255.

    Args:
        split: `"train"` or `"val"`.
        root: The folder `VOC2010`; by default `VOCdevkit/VOC2010`, `VOC2010` or
            `PascalContext` inside `$PROBSEG_DATA` or `./data`.

    Raises:
        DatasetNotFoundError: If the list or the folders are not there.
        DataError: If a listed photograph or its labels are missing.
    """

    name = "PascalContext"
    classes = PASCAL_CONTEXT
    numbers = range(1, 60)
    ignored = (0, 255)

    def __init__(
        self, split: Literal["train", "val"] = "train", root: Path | str | None = None
    ) -> None:
        self.root = chosen_root(root, "VOCdevkit/VOC2010", "VOC2010", "PascalContext")
        listing = self.root / "ImageSets" / "SegmentationContext" / f"{split}.txt"
        photos, labels = self.root / "JPEGImages", self.root / "SegmentationClassContext"
        if not (listing.is_file() and photos.is_dir() and labels.is_dir()):
            raise DatasetNotFoundError(
                self.name,
                self.root,
                "JPEGImages/<id>.jpg, SegmentationClassContext/<id>.png and "
                f"ImageSets/SegmentationContext/{split}.txt",
                "Download http://host.robots.ox.ac.uk/pascal/VOC/voc2010/"
                "VOCtrainval_03-May-2010.tar and the labels of "
                "https://www.cs.stanford.edu/~roozbeh/pascal-context/, convert these to PNG files "
                "with 0 for the background and 1 to 59 for the classes in alphabetical order (as "
                "tools/dataset_converters/pascal_context.py of MMSegmentation does), and pass the "
                "folder VOCdevkit/VOC2010 as `root` or set PROBSEG_DATA to the folder that holds "
                "VOCdevkit.",
            )
        super().__init__(listed_pairs(listing, (photos, ".jpg"), (labels, ".png")))
