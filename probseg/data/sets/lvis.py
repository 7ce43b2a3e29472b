"""LVIS v1 (Gupta, Dollar and Girshick 2019): objects of 1203 categories on COCO photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from probseg.data.base import PublishedDataset
from probseg.data.published import SOURCES
from probseg.data.sets.annotated import AnnotatedObjects, Wanted
from probseg.data.sets.annotation_files import Entry
from probseg.errors import DatasetNotFoundError


class LVIS(AnnotatedObjects, PublishedDataset):
    """Objects of LVIS v1: 1.27 million of 1203 categories on 100 thousand photographs for training.

    Layout: `lvis_v1_<split>.json`, `train2017/` and `val2017/`. Both splits have images in
    both folders: the end of an image's `coco_url` says where it is. Crowds are left out. See
    `AnnotatedObjects` for the masks, and for the index that is made of the JSON the first time: for
    the training split this takes about a minute.

    Args:
        split: `"train"` or `"val"`.
        root: The folder; by default `LVIS` or `lvis` inside `$PROBSEG_DATA` or `./data`.
        min_area: Annotations with a smaller `area`, in pixels, are left out.

    Raises:
        DatasetNotFoundError: If the annotations or a folder of images are not there.
        DataError: If the annotations cannot be read, an image is missing, or nothing is left.
    """

    name = "LVIS"
    kind = "LVIS v1"
    path_key = "coco_url"
    source = SOURCES["LVIS"]
    licence = source.licence

    def __init__(
        self,
        split: Literal["train", "val"] = "train",
        root: Path | str | None = None,
        min_area: int = 400,
    ) -> None:
        self.root = self.source.folder(root)
        annotations = self.root / f"lvis_v1_{split}.json"
        super().__init__(annotations, self.root, Wanted(min_area))

    @classmethod
    def place(cls, image: Entry) -> str | None:
        """Return the last folder and the file of an image's address."""
        return "/".join(image["coco_url"].split("/")[-2:]) if "coco_url" in image else None

    def not_found(self, missing: str) -> DatasetNotFoundError:
        """Return the error for a missing file or folder."""
        return DatasetNotFoundError(
            self.name,
            self.root,
            f"{missing} (in all lvis_v1_<split>.json, train2017/ and val2017/)",
            self.source.way_out(self.name),
        )

    def way_to_images(self, folder: str) -> str:
        """Name the archive of a folder."""
        return f"unpack {folder}.zip again"
