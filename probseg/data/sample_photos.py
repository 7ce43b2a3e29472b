"""Photographs that scikit-image and matplotlib install, with outlines drawn for this package.

All photographs are files inside the installed wheels, so nothing is downloaded: `astronaut.png`,
`chelsea.png` (the cat), `coffee.png`, `rocket.jpg`, `camera.png` (the cameraman, grey) and
`motorcycle_left.png` of scikit-image, and `grace_hopper.jpg` of matplotlib.

The outlines are in `sample_photos.json` next to this module: `{"version": 1, "photos": [...]}`.

- A photo has a `name`, the `package` that installs it, its `file` relative to the package's
  folder, and its `objects`.
- An object has a `name` and `polygons`, each a flat list `[x, y, x, y, ...]` of pixel centres
  of the original file (x column, y row). The object is the union of its polygons, borders
  included, each filled by the even-odd rule; less its `holes` (optional, polygons as well); less
  the objects of the same photo listed in `without` (optional), which are in front of it.

Objects of one photo may overlap: the hat of a portrait is part of the woman, too. Wheels are
filled, as is usual in segmentation data, and hair and whiskers thinner than about two pixels are
left out.
"""

from __future__ import annotations

import json
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

import cv2
import numpy as np
import numpy.typing as npt

from probseg.data.base import InteractiveDataset
from probseg.errors import DataError
from probseg.images import read_image
from probseg.types import Sample


class Outline(TypedDict):
    """One object in the outline file; the module's docstring describes the fields."""

    name: str
    polygons: list[list[int]]
    holes: NotRequired[list[list[int]]]
    without: NotRequired[list[str]]


class SamplePhoto(TypedDict):
    """One photograph in the outline file; the module's docstring describes the fields."""

    name: str
    package: str
    file: str
    objects: list[Outline]


class _Entry(NamedTuple):
    name: str
    photo: str
    path: Path
    outline: Outline
    in_front: list[Outline]


def read_outlines() -> list[SamplePhoto]:
    """Read the photographs of the outline file, in the order of the data set."""
    text = resources.files("probseg.data").joinpath("sample_photos.json").read_text("utf-8")
    photos: list[SamplePhoto] = json.loads(text)["photos"]
    return photos


def photo_path(photo: SamplePhoto) -> Path:
    """Find a photograph inside the package that installs it, without importing the package."""
    package = photo["package"]
    project = {"skimage": "scikit-image"}.get(package, package)
    spec = find_spec(package)
    path = Path(photo["file"])
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / path
    if not path.is_file():
        raise DataError(
            f"{path}: no such file, expected the photograph {photo['name']!r}; install {project} "
            "in a version that this package supports, from a wheel: "
            f"`pip install --force-reinstall {project}`"
        )
    return path


def rasterise(outline: Outline, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Draw an object with its holes: uint8, shape `(H, W)`, 1 object, 0 background."""
    mask = np.zeros(size, np.uint8)
    for value, polygons in ((1, outline["polygons"]), (0, outline.get("holes", []))):
        for polygon in polygons:
            # One call per polygon: in a common call polygons that overlap would cancel out.
            cv2.fillPoly(mask, [np.asarray(polygon, np.int32).reshape(-1, 2)], (value,))
    return mask


class SamplePhotos(InteractiveDataset):
    """Objects of real photographs that come with scikit-image and matplotlib.

    Made to try things out without a download; for published numbers it is far too small. A sample
    is named after its photograph and object, as in `coffee/cup`, or after the photograph alone if
    both have the same name, as in `cat`.
    """

    name = "SamplePhotos"
    licence = "those of scikit-image and matplotlib"

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        for photo in read_outlines():
            path = photo_path(photo)
            outlines = {outline["name"]: outline for outline in photo["objects"]}
            for key, outline in outlines.items():
                name = key if key == photo["name"] else f"{photo['name']}/{key}"
                in_front = [outlines[other] for other in outline.get("without", [])]
                self._entries.append(_Entry(name, photo["name"], path, outline, in_front))

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Sample:
        """Return one object of one photograph, whose mask has the values 0 and 1 only."""
        entry = self._entries[index]
        image = read_image(entry.path)  # (H, W, 3)
        size = (image.shape[0], image.shape[1])
        mask = rasterise(entry.outline, size)  # (H, W)
        for other in entry.in_front:
            mask[rasterise(other, size) == 1] = 0
        return Sample(image, mask, entry.name, self.name, entry.photo)
