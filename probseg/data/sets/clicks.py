"""Test sets of the field: GrabCut, Berkeley, DAVIS and COCO_MVal, and DAVIS-585.

The first four are as they were published with RITM (Sofiiuk et al. 2021), DAVIS-585 as with
FocalClick (Chen et al. 2022).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from probseg.data.base import PublishedDataset
from probseg.data.folder import ImageMaskPairs
from probseg.data.layout import picture_files, refuse_missing
from probseg.data.published import SOURCES
from probseg.errors import DataError, DatasetNotFoundError, check_name
from probseg.images import check_same_size, read_image
from probseg.masks import read_colours, read_grey, read_labels
from probseg.types import IGNORE, Sample

Scribbles = Literal["set1", "set2"]


class GrabCut(ImageMaskPairs):
    """The GrabCut test set: `data_GT/<id>.jpg|bmp|png` and `boundary_GT/<id>.bmp|png`.

    In its masks 255 is the object, 0 the background and 128 a thin band along the contour that is
    ignored; eight masks have no band.

    Strokes to begin with are in `scribbles_set1/<id>.png` (Gulshan et al. 2010: four short
    strokes on average) and `scribbles_set2/<id>.png` (Andrade and Carrera 2015: more strokes on
    the object, a few of which leave it), where 255 is on the object and 128 on the background.

    Args:
        root: The folder with `data_GT` and `boundary_GT`; by default `GrabCut` or
            `grabcut` inside `$PROBSEG_DATA` or `./data`.
        scribbles: Strokes that the samples carry: `"set1"`, `"set2"` or None.
    """

    name = "GrabCut"
    image_folder = "data_GT"
    mask_folder = "boundary_GT"
    source = SOURCES["GrabCut"]
    licence = source.licence

    def __init__(self, root: Path | str | None = None, scribbles: Scribbles | None = None) -> None:
        super().__init__(root)
        self.strokes: list[Path] | None = None  # in the order of the pairs
        if scribbles is not None:
            self.strokes = self._find_strokes(scribbles)

    def _find_strokes(self, scribbles: str) -> list[Path]:
        check_name("set of scribbles", scribbles, get_args(Scribbles))
        folder = f"scribbles_{scribbles}"
        files = picture_files(self.root / folder)
        if not files:
            raise DatasetNotFoundError(
                self.name,
                self.root,
                f"the scribbles {folder}/<id>.png (255 object, 128 background, 0 no stroke)",
                f"Copy scribbles-set-{scribbles[-1]} of the repository "
                "flandrade/dataset-interactive-algorithms there, with each file named as its image "
                "(124084 is 124080 here), or leave `scribbles` out.",
            )
        stems = [image.stem for image, _ in self.pairs]
        missing = [stem for stem in stems if stem not in files]
        refuse_missing(self.root / folder, "scribble", missing, self.image_folder)
        return [files[stem] for stem in stems]

    @staticmethod
    def read_mask(path: Path) -> npt.NDArray[np.uint8]:
        """Read a mask with a band."""
        expected = "0 (background), 128 (ignored) and 255 (object), with an object"
        labels = _read_trimap(path, expected, needed=(255,))
        return np.array((0, IGNORE, 1), np.uint8)[labels // 127]

    def __getitem__(self, index: int) -> Sample:
        """Read one photograph, its object, and the strokes if they are wanted."""
        sample = super().__getitem__(index)
        if self.strokes is None:
            return sample
        path = self.strokes[index]
        expected = "0 (no stroke), 128 (background) and 255 (object), with a stroke"
        labels = _read_trimap(path, expected, needed=(128, 255))
        strokes = np.array((IGNORE, 0, 1), np.uint8)[labels // 127]
        check_same_size(sample.image.shape, strokes.shape, self.pairs[index][0], path)
        return sample._replace(scribbles=strokes)


def _read_trimap(path: Path, expected: str, needed: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Read labels `(H, W)` of the values 0, 128 and 255; one of `needed` must be there."""
    labels = read_labels(path)
    values = np.unique(labels)
    if not np.isin(values, (0, 128, 255)).all() or not np.isin(values, needed).any():
        shown = f"{values[:5].tolist()}{', ...' if len(values) > 5 else ''}"
        raise DataError(
            f"{path}: expected the values {expected}, got {shown}; replace the file, or use "
            "ImageMaskFolder for masks of your own"
        )
    return labels


class Berkeley(ImageMaskPairs):
    """The Berkeley test set: `images/<id>.jpg` and `masks/<id>.png`, 100 objects.

    Further objects of a photograph have masks `<id>a.png`, `<id>b.png` or `<id>#2.png`; they
    use the image of their own name, or else `<id>.jpg`. In the masks, which may be colour files,
    grey values above 128 are the object, 128 is ignored and the rest is background.

    Args:
        root: The folder with `images` and `masks`; by default `Berkeley` or `berkeley`
            inside `$PROBSEG_DATA` or `./data`.
    """

    name = "Berkeley"
    image_folder = "images"
    mask_folder = "masks"
    source = SOURCES["Berkeley"]
    licence = source.licence

    @staticmethod
    def photo(stem: str) -> str:
        """Identify the photograph of a mask: the mask's name without the number of the object."""
        return re.sub(r"(#\d+|(?<=\d)[a-z])$", "", stem)

    @staticmethod
    def read_mask(path: Path) -> npt.NDArray[np.uint8]:
        """Read a mask by its grey values."""
        grey = read_grey(path)  # one of the archive's masks has a few stray values
        mask = (grey > 128).astype(np.uint8)
        mask[grey == 128] = IGNORE
        return mask


class DAVIS(ImageMaskPairs):
    """The 345 standard test frames of DAVIS: `img/000.jpg` and `gt/000.png`.

    The masks hold the colours of a palette, most of them of value 128: whatever is not black is the
    object, which is all objects of the frame together. The archive does not say which frames come
    from one video, so each counts as a photograph of its own, though frames of one video are alike:
    intervals and standard errors on this data set are too small.

    Args:
        root: The folder with `img` and `gt`; by default `DAVIS`, `davis` or `DAVIS345`
            inside `$PROBSEG_DATA` or `./data`.
    """

    name = "DAVIS"
    image_folder = "img"
    mask_folder = "gt"
    source = SOURCES["DAVIS"]
    licence = source.licence

    @staticmethod
    def read_mask(path: Path) -> npt.NDArray[np.uint8]:
        """Read a mask by its colours."""
        brightest = read_colours(path).max(axis=2)
        mask: npt.NDArray[np.uint8] = (brightest > 0).astype(np.uint8)
        if not mask.any():
            raise DataError(
                f"{path}: expected an object in any colour on black, got black alone; unpack the "
                "archive again"
            )
        return mask


class COCOMVal(ImageMaskPairs):
    """Ten objects of each category of COCO: `img/<name>.jpg` and `gt/<name>.png`.

    A name ends in the twelve digits of the photograph in COCO, which stands there once for each of
    its objects. In the masks, grey values above 128 are the object.

    Args:
        root: The folder with `img` and `gt`; by default `COCO_MVal` or `coco_mval` inside
            `$PROBSEG_DATA` or `./data`.
    """

    name = "COCO_MVal"
    image_folder = "img"
    mask_folder = "gt"
    source = SOURCES["COCO_MVal"]
    licence = source.licence

    def __init__(self, root: Path | str | None = None) -> None:
        super().__init__(root)
        for image, _ in self.pairs:
            digits = self.photo(image.stem)
            if len(digits) < 12 or not (digits.isascii() and digits.isdigit()):
                raise DataError(
                    f"{image}: expected a name that ends in the twelve digits of a photograph of "
                    "COCO; for images of your own use ImageMaskFolder"
                )

    @staticmethod
    def photo(stem: str) -> str:
        """Identify the photograph of a mask by its number in COCO."""
        return stem[-12:]


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
        if initial is not None:
            check_name("kind of initial masks", initial, get_args(Initial))
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
