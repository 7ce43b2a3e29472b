"""DAVIS-585 (Chen et al. 2022, FocalClick): objects of DAVIS with masks to correct."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from probseg.data.base import PublishedDataset
from probseg.data.layout import picture_files
from probseg.data.published import SOURCES
from probseg.errors import DataError, UnknownNameError
from probseg.images import check_same_size, read_image
from probseg.masks import read_grey
from probseg.types import Sample

Initial = Literal["stm", "sp"]


class _Object(NamedTuple):
    photo: str
    name: str
    image: Path
    mask: Path
    initial: Path | None


class DAVIS585(PublishedDataset):
    """One object of a frame per sample, with initial masks of an IoU of 0.75 to 0.85.

    Layout: in a folder per video, frames `00009.jpg`, masks `object1_00009.png` and initial
    masks `init_stm_object1_00009.png` (by a network that follows objects through videos) and
    `init_sp_object1_00009.png` (made of superpixels). In all masks, grey values above 128 are the
    object. The order is by video, frame and object.

    The `photo` of a sample is its video: frames of one video are alike, and intervals must not
    take them for independent photographs.

    The data set is called `DAVIS585`, and with initial masks `DAVIS585_stm` or `DAVIS585_sp`,
    so that both can be tested together.

    Args:
        root: The folder of the videos; by default `DAVIS585`, `DAVIS-585` or `davis585`
            inside `$PROBSEG_DATA` or `./data`.
        initial: Initial masks that the samples carry: `"stm"`, `"sp"` or None.
    """

    name = "DAVIS585"
    source = SOURCES["DAVIS585"]
    licence = source.licence

    def __init__(self, root: Path | str | None = None, initial: Initial | None = None) -> None:
        known = get_args(Initial)
        if initial is not None and initial not in known:
            raise UnknownNameError(kind="kind of initial masks", name=initial, known=known)
        self.root = self.source.folder(root)
        self.objects: list[_Object] = []
        for video in sorted(self.root.iterdir()) if self.root.is_dir() else []:
            if video.is_dir() and not video.name.startswith("."):
                self.objects += _objects(video, initial)
        if not self.objects:
            expected = (
                "<video>/<frame>.jpg, <video>/object<n>_<frame>.png and "
                "<video>/init_stm_object<n>_<frame>.png (or init_sp_...)"
            )
            raise self.absent(expected)
        self.name = self.display_name({"initial": initial})

    @classmethod
    def display_name(cls, arguments: Mapping[str, Any]) -> str:
        """Return the name of the data set, with that of its initial masks."""
        initial = arguments.get("initial")
        return cls.name if initial is None else f"{cls.name}_{initial}"

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Sample:
        """Read one object, its frame, and the initial mask if it is wanted."""
        photo, name, image_path, mask_path, initial_path = self.objects[index]
        image = read_image(image_path)
        mask = (read_grey(mask_path) > 128).astype(np.uint8)
        check_same_size(image.shape, mask.shape, image_path, mask_path)
        sample = Sample(image, mask, name, self.name, photo)
        if initial_path is None:
            return sample
        initial = read_grey(initial_path) > 128
        check_same_size(image.shape, initial.shape, image_path, initial_path)
        return sample._replace(initial=initial)

    def object_name(self, index: int) -> str:
        """Return the video and the stem of a mask."""
        return self.objects[index].name


def _objects(video: Path, initial: str | None) -> list[_Object]:
    """List the objects of a video by frame and object."""
    files = picture_files(video)
    parts = {stem: stem.rpartition("_") for stem in files}  # object1_00009, without _ a frame
    masks = [stem for stem in files if parts[stem][0] and not stem.startswith("init_")]
    masks.sort(key=lambda stem: (parts[stem][2], len(stem), stem))  # object2 before object10
    needed = {parts[stem][2] for stem in masks}
    if initial is not None:
        needed |= {f"init_{initial}_{stem}" for stem in masks}
    if missing := sorted(needed - set(files)):
        raise DataError(
            f"{video}: no files {missing[:3]} ({len(missing)} in all), which its masks need; "
            "unpack the archive again"
        )
    return [
        _Object(
            photo=video.name,
            name=f"{video.name}/{stem}",
            image=files[parts[stem][2]],
            mask=files[stem],
            initial=None if initial is None else files[f"init_{initial}_{stem}"],
        )
        for stem in masks
    ]
