"""Where the data sets of the field come from: addresses, sizes, checksums and licences."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from probseg.data import bsds500_files
from probseg.data.base import InteractiveDataset
from probseg.data.layout import ARCHIVES, chosen_root
from probseg.errors import UnknownNameError

MEGABYTE = 10**6


class Archive(NamedTuple):
    """One file to download.

    Args:
        url: Its address; None where there is none that a program can read from.
        size: About its number of bytes.
        unpacked: About the number of bytes of the files in it.
        holds: Patterns of files or folders; the folder inside the archive that has them all
            becomes the folder of the data set.
        md5: Checksum that a publisher or a widely used library states; None if there is none.
        sha256: The same; None if there is none.
    """

    url: str | None
    size: int
    unpacked: int
    holds: tuple[str, ...]
    md5: str | None = None
    sha256: str | None = None

    @property
    def file(self) -> str:
        """Name of the file."""
        return (self.url or "").rstrip("/").rpartition("/")[2]


class Full(NamedTuple):
    """Size of a complete data set, or of one of its splits; None where it is not certain."""

    objects: int | None = None
    photos: int | None = None


@dataclass(frozen=True)
class Source:
    """A data set that can be listed, fetched and checked.

    Args:
        name: Its name in `probseg.data.DATASETS`.
        places: Usual names of its folder in ``$PROBSEG_DATA`` or ``./data``.
        full: Size of the complete set by split; by ``""`` where there are no splits.
        splits: The splits that are looked at where none is named.
        archives: What to download.
        licence: What is known of its licence.
        photos: Pattern of its photographs; ``{split}`` stands for the split.
        listed: File with the stems of a split's photographs, if a pattern does not tell them apart.
        inner: Folder inside its folder that may hold everything instead.
        convert: Turns the folder of an archive into one that the class reads.
        made: What the data set needs besides `Archive.holds`, and ``convert`` makes.
        options: Arguments of the class for a look at everything.
        ids: The collection of photographs whose names its files have, if any.
        way: Where to get it by hand.
    """

    name: str
    places: tuple[str, ...]
    full: Mapping[str, Full]
    archives: tuple[Archive, ...]
    licence: str
    photos: str
    splits: tuple[str, ...] = ()
    listed: str | None = None
    inner: str = ""
    convert: Callable[[Path], None] | None = None
    made: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    ids: str | None = None
    way: str = ""

    def folder(self, root: Path | str | None = None) -> Path:
        """Return the folder that is given, or where the data set is looked for."""
        return chosen_root(root, *self.places)

    def missing(self, root: Path, archive: Archive | None = None) -> list[str]:
        """List what a folder lacks of one archive, or of all."""
        wanted = [*self.made]
        for part in self.archives if archive is None else (archive,):
            wanted += part.holds
        inner = root / self.inner
        return [x for x in wanted if not (any(root.glob(x)) or any(inner.glob(x)))]

    def build(self, root: Path, split: str | None = None) -> InteractiveDataset:
        """Build the data set.

        Raises:
            DatasetNotFoundError: If it is not in the folder.
            DataError: If it cannot be used.
        """
        options = dict(self.options) if split is None else {**self.options, "split": split}
        data: InteractiveDataset = self.dataset()(root=root, **options)
        return data

    def dataset(self) -> type[Any]:
        """Return its class."""
        known: dict[str, type[Any]] = importlib.import_module("probseg.data").DATASETS
        return known[self.name]


def find_source(name: str) -> Source | None:
    """Find a data set by its name; case, ``-`` and ``_`` do not matter, so ``coco-mval`` is one."""
    return {_plain(known): source for known, source in SOURCES.items()}.get(_plain(name))


def known_source(name: str) -> Source:
    """Find a data set by its name as `find_source` does.

    Raises:
        UnknownNameError: If there is none; the message lists the nearest names.
    """
    source = find_source(name)
    if source is None:
        raise UnknownNameError(kind="data set", name=name, known=SOURCES)
    return source


def _plain(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")


_BERKELEY = "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping"
_LVIS = "https://dl.fbaipublicfiles.com/LVIS"
_RESEARCH = "none stated; released for research"

_SOURCES = (
    Source(
        name="GrabCut",
        places=("GrabCut", "grabcut"),
        full={"": Full(50, 50)},
        archives=(
            Archive(
                f"{ARCHIVES}/GrabCut.zip",
                size=11 * MEGABYTE,
                unpacked=50 * MEGABYTE,
                holds=("data_GT", "boundary_GT"),
            ),
        ),
        licence=_RESEARCH,
        photos="data_GT/*",
        ids="BSDS",
    ),
    Source(
        name="Berkeley",
        places=("Berkeley", "berkeley"),
        full={"": Full(100, 96)},
        archives=(
            Archive(
                f"{ARCHIVES}/Berkeley.zip",
                size=7 * MEGABYTE,
                unpacked=20 * MEGABYTE,
                holds=("images", "masks"),
            ),
        ),
        licence="photographs: BSDS, non-commercial research and education",
        photos="images/*",
        ids="BSDS",
    ),
    Source(
        name="DAVIS",
        places=("DAVIS", "davis", "DAVIS345"),
        full={"": Full(345, 345)},
        archives=(
            Archive(
                f"{ARCHIVES}/DAVIS.zip",
                size=43 * MEGABYTE,
                unpacked=60 * MEGABYTE,
                holds=("img", "gt"),
            ),
        ),
        licence="terms of https://davischallenge.org",
        photos="img/*",
    ),
    Source(
        name="COCO_MVal",
        places=("COCO_MVal", "coco_mval"),
        full={"": Full(800, 722)},
        archives=(
            Archive(
                f"{ARCHIVES}/COCO_MVal.zip",
                size=127 * MEGABYTE,
                unpacked=150 * MEGABYTE,
                holds=("img", "gt"),
            ),
        ),
        licence="annotations CC BY 4.0; photographs: terms of Flickr",
        photos="img/*",
        ids="COCO",
    ),
    Source(
        name="DAVIS585",
        places=("DAVIS585", "DAVIS-585", "davis585"),
        full={"": Full(585, None)},
        archives=(
            Archive(None, size=0, unpacked=500 * MEGABYTE, holds=("*/*.jpg", "*/object1_*.png")),
        ),
        licence="terms of https://davischallenge.org",
        photos="*/*.jpg",
        way="it lies on a cloud drive that needs a browser, linked from the README of "
        "https://github.com/alibaba/ClickSEG",
    ),
    Source(
        name="PascalVOC",
        places=("VOCdevkit/VOC2012", "VOC2012", "PascalVOC"),
        full={
            "train": Full(None, 1464),
            "val": Full(None, 1449),
            "trainval": Full(None, 2913),
        },
        splits=("val",),
        archives=(
            Archive(
                "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
                size=2000 * MEGABYTE,
                unpacked=2000 * MEGABYTE,
                holds=("JPEGImages", "SegmentationObject", "ImageSets"),
                md5="6cd6e144f989b92b3379bac3b3de84fd",
            ),
        ),
        licence="photographs: terms of Flickr",
        photos="JPEGImages/*",
        listed="ImageSets/Segmentation/{split}.txt",
        ids="VOC",
    ),
    Source(
        name="SBD",
        places=("SBD", "sbd"),
        full={"train": Full(20172, 8498), "val": Full(6671, 2857), "train_noval": Full()},
        splits=("train", "val"),
        archives=(
            Archive(
                f"{_BERKELEY}/semantic_contours/benchmark.tgz",
                size=1420 * MEGABYTE,
                unpacked=1700 * MEGABYTE,
                holds=("img", "inst", "train.txt", "val.txt"),
                md5="82b4d87ceb2ed10f6038a1cba92111cb",
            ),
            Archive(
                "https://www.cs.cornell.edu/~bharathh/train_noval.txt",
                size=MEGABYTE,
                unpacked=MEGABYTE,
                holds=("train_noval.txt",),
                md5="79bff800c5f0b1ec6b21080a3c066722",
            ),
        ),
        licence="none stated; photographs: terms of Flickr",
        photos="img/*",
        listed="{split}.txt",
        inner="benchmark_RELEASE/dataset",
        ids="VOC",
    ),
    Source(
        name="BSDS500",
        places=("bsds500",),
        full={"train": Full(None, 200), "val": Full(None, 100), "test": Full(None, 200)},
        splits=("train", "val", "test"),
        archives=(
            Archive(
                f"{_BERKELEY}/BSR/BSR_bsds500.tgz",
                size=71 * MEGABYTE,
                unpacked=200 * MEGABYTE,
                holds=("images/train", "images/val", "images/test"),
            ),
        ),
        licence="non-commercial research and education",
        photos="images/{split}/*",
        convert=bsds500_files.convert,
        made=("labels/train", "labels/val", "labels/test", "splits/exclude_from_training.tsv"),
        options={"exclude": None},
        ids="BSDS",
    ),
    Source(
        name="LVIS",
        places=("LVIS", "lvis"),
        full={"train": Full(), "val": Full()},
        splits=("train", "val"),
        archives=(
            Archive(
                f"{_LVIS}/lvis_v1_train.json.zip",
                size=350 * MEGABYTE,
                unpacked=1200 * MEGABYTE,
                holds=("lvis_v1_train.json",),
            ),
            Archive(
                f"{_LVIS}/lvis_v1_val.json.zip",
                size=65 * MEGABYTE,
                unpacked=250 * MEGABYTE,
                holds=("lvis_v1_val.json",),
            ),
            Archive(
                "http://images.cocodataset.org/zips/train2017.zip",
                size=19337 * MEGABYTE,
                unpacked=19400 * MEGABYTE,
                holds=("train2017",),
                md5="cced6f7f71b7629ddf16f17bbcfab6b2",
            ),
            Archive(
                "http://images.cocodataset.org/zips/val2017.zip",
                size=816 * MEGABYTE,
                unpacked=830 * MEGABYTE,
                holds=("val2017",),
                md5="442b8da7639aecaf257c1dceb8ba8c80",
            ),
        ),
        licence="annotations CC BY 4.0; photographs: terms of Flickr",
        photos="*2017/*",  # photographs of `val` are in both folders
        ids="COCO",
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in _SOURCES}
"""The data sets by name. Checksums are those that torchvision or the publisher states."""
