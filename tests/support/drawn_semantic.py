"""Sets for semantic segmentation, drawn at test time in the folder layouts of their archives.

The colour of a pixel tells its class, see `colour_of`, so that images and labels can be compared.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy.io import savemat
from torch import Tensor

from probseg.semantic import SemanticSegmenter, semantic_variant
from probseg.semantic.datamodule import SemanticBatch
from probseg.semantic.dataset import SemanticDataset, SemanticSample
from probseg.types import IGNORE
from support.drawn_sets import write_voc_labels
from support.fakes import Pixels, save


def micro(num_classes: int = 3, of: str = "micro_emanet", **head: object) -> SemanticSegmenter:
    """Build a small network for the classes of `FakeStreets`, or for others."""
    return semantic_variant(of, {"head": {"num_classes": num_classes, **head}})


UNUSED_COCO = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)


def colour_of(labels: Pixels) -> Pixels:
    """Colour a map of class numbers below 171: an image `(H, W, 3)`; ignored pixels are grey."""
    numbers = labels.astype(int)
    image = np.stack([40 + 30 * (numbers % 7), 40 + 7 * (numbers // 7), 250 - numbers], axis=-1)
    image[labels == IGNORE] = 20
    return image.astype(np.uint8)


def draw_labels(height: int, width: int, classes: int, seed: int = 0) -> Pixels:
    """Draw rectangles of all kinds of classes, with an ignored frame of two pixels."""
    random = np.random.default_rng(seed)
    labels = np.zeros((height, width), np.uint8)
    for _ in range(12):
        y, x = random.integers(0, height), random.integers(0, width)
        labels[y : y + height // 3, x : x + width // 3] = random.integers(classes)
    labels[:2] = labels[-2:] = labels[:, :2] = labels[:, -2:] = IGNORE
    return labels


def semantic_batch(images: Tensor, labels: Tensor) -> SemanticBatch:
    """Make a training batch of images `(B, 3, H, W)` and labels `(B, H, W)`."""
    names = [f"photo{n}" for n in range(len(images))]
    return SemanticBatch(images, labels, torch.arange(len(images)), names, [])


class FakeStreets(SemanticDataset):
    """A data set in memory."""

    def __init__(
        self,
        length: int = 4,
        size: tuple[int, int] = (48, 64),
        name: str = "streets",
        classes: tuple[str, ...] = ("road", "car", "sky"),
    ) -> None:
        self.name = name
        self.classes = classes
        drawn = [draw_labels(*size, len(classes), seed=i) for i in range(length)]
        self.samples = [
            SemanticSample(colour_of(labels), labels, f"photo{i}", name)
            for i, labels in enumerate(drawn)
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> SemanticSample:
        return self.samples[index]


def write_camvid(
    root: Path, images: int = 3, size: tuple[int, int] = (36, 48), suffix: str = ".png"
) -> Path:
    """Write `<split>/` and `<split>annot/` with 11 where nothing is labelled."""
    for s, split in enumerate(("train", "val", "test")):
        for i in range(images):
            labels = draw_labels(*size, 11, seed=10 * s + i)
            stem = f"{s:04d}TP_{i:06d}"
            save(colour_of(labels), root / split / f"{stem}{suffix}")
            numbers = np.where(labels == IGNORE, 11, labels).astype(np.uint8)
            save(numbers, root / f"{split}annot" / f"{stem}.png")
    return root


def write_voc_segmentation(root: Path, images: int = 3, size: tuple[int, int] = (36, 48)) -> Path:
    """Write `JPEGImages/`, the palette files and the lists of VOC 2012, and those of trainaug.

    The photographs of `train` are 2007_000100 and following, those of `val` 2007_000200 and
    following, and `trainaug` adds 2008_000100 and following to those of `train`.
    """
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    train, val, more = (
        [f"{year}_{first + i:06d}" for i in range(images)]
        for year, first in ((2007, 100), (2007, 200), (2008, 100))
    )
    of_split = {"train": train, "val": val, "trainval": train + val, "trainaug": train + more}
    for split, stems in of_split.items():
        (lists / f"{split}.txt").write_text("".join(f"{stem}\n" for stem in stems))
    for seed, stem in enumerate(train + val + more):
        labels = draw_labels(*size, 21, seed)
        save(colour_of(labels), root / "JPEGImages" / f"{stem}.jpg", quality=100, subsampling=0)
        if stem not in more:
            write_voc_labels(labels, root / "SegmentationClass" / f"{stem}.png")
        if stem not in val:
            save(labels, root / "SegmentationClassAug" / f"{stem}.png")
    return root


def write_pascal_context(root: Path, images: int = 3, size: tuple[int, int] = (36, 48)) -> Path:
    """Write the parts of VOC 2010, with 0 where nothing is labelled and classes from 1."""
    lists = root / "ImageSets" / "SegmentationContext"
    lists.mkdir(parents=True)
    for s, split in enumerate(("train", "val")):
        stems = [f"2008_{100 * s + i:06d}" for i in range(images)]
        (lists / f"{split}.txt").write_text("".join(f"{stem}\n" for stem in stems))
        for i, stem in enumerate(stems):
            labels = draw_labels(*size, 59, seed=10 * s + i)
            save(colour_of(labels), root / "JPEGImages" / f"{stem}.jpg", quality=100, subsampling=0)
            numbers = np.where(labels == IGNORE, 0, labels + 1).astype(np.uint8)
            save(numbers, root / "SegmentationClassContext" / f"{stem}.png")
    return root


def coco_numbers(labels: Pixels, first: int, ignored: int) -> Pixels:
    """Turn numbers of the 171 classes into COCO's of 182 categories, of which "person" is first."""
    used = [category for category in range(1, 183) if category not in UNUSED_COCO]
    result = np.full_like(labels, ignored)
    for number, category in enumerate(used):
        result[labels == number] = category - 1 + first
    return result


def write_coco_stuff10k(root: Path, images: int = 3, size: tuple[int, int] = (36, 48)) -> Path:
    """Write `images/`, `annotations/` with MATLAB files and `imageLists/`."""
    (root / "imageLists").mkdir(parents=True)
    for s, split in enumerate(("train", "test")):
        stems = [f"COCO_train2014_{100 * s + i:012d}" for i in range(images)]
        (root / "imageLists" / f"{split}.txt").write_text("".join(f"{stem}\n" for stem in stems))
        for i, stem in enumerate(stems):
            labels = draw_labels(*size, 171, seed=10 * s + i)
            save(colour_of(labels), root / "images" / f"{stem}.jpg", quality=100, subsampling=0)
            (root / "annotations").mkdir(exist_ok=True)
            numbers = coco_numbers(labels, first=1, ignored=0)
            savemat(root / "annotations" / f"{stem}.mat", {"S": numbers, "captions": ["a street"]})
    return root


def write_coco_stuff164k(root: Path, images: int = 3, size: tuple[int, int] = (36, 48)) -> Path:
    """Write `images/<split>2017/` and `annotations/<split>2017/` with pixel maps."""
    for s, split in enumerate(("train2017", "val2017")):
        for i in range(images):
            labels = draw_labels(*size, 171, seed=10 * s + i)
            stem = f"{100 * s + i:012d}"
            path = root / "images" / split / f"{stem}.jpg"
            save(colour_of(labels), path, quality=100, subsampling=0)
            numbers = coco_numbers(labels, first=0, ignored=255)
            save(numbers, root / "annotations" / split / f"{stem}.png")
    return root


def write_semantic_sets(root: Path) -> Path:
    """Write data of all kinds, where the shipped configurations look for them."""
    write_camvid(root / "camvid")
    write_voc_segmentation(root / "VOCdevkit" / "VOC2012")
    write_pascal_context(root / "VOCdevkit" / "VOC2010")
    write_coco_stuff10k(root / "coco_stuff10k")
    return write_coco_stuff164k(root / "coco_stuff164k").parent
