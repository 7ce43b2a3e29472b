"""The published data sets by name, and the facts about them: read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from probseg.data.source import BERKELEY, MEGABYTE, RITM, Archive, Full, Source
from probseg.errors import UnknownNameError
from probseg.kinds import Offers

if TYPE_CHECKING:
    from probseg.data.base import PublishedDataset

PUBLISHED_PATHS = {
    "BSDS500": "probseg.data.sets.bsds500.BSDS500",
    "Berkeley": "probseg.data.sets.berkeley.Berkeley",
    "COCO_MVal": "probseg.data.sets.coco_mval.COCOMVal",
    "DAVIS": "probseg.data.sets.davis.DAVIS",
    "DAVIS585": "probseg.data.sets.davis585.DAVIS585",
    "GrabCut": "probseg.data.sets.grabcut.GrabCut",
    "LVIS": "probseg.data.sets.lvis.LVIS",
    "PascalVOC": "probseg.data.sets.pascal_voc.PascalVOC",
    "SBD": "probseg.data.sets.sbd.SBD",
}

SOURCES: dict[str, Source] = {
    "BSDS500": Source(
        licence="non-commercial research and education",
        places=("bsds500",),
        full={"train": Full(None, 200), "val": Full(None, 100), "test": Full(None, 200)},
        splits=("train", "val", "test"),
        archives=(
            Archive(
                f"{BERKELEY}/BSR/BSR_bsds500.tgz",
                size=71 * MEGABYTE,
                unpacked=200 * MEGABYTE,
                holds=("images/train", "images/val", "images/test"),
            ),
        ),
        photos="images/{split}/*",
        convert="probseg.data.sets.bsds500_files.convert",
        made=("labels/train", "labels/val", "labels/test", "splits/exclude_from_training.tsv"),
        options={"exclude": None},
        ids="BSDS",
    ),
    "Berkeley": Source(
        licence="photographs: BSDS, non-commercial research and education",
        places=("Berkeley", "berkeley"),
        full={"": Full(100, 96)},
        archives=(
            Archive(
                f"{RITM}/Berkeley.zip",
                size=7 * MEGABYTE,
                unpacked=20 * MEGABYTE,
                holds=("images", "masks"),
            ),
        ),
        photos="images/*",
        ids="BSDS",
    ),
    "COCO_MVal": Source(
        licence="annotations CC BY 4.0; photographs: terms of Flickr",
        places=("COCO_MVal", "coco_mval"),
        full={"": Full(800, 722)},
        archives=(
            Archive(
                f"{RITM}/COCO_MVal.zip",
                size=127 * MEGABYTE,
                unpacked=150 * MEGABYTE,
                holds=("img", "gt"),
            ),
        ),
        photos="img/*",
        ids="COCO",
    ),
    "DAVIS": Source(
        licence="terms of https://davischallenge.org",
        places=("DAVIS", "davis", "DAVIS345"),
        full={"": Full(345, 345)},
        archives=(
            Archive(
                f"{RITM}/DAVIS.zip",
                size=43 * MEGABYTE,
                unpacked=60 * MEGABYTE,
                holds=("img", "gt"),
            ),
        ),
        photos="img/*",
    ),
    "DAVIS585": Source(
        licence="terms of https://davischallenge.org",
        places=("DAVIS585", "DAVIS-585", "davis585"),
        full={"": Full(585, None)},
        archives=(
            Archive(None, size=0, unpacked=500 * MEGABYTE, holds=("*/*.jpg", "*/object1_*.png")),
        ),
        photos="*/*.jpg",
        way="it is on a cloud drive that needs a browser, with a link in the README of "
        "https://github.com/alibaba/ClickSEG",
    ),
    "GrabCut": Source(
        licence="none stated; released for research",
        places=("GrabCut", "grabcut"),
        full={"": Full(50, 50)},
        archives=(
            Archive(
                f"{RITM}/GrabCut.zip",
                size=11 * MEGABYTE,
                unpacked=50 * MEGABYTE,
                holds=("data_GT", "boundary_GT"),
            ),
        ),
        photos="data_GT/*",
        ids="BSDS",
    ),
    "LVIS": Source(
        licence="annotations CC BY 4.0; photographs: terms of Flickr",
        places=("LVIS", "lvis"),
        full={"train": Full(), "val": Full()},
        splits=("train", "val"),
        archives=(
            Archive(
                "https://dl.fbaipublicfiles.com/LVIS/lvis_v1_train.json.zip",
                size=350 * MEGABYTE,
                unpacked=1200 * MEGABYTE,
                holds=("lvis_v1_train.json",),
            ),
            Archive(
                "https://dl.fbaipublicfiles.com/LVIS/lvis_v1_val.json.zip",
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
        photos="*2017/*",  # photographs of `val` are in both folders
        ids="COCO",
    ),
    "PascalVOC": Source(
        licence="photographs: terms of Flickr",
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
        photos="JPEGImages/*",
        listed="ImageSets/Segmentation/{split}.txt",
        ids="VOC",
    ),
    "SBD": Source(
        licence="none stated; photographs: terms of Flickr",
        places=("SBD", "sbd"),
        full={"train": Full(20172, 8498), "val": Full(6671, 2857), "train_noval": Full()},
        splits=("train", "val"),
        archives=(
            Archive(
                f"{BERKELEY}/semantic_contours/benchmark.tgz",
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
        photos="img/*",
        listed="{split}.txt",
        inner="benchmark_RELEASE/dataset",
        ids="VOC",
    ),
}
"""Where they come from, by name."""

PUBLISHED: Mapping[str, type[PublishedDataset]] = Offers("published_dataset", PUBLISHED_PATHS)
"""The data sets that can be listed, fetched and checked, imported when they are asked for."""


def find_published(name: str) -> type[PublishedDataset] | None:
    """Find a data set by its name; case, `-` and `_` do not matter, so `coco-mval` is one."""
    known = next((known for known in PUBLISHED if _plain(known) == _plain(name)), None)
    return None if known is None else PUBLISHED[known]


def get_published(name: str) -> type[PublishedDataset]:
    """Find a data set by its name as `find_published` does."""
    kind = find_published(name)
    if kind is None:
        raise UnknownNameError(kind="data set", name=name, known=PUBLISHED)
    return kind


def _plain(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")
