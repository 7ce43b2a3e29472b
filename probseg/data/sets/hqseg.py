"""HQSeg-44K (Ke et al. 2023, HQ-SAM): finely drawn objects of six data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from probseg.data.base import InteractiveDataset
from probseg.data.folder import ImagePairs
from probseg.data.layout import chosen_root
from probseg.errors import DatasetNotFoundError, check_name
from probseg.types import Sample


class _Part(NamedTuple):
    images: str
    masks: str


_THIN, _CASCADE = "thin_object_detection", "cascade_psp"

PARTS: dict[str, dict[str, _Part]] = {
    "train": {
        "DIS5K-TR": _Part("DIS5K/DIS-TR/im", "DIS5K/DIS-TR/gt"),
        "ThinObject5K-TR": _Part(
            f"{_THIN}/ThinObject5K/images_train", f"{_THIN}/ThinObject5K/masks_train"
        ),
        **{
            name: _Part(f"{_CASCADE}/{name}", f"{_CASCADE}/{name}")
            for name in ("fss_all", "DUTS-TR", "DUTS-TE", "ecssd", "MSRA_10K")
        },
    },
    "val": {
        "DIS5K-VD": _Part("DIS5K/DIS-VD/im", "DIS5K/DIS-VD/gt"),
        "COIFT": _Part(f"{_THIN}/COIFT/images", f"{_THIN}/COIFT/masks"),
        "HRSOD": _Part(f"{_THIN}/HRSOD/images", f"{_THIN}/HRSOD/masks_max255"),
        "ThinObject5K-TE": _Part(
            f"{_THIN}/ThinObject5K/images_test", f"{_THIN}/ThinObject5K/masks_test"
        ),
    },
}
"""Folders of images and masks of each part, by split."""


class HQSeg44K(InteractiveDataset):
    """Finely drawn objects, one to a photograph: 44320 for training and 1537 for validation.

    Layout: the folders `DIS5K`, `thin_object_detection` and `cascade_psp` of the authors'
    archives, with `<stem>.jpg` and `<stem>.png` in folders for images and masks or, inside
    `cascade_psp`, in one for both. Grey values above 128 are the object. All masks are read once;
    see `ImagePairs`.

    Args:
        split: `"train"` or `"val"`.
        root: The folder; by default `HQSeg44K`, `HQSeg-44K` or `sam-hq` inside
            `$PROBSEG_DATA` or `./data`.
        parts: Names of the parts of `PARTS` that take part; all of the split by default.
    """

    name = "HQSeg44K"
    licence = "that of its parts; DIS5K and ThinObject5K may be for research only: see their terms"

    def __init__(
        self,
        split: Literal["train", "val"] = "train",
        root: Path | str | None = None,
        parts: Sequence[str] | None = None,
    ) -> None:
        self.root = chosen_root(root, "HQSeg44K", "HQSeg-44K", "sam-hq")
        check_name("split of HQSeg44K", split, PARTS)
        known = PARTS[split]
        wanted = [*known] if parts is None else [*parts]
        for part in wanted or [""]:
            check_name(f"part of HQSeg44K {split}", part, known)
        folders = {part: known[part] for part in wanted}
        places = [place for part in folders.values() for place in part]
        missing = [place for place in places if not (self.root / place).is_dir()]
        if missing:
            raise DatasetNotFoundError(
                self.name,
                self.root,
                f"the folders {', '.join(missing)}",
                "Download the parts by the links in the README of the repository SysCV/sam-hq, "
                "unpack them, and pass the folder that holds them as `root` or set PROBSEG_DATA to "
                "the folder that holds it as HQSeg44K; or choose those that you have with `parts`.",
            )
        self.parts = {
            name: ImagePairs(self.root / part.images, self.root / part.masks, f"{self.name} {name}")
            for name, part in folders.items()
        }
        self._areas = np.concatenate([part._areas for part in self.parts.values()])
        self.places = [(name, i) for name, part in self.parts.items() for i in range(len(part))]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Sample:
        """Read one object and its image."""
        part, number = self.places[index]
        name = self.object_name(index)
        return self.parts[part][number]._replace(name=name, dataset=self.name, photo=name)

    def object_name(self, index: int) -> str:
        """Return the part and the stem of a mask."""
        part, number = self.places[index]
        return f"{part}/{self.parts[part].object_name(number)}"
