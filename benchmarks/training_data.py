"""Training sets for the benchmarks: real ones where they are, else drawn photographs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from probseg.data import BSDS500, ImageMaskFolder
from probseg.data.base import InteractiveDataset
from probseg.errors import DatasetNotFoundError

SIZE = (321, 480)
"""Height and width of the drawn photographs, those of BSDS500."""


@contextmanager
def training_set(name: str, images: int = 200) -> Iterator[tuple[InteractiveDataset, str]]:
    """Open a training set, and say whether it is the real one.

    Args:
        name: "BSDS500", or "objects", a folder with images/ and masks/.
        images: Number of photographs that are drawn where `$PROBSEG_DATA` does not have the set.

    Yields:
        The set, and "real" or "drawn".
    """
    with TemporaryDirectory() as place:
        try:
            yield _opened(name, None), "real"
        except DatasetNotFoundError:
            yield _opened(name, _drawn(name, Path(place), images)), "drawn"


def _opened(name: str, root: Path | None) -> InteractiveDataset:
    if name == "BSDS500":
        return BSDS500() if root is None else BSDS500(root=root, exclude=None)
    return ImageMaskFolder(name if root is None else root, name=name)


def _drawn(name: str, root: Path, images: int) -> Path:
    """Write photographs and one mask each in the layout of a set."""
    folders = ("images/train", "labels/train") if name == "BSDS500" else ("images", "masks")
    photos, masks = (root / folder for folder in folders)
    photos.mkdir(parents=True)
    masks.mkdir(parents=True)
    suffix = "_a0" if name == "BSDS500" else ""
    for number in range(images):
        image, labels = _scene(np.random.default_rng(number))
        Image.fromarray(image).save(photos / f"{number:04d}.jpg", quality=88)
        Image.fromarray(labels).save(masks / f"{number:04d}{suffix}.png")
    return root


def _scene(
    random: np.random.Generator,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Draw four ellipses on a textured ground, as rough as photographs are."""
    height, width = SIZE
    texture = sum(
        cv2.resize(random.normal(0, 20, (height // s, width // s, 3)), (width, height))
        for s in (2, 8, 32)
    )
    labels = np.zeros(SIZE, np.uint8)
    for number in range(1, 5):
        centre = (int(random.integers(width)), int(random.integers(height)))
        axes = (int(random.integers(20, 90)), int(random.integers(20, 90)))
        cv2.ellipse(labels, centre, axes, 0, 0, 360, number, thickness=-1)
    colours = random.integers(50, 200, (5, 3))
    return np.clip(colours[labels] + texture, 0, 255).astype(np.uint8), labels
