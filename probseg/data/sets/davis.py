"""DAVIS as test set of single frames (Perazzi et al. 2016, frames chosen by Jang and Kim 2019)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from probseg.data.pairs import ImageMaskPairs
from probseg.data.published import SOURCES
from probseg.errors import DataError
from probseg.masks import read_colours


class DAVIS(ImageMaskPairs):
    """The 345 standard test frames of DAVIS: `img/000.jpg` and `gt/000.png`.

    The masks hold the colours of a palette, most of them of value 128: whatever is not black is the
    object, which is all objects of the frame together. The archive does not say which frames come
    from one video, so each counts as a photograph of its own, though frames of one video are alike:
    intervals and standard errors on this data set are too small.

    Args:
        root: The folder with `img` and `gt`; by default `DAVIS`, `davis` or `DAVIS345`
            inside `$PROBSEG_DATA` or `./data`.

    Raises:
        DatasetNotFoundError: If the folders are not there.
        DataError: If images and masks do not pair up or two files have the same stem.
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
            msg = (
                f"{path}: expected an object in any colour on black, got black alone; unpack the "
                "archive again"
            )
            raise DataError(msg)
        return mask
