"""BSDS500 (Arbelaez, Maire, Fowlkes and Malik 2011): segments drawn by several people."""

from __future__ import annotations

import shutil
from glob import escape
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from probseg.data.base import PublishedDataset, refuse_none
from probseg.data.cache import index_objects
from probseg.data.layout import names_to_leave_out
from probseg.data.published import SOURCES
from probseg.data.sets.foreign_files import broken_as_data_error, load_mat
from probseg.errors import DataError
from probseg.images import check_same_size, read_image
from probseg.masks import count_values, read_labels
from probseg.types import Sample


class BSDS500(PublishedDataset):
    """Segments by several people, as objects: 7665 on 155 photographs for training.

    Layout: `images/<split>/<id>.jpg` and `labels/<split>/<id>_a<k>.png`, one map of region
    numbers (from 1) per annotator. All maps of the split are read when the data set is built for
    the first time; what was found is kept in a folder `.probseg` until a file changes.

    Args:
        split: `"train"`, `"val"` or `"test"`.
        root: The folder; by default `bsds500` inside `$PROBSEG_DATA` or `./data`.
        exclude: File whose first column lists the `<id>` of the images to leave
            out, relative to `root`: GrabCut and Berkeley share 99 images with BSDS500, which
            must not be trained on.
        min_fraction: Smallest region used, as a fraction of the image.
        max_fraction: Largest region used, as a fraction of the image.
    """

    name = "BSDS500"
    source = SOURCES["BSDS500"]
    licence = source.licence

    def __init__(
        self,
        split: Literal["train", "val", "test"] = "train",
        root: Path | str | None = None,
        exclude: str | None = "splits/exclude_from_training.tsv",
        min_fraction: float = 0.005,
        max_fraction: float = 0.5,
    ) -> None:
        self.root = self.source.folder(root)
        images = sorted((self.root / "images" / split).glob("[!.]*.jpg"))
        if not images:
            expected = f"images/{split}/<id>.jpg and labels/{split}/<id>_a<k>.png"
            raise self.absent(expected)
        unwanted = self._excluded(exclude)
        used = [image for image in images if image.stem not in unwanted]
        pairs = [(image, path) for image in used for path in self._maps(split, image)]

        def count(pair: tuple[Path, Path]) -> npt.NDArray[np.int64]:
            areas = count_values(read_labels(pair[1]))
            share = areas / areas.sum()
            areas[(share < min_fraction) | (share > max_fraction)] = 0
            areas[0] = 0
            return areas

        limits = {"min_fraction": min_fraction, "max_fraction": max_fraction}
        maps = (path for _, path in pairs)
        rows = index_objects(f"bsds500-{split}", self.root, count, pairs, maps, **limits)
        self.objects = [(*pair, number) for pair, number, _ in rows]  # image, label map, region
        self._areas = np.array([area for *_, area in rows], np.int64)
        refuse_none(self.objects, self.root, f"region is left in split {split!r} after selection")

    def _maps(self, split: str, image: Path) -> list[Path]:
        place = self.root / "labels" / split
        maps = sorted(place.glob(f"{escape(image.stem)}_a*.png"))
        if not maps:
            raise DataError(
                f"{place}: no label map {image.stem}_a<k>.png for {image}; add it or remove the "
                "image"
            )
        return maps

    def _excluded(self, exclude: str | None) -> set[str]:
        if exclude is None:
            return set()
        path = self.root / exclude
        if not path.is_file():
            raise DataError(
                f"{path}: no such list; pass exclude=None if the model will not be tested on "
                "GrabCut or Berkeley, whose images are among those of BSDS500"
            )
        photos = (self.root / "images").glob("*/[!.]*.jpg")  # the list is one for all splits
        known = [("bsds_id", None), *((photo.stem, photo) for photo in photos)]  # and the heading
        return names_to_leave_out(path, "exclude", known, self.name)

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Sample:
        """Read one region and its image."""
        image_path, label_path, number = self.objects[index]
        image = read_image(image_path)
        labels = read_labels(label_path)
        check_same_size(image.shape, labels.shape, image_path, label_path)
        mask = (labels == number).astype(np.uint8)
        return Sample(image, mask, self.object_name(index), self.name, image_path.stem)

    def object_name(self, index: int) -> str:
        """Return the stem of a label map and the number of a region."""
        _, label_path, number = self.objects[index]
        return f"{label_path.stem}#{number}"


IN_GRABCUT = (
    21077, 24077, 37073, 65019, 69020, 86016, 106024, 124084, 153077, 153093, 181079, 189080,
    208001, 209070, 227092, 271008, 304074, 326038, 376043, 388016,
)  # fmt: skip
"""Photographs of BSDS500 that are in GrabCut, which calls 124084 by mistake 124080."""

IN_BERKELEY = (
    3096, 8023, 12003, 21077, 23080, 24077, 25098, 35008, 35010, 35058, 37073, 38082, 38092,
    41033, 42012, 42049, 42078, 43070, 43074, 56028, 58060, 62096, 65019, 65074, 65132, 66053,
    69020, 69040, 78004, 85048, 86016, 89072, 90076, 92059, 97033, 101085, 101087, 102061,
    106024, 108005, 108070, 108082, 109053, 118035, 123074, 124084, 126007, 130026, 134035,
    135037, 138078, 151087, 153077, 157055, 160068, 163014, 163062, 167062, 170057, 175043,
    181079, 187029, 188063, 189011, 189080, 196015, 196073, 198023, 208001, 209070, 216053,
    216066, 227092, 229036, 239007, 253027, 253036, 253055, 268002, 271031, 271035, 285079,
    286092, 291000, 293029, 296059, 299091, 300091, 302008, 304034, 304074, 310007, 372047,
    376020, 376043, 388016,
)  # fmt: skip
"""Photographs of BSDS500 that are in Berkeley."""


def convert(folder: Path) -> None:
    """Replace `groundTruth/` by `labels/` and write the list of test photographs.

    The maps of `groundTruth/<split>/<id>.mat` become `labels/<split>/<id>_a<k>.png` with the
    same region numbers, one file per annotator k; `splits/exclude_from_training.tsv` names the
    photographs that GrabCut and Berkeley share with BSDS500.
    """
    files = sorted((folder / "groundTruth").glob("*/*.mat"))
    if not files:
        raise DataError(
            f"{folder / 'groundTruth'}: no .mat files of BSDS500; fetch the archive again"
        )
    for path in files:
        place = folder / "labels" / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        with broken_as_data_error(path, "maps of BSDS500"):
            maps = [
                entry["Segmentation"][0, 0] for entry in load_mat(path, "groundTruth").ravel()
            ]  # each (H, W)
        for k, regions in enumerate(maps):
            if regions.max() > 255:
                raise DataError(
                    f"{path}: {regions.max()} regions, but the maps of BSDS500 have at most 255"
                )
            Image.fromarray(regions.astype(np.uint8)).save(place / f"{path.stem}_a{k}.png")
    shutil.rmtree(folder / "groundTruth")
    rows = ["bsds_id\tin_grabcut\tin_berkeley"]
    rows += [
        f"{photo}\t{int(photo in IN_GRABCUT)}\t{int(photo in IN_BERKELEY)}"
        for photo in sorted({*IN_GRABCUT, *IN_BERKELEY})
    ]
    (folder / "splits").mkdir(exist_ok=True)
    text = "\n".join(rows) + "\n"
    (folder / "splits" / "exclude_from_training.tsv").write_text(text, encoding="utf-8")
