"""GrabCut (Rother, Kolmogorov and Blake 2004): 50 photographs with one object each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from probseg.data.layout import picture_files, refuse_missing
from probseg.data.pairs import ImageMaskPairs
from probseg.data.published import SOURCES
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError
from probseg.images import check_same_size
from probseg.masks import read_labels
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

    Raises:
        DatasetNotFoundError: If the folders are not there.
        DataError: If images, masks and strokes do not pair up or two files have the same stem.
        UnknownNameError: If there are no such scribbles.
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
            msg = (
                f"{path}: expected the values 0 (background), 128 (ignored) and 255 (object), "
                f"with an object, got {_in_words(values)}; for masks of your own use "
                "ImageMaskFolder"
            )
            raise DataError(msg)
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
        msg = (
            f"{path}: expected the values 255 (on the object), 128 (on the background) and 0 (no "
            f"stroke), with a stroke, got {_in_words(values)}; replace the file"
        )
        raise DataError(msg)
    strokes: npt.NDArray[np.uint8] = np.full(labels.shape, IGNORE, np.uint8)
    strokes[labels == 255] = 1
    strokes[labels == 128] = 0
    return strokes


def _in_words(values: npt.NDArray[np.uint8]) -> str:
    """List the first few values."""
    return f"{values[:5].tolist()}{', ...' if len(values) > 5 else ''}"
