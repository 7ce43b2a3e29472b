"""GrabCut, Berkeley, DAVIS and COCO_MVal as they were published with RITM (Sofiiuk et al. 2021)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from probseg.data.layout import picture_files, refuse_missing
from probseg.data.pairs import ImageMaskPairs
from probseg.data.published import SOURCES
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError
from probseg.images import check_same_size
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
        known = get_args(Scribbles)
        if scribbles not in known:
            raise UnknownNameError(kind="set of scribbles", name=scribbles, known=known)
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
        labels = read_labels(path)
        values = np.unique(labels)
        if not np.isin(values, (0, 128, 255)).all() or 255 not in values:
            raise DataError(
                f"{path}: expected the values 0 (background), 128 (ignored) and 255 (object), "
                f"with an object, got {_in_words(values)}; for masks of your own use "
                "ImageMaskFolder"
            )
        mask: npt.NDArray[np.uint8] = (labels == 255).astype(np.uint8)
        mask[labels == 128] = IGNORE
        return mask

    def __getitem__(self, index: int) -> Sample:
        """Read one photograph, its object, and the strokes if they are wanted."""
        sample = super().__getitem__(index)
        if self.strokes is None:
            return sample
        path = self.strokes[index]
        strokes = read_strokes(path)
        check_same_size(sample.image.shape, strokes.shape, self.pairs[index][0], path)
        return sample._replace(scribbles=strokes)


def read_strokes(path: Path) -> npt.NDArray[np.uint8]:
    """Read a map of strokes: 255 on the object, 128 on the background, 0 elsewhere.

    Returns uint8, shape `(H, W)`: 1 object, 0 background, 255 where there is no stroke.
    """
    labels = read_labels(path)
    values = np.unique(labels)
    if not np.isin(values, (0, 128, 255)).all() or values.tolist() == [0]:
        raise DataError(
            f"{path}: expected the values 255 (on the object), 128 (on the background) and 0 (no "
            f"stroke), with a stroke, got {_in_words(values)}; replace the file"
        )
    strokes: npt.NDArray[np.uint8] = np.full(labels.shape, IGNORE, np.uint8)
    strokes[labels == 255] = 1
    strokes[labels == 128] = 0
    return strokes


def _in_words(values: npt.NDArray[np.uint8]) -> str:
    """List the first few values."""
    return f"{values[:5].tolist()}{', ...' if len(values) > 5 else ''}"


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

    @staticmethod
    def read_mask(path: Path) -> npt.NDArray[np.uint8]:
        """Read a mask by its grey values."""
        return (read_grey(path) > 128).astype(np.uint8)
