"""COCO_MVal (published with RITM, Sofiiuk et al. 2021): 800 objects on 722 photographs of COCO."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from probseg.data.pairs import ImageMaskPairs
from probseg.data.published import SOURCES
from probseg.errors import DataError
from probseg.masks import read_grey


class COCOMVal(ImageMaskPairs):
    """Ten objects of each category of COCO: `img/<name>.jpg` and `gt/<name>.png`.

    A name ends in the twelve digits of the photograph in COCO, which stands there once for each of
    its objects. In the masks, grey values above 128 are the object.

    Args:
        root: The folder with `img` and `gt`; by default `COCO_MVal` or `coco_mval` inside
            `$PROBSEG_DATA` or `./data`.

    Raises:
        DatasetNotFoundError: If the folders are not there.
        DataError: If images and masks do not pair up, two files have the same stem, or a name does
            not end in twelve digits.
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
                msg = (
                    f"{image}: expected a name that ends in the twelve digits of a photograph of "
                    "COCO; for images of your own use ImageMaskFolder"
                )
                raise DataError(msg)

    @staticmethod
    def photo(stem: str) -> str:
        """Identify the photograph of a mask by its number in COCO."""
        return stem[-12:]

    @staticmethod
    def read_mask(path: Path) -> npt.NDArray[np.uint8]:
        """Read a mask by its grey values."""
        return (read_grey(path) > 128).astype(np.uint8)
