"""Berkeley (McGuinness and O'Connor 2010): 100 objects on 96 photographs of BSDS."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from probseg.data.pairs import ImageMaskPairs
from probseg.data.published import SOURCES
from probseg.masks import read_grey
from probseg.types import IGNORE


class Berkeley(ImageMaskPairs):
    """The Berkeley test set: `images/<id>.jpg` and `masks/<id>.png`, 100 objects.

    Further objects of a photograph have masks `<id>a.png`, `<id>b.png` or `<id>#2.png`; they
    use the image of their own name, or else `<id>.jpg`. In the masks, which may be colour files,
    grey values above 128 are the object, 128 is ignored and the rest is background.

    Args:
        root: The folder with `images` and `masks`; by default `Berkeley` or `berkeley`
            inside `$PROBSEG_DATA` or `./data`.

    Raises:
        DatasetNotFoundError: If the folders are not there.
        DataError: If images and masks do not pair up or two files have the same stem.
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
