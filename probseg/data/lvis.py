"""LVIS v1 (Gupta, Dollar and Girshick 2019): objects of 1203 categories on COCO photographs."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from probseg.data.base import InteractiveDataset
from probseg.data.images import check_same_size, read_image
from probseg.data.layout import chosen_root
from probseg.errors import DataError, DatasetNotFoundError
from probseg.types import Sample


class LVIS(InteractiveDataset):
    """Annotations of LVIS v1 as objects.

    Layout: ``lvis_v1_<split>.json``, ``train2017/`` and ``val2017/``. Both splits have images in
    both folders: the end of an image's ``coco_url`` says where it is. A mask is that of one
    annotation; others that overlap it play no part. Crowds are left out. The JSON is read once when
    the data set is built: for the training split this takes about a minute and 2 GB of memory, of
    which some 600 MB are kept.

    Args:
        split: ``"train"`` or ``"val"``.
        root: The folder; by default ``LVIS`` or ``lvis`` inside ``$PROBSEG_DATA`` or ``./data``.
        min_area: Annotations with a smaller ``area``, in pixels, are left out.

    Raises:
        DatasetNotFoundError: If the annotations or a folder of images are not there.
        DataError: If the annotations cannot be read, an image is missing, or nothing is left.
    """

    name = "LVIS"

    def __init__(
        self,
        split: Literal["train", "val"] = "train",
        root: Path | str | None = None,
        min_area: int = 400,
    ) -> None:
        self.root = chosen_root(root, "LVIS", "lvis")
        self.annotations = self.root / f"lvis_v1_{split}.json"
        if not self.annotations.is_file():
            raise self._not_found(self.annotations.name)
        reader = _Reader(min_area)
        try:
            with self.annotations.open(encoding="utf-8") as file:
                # Each entry is shortened as soon as it is parsed: all of them would not fit.
                json.load(file, object_hook=reader)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            msg = (
                f"{self.annotations}: cannot be read as annotations of LVIS v1 ({error!r}); "
                "download the file again"
            )
            raise DataError(msg) from error
        self.outlines, self.owners, self.ids = reader.outlines, reader.owners, reader.ids
        if not self.ids:
            msg = f"{self.annotations}: no object of at least {min_area} pixels (`min_area`)"
            raise DataError(msg)
        used = set(self.owners)
        if unknown := used - set(reader.images):
            msg = (
                f"{self.annotations}: has annotations of images that it does not list with a "
                f"coco_url: {sorted(unknown)[:3]} ({len(unknown)} in all); download the file again"
            )
            raise DataError(msg)
        self.images = {key: image for key, image in reader.images.items() if key in used}
        self._check_images()

    def _not_found(self, missing: str) -> DatasetNotFoundError:
        return DatasetNotFoundError(
            self.name,
            self.root,
            f"{missing} (in all lvis_v1_<split>.json, train2017/ and val2017/)",
            "`probseg data fetch LVIS` gets it. Or download the annotations from "
            "https://www.lvisdataset.org/dataset and the images "
            "train2017.zip and val2017.zip from https://cocodataset.org/#download, unpack them "
            "into one folder, and pass it as `root` or set PROBSEG_DATA to the folder that holds "
            "it as LVIS.",
        )

    def _check_images(self) -> None:
        needed: dict[str, set[str]] = defaultdict(set)
        for image in self.images.values():
            needed[image.folder].add(image.file)
        for folder, files in sorted(needed.items()):
            place = self.root / folder
            if not place.is_dir():
                raise self._not_found(folder)
            missing = sorted(files - {path.name for path in place.iterdir()})
            if missing:
                msg = (
                    f"{place / missing[0]}: no such file, but {self.annotations.name} needs it "
                    f"({len(missing)} missing in all); unpack {folder}.zip again"
                )
                raise DataError(msg)

    def __len__(self) -> int:
        """Return the number of annotations."""
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample:
        """Read the image of one annotation and draw its mask."""
        image = self.images[self.owners[index]]
        path = self.root / image.folder / image.file
        name = f"{path.stem}#{self.ids[index]}"
        pixels = read_image(path)
        mask = self.outlines.mask(index, image.height, image.width)
        check_same_size(pixels.shape, mask.shape, path, self.annotations)
        if not mask.any():
            msg = (
                f"{self.annotations}: no pixel is inside annotation {self.ids[index]} of {path}; "
                "raise `min_area`"
            )
            raise DataError(msg)
        return Sample(pixels, mask, name, self.name, path.stem)


class _Image(NamedTuple):
    folder: str
    file: str
    height: int
    width: int


class _Outlines:
    """Outlines of many objects in a few flat arrays, which forked processes share."""

    def __init__(self) -> None:
        self.coordinates = array("f")  # x, y, x, y, ... of all polygons
        self.polygons = array("q", [0])  # where each begins in `coordinates`, and the end
        self.objects = array("q", [0])  # where each begins in `polygons`, and the end
        self.runs: dict[int, dict[str, Any]] = {}  # objects given by run lengths instead

    def add(self, segmentation: list[list[float]] | dict[str, Any]) -> bool:
        """Append an object, unless its outline encloses nothing."""
        if isinstance(segmentation, dict):
            self.runs[len(self.objects) - 1] = segmentation
        else:
            # pycocotools takes four numbers for a box.
            polygons = [polygon for polygon in segmentation if len(polygon) >= 6]
            if not polygons:
                return False
            for polygon in polygons:
                self.coordinates.extend(polygon)
                self.polygons.append(len(self.coordinates))
        self.objects.append(len(self.polygons) - 1)
        return True

    def mask(self, index: int, height: int, width: int) -> npt.NDArray[np.uint8]:
        """Draw an object; run lengths have a size of their own."""
        runs = self.runs.get(index)
        if runs is None:
            corners = self.polygons[self.objects[index] : self.objects[index + 1] + 1]
            # The file has two decimals; without them, pixels on the edge would come out otherwise.
            polygons = [
                np.array(self.coordinates[start:end], dtype=np.float64).round(2)
                for start, end in pairwise(corners)
            ]
            runs = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
        elif isinstance(runs["counts"], list):
            runs = coco_mask.frPyObjects(runs, height, width)
        return np.ascontiguousarray(coco_mask.decode(runs))


class _Reader:
    """Keeps what is needed of each JSON object and drops the rest."""

    def __init__(self, min_area: int) -> None:
        self.min_area = min_area
        self.images: dict[int, _Image] = {}
        self.outlines = _Outlines()
        self.owners = array("q")  # image of each annotation
        self.ids = array("q")

    def __call__(self, entry: dict[str, Any]) -> dict[str, Any] | None:
        if "coco_url" in entry:
            folder, file = entry["coco_url"].split("/")[-2:]
            self.images[entry["id"]] = _Image(folder, file, entry["height"], entry["width"])
            return None
        if "segmentation" not in entry:
            return entry  # run lengths are needed by the annotation that holds them
        wanted = not entry.get("iscrowd") and entry["area"] >= self.min_area
        if wanted and self.outlines.add(entry["segmentation"]):
            self.owners.append(entry["image_id"])
            self.ids.append(entry["id"])
        return None
