"""COCO+LVIS (Sofiiuk, Petrov and Konushin 2021, RITM): objects of both on photographs of COCO."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.data.base import InteractiveDataset, refuse_none
from probseg.data.cache import cached, plain_name, read_all
from probseg.data.layout import chosen_root, refuse_missing
from probseg.data.sets.foreign_files import broken_as_data_error, load_data
from probseg.errors import DataError, DatasetNotFoundError
from probseg.images import check_same_size, image_size, opened, read_image
from probseg.masks import count_values
from probseg.types import Sample


class COCOLVIS(InteractiveDataset):
    """Objects of COCO+LVIS: about 1.5 million on 99 thousand photographs for training.

    Layout: `<split>/hannotation.pickle`, `<split>/masks/<id>.pickle` and
    `<split>/images/<id>.jpg`. The objects of a photograph are drawn in a few layers such that
    none hides another. The annotations order them in a tree, for instance the wheels of a car
    below the car: every node is an object here, and the mask of an object contains those below it.
    Regions of stuff, such as sky, are not objects.

    The pickles are read without trust, once: what they hold is checked and kept in a folder
    `.probseg` next to them, which takes minutes and about as much room as the pickles. A file
    of masks that is changed in place later on is not noticed; delete `.probseg` then.

    Args:
        split: `"train"` or `"val"`.
        root: The folder with the folders of the splits; by default `COCOLVIS`, `cocolvis` or
            `LVIS` inside `$PROBSEG_DATA` or `./data`.
        min_area: Objects with fewer pixels are left out.
    """

    name = "COCOLVIS"
    licence = "that of COCO and LVIS; photographs: terms of Flickr"

    def __init__(
        self,
        split: Literal["train", "val"] = "train",
        root: Path | str | None = None,
        min_area: int = 400,
    ) -> None:
        top = chosen_root(root, "COCOLVIS", "cocolvis", "LVIS")
        self.root = top / split
        annotations, masks = self.root / "hannotation.pickle", self.root / "masks"
        images = self.root / "images"
        if not (annotations.is_file() and masks.is_dir() and images.is_dir()):
            raise DatasetNotFoundError(
                self.name,
                top,
                f"hannotation.pickle, masks/<id>.pickle and images/<id>.jpg in {split}/",
                "Download https://github.com/saic-vul/ritm_interactive_segmentation/releases/"
                "download/v1.0/cocolvis_annotation.tar.gz and the images train2017.zip and "
                "val2017.zip from https://cocodataset.org/#download, unpack them into this layout, "
                "and pass the folder as `root` or set PROBSEG_DATA to the folder that holds it as "
                "COCOLVIS.",
            )
        build = partial(_build, self.root, f"{self.name} {split}")
        options = {"split": split, "columns": " ".join(_Object._fields)}
        self.index = cached("cocolvis", [annotations, masks], options, build, self.root)
        _check_images(self.root, (name.decode() for name in self.index["photos"]))
        # of the index, for each object
        self.rows = np.flatnonzero(self.index["area"] >= max(min_area, 1))
        refuse_none(self.rows, annotations, f"object of at least {min_area} pixels (`min_area`)")
        self._areas = self.index["area"][self.rows].astype(np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def _photo(self, index: int) -> str:
        name: bytes = self.index["photos"][self.index["photo"][self.rows[index]]]
        return name.decode()

    def __getitem__(self, index: int) -> Sample:
        """Read the image of one object and its layer."""
        row, photo = self.rows[index], self._photo(index)
        path = self.root / "images" / f"{photo}.jpg"
        image = read_image(path)
        masks = self.root / "masks" / f"{photo}.pickle"
        starts, layer = self.index["starts"], self.index["layer"][row]
        content = self.index["content"][starts[layer] : starts[layer + 1]].tobytes()
        check_same_size(image.shape, _size_of_layer(content, masks), path, masks)
        mask = (_read_layer(content, masks) == self.index["number"][row]).astype(np.uint8)
        return Sample(image, mask, self.object_name(index), self.name, photo)

    def object_name(self, index: int) -> str:
        """Return the photograph and the object's place in its annotations."""
        return f"{self._photo(index)}#{self.index['key'][self.rows[index]]}"


class _Photo(NamedTuple):
    """Annotations of one photograph."""

    name: str
    things: list[int]  # places in the list of its objects
    first_stuff: int  # the objects from here on are regions of stuff, such as sky


class _Object(NamedTuple):
    """One object of a photograph."""

    key: int  # place in the list of its objects
    layer: int
    number: int  # its value in the layer
    area: int


def _build(root: Path, what: str) -> Mapping[str, npt.NDArray[Any]]:
    """Convert all pickles; the layers go through a file, as they may not fit into memory."""
    photos = _read_annotations(root / "hannotation.pickle")
    _check_images(root, (photo.name for photo in photos))  # before the minutes that the rest takes
    columns = {name: array("q") for name in ("photo", *_Object._fields)}
    starts = array("q", [0])
    chosen = os.environ.get("PROBSEG_CACHE")
    place = Path(chosen) if chosen else root  # where the layers end, if that is writable
    place = place if os.access(place, os.W_OK) else Path(tempfile.gettempdir())
    with ExitStack() as stack:
        with _writing(place):
            file = stack.enter_context(tempfile.TemporaryFile(dir=place))
        masks = read_all(partial(_read_masks, root), photos, what)
        for number, (layers, objects) in enumerate(masks):
            for each in objects:
                row = (number, *each._replace(layer=len(starts) - 1 + each.layer))
                for column, entry in zip(columns.values(), row, strict=True):
                    column.append(int(entry))
            for layer in layers:
                starts.append(starts[-1] + len(layer))
            with _writing(place):
                file.writelines(layers)
                file.flush()
        return {
            "photos": np.array([photo.name.encode() for photo in photos], dtype="S"),
            "starts": np.array(starts),
            # the content of the layers stays in the file
            "content": np.memmap(file, np.uint8, mode="r") if starts[-1] else np.empty(0, np.uint8),
            **{name: np.array(column, np.int32) for name, column in columns.items()},
        }


def _check_images(root: Path, names: Iterable[str]) -> None:
    """Raise a `DataError` if photographs are missing."""
    images = root / "images"
    files = {entry.name for entry in images.iterdir()}
    needed = (f"{name}.jpg" for name in names)
    refuse_missing(images, "image", [name for name in needed if name not in files], "masks")


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Name the folder in errors of a full disk or a missing permission."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{place}: the layers of COCO+LVIS cannot be written there "
            f"({error.strerror or error}); free some space, or set PROBSEG_CACHE to another folder"
        ) from error


def _read_annotations(path: Path) -> list[_Photo]:
    """Read the list of photographs, sorted by name."""
    loaded: Any = load_data(path)
    photos = []
    with broken_as_data_error(path, "annotations of COCO+LVIS"):
        for name, entry in sorted(loaded.items()):
            first_stuff = int(entry["num_instance_masks"])
            things = [int(key) for key in entry["hierarchy"]]
            if not plain_name(name) or any(not 0 <= key < first_stuff for key in things):
                raise ValueError(f"has the photograph {name!r} with the objects {things[:5]}, ...")
            photos.append(_Photo(name, things, first_stuff))
    if not photos:
        raise DataError(f"{path}: lists no photograph; unpack the archive again")
    return photos


def _read_masks(root: Path, photo: _Photo) -> tuple[list[bytes], list[_Object]]:
    """Read the layers of one photograph, as PNG files, and its objects."""
    path = root / "masks" / f"{photo.name}.pickle"
    image = root / "images" / f"{photo.name}.jpg"
    loaded: Any = load_data(path)
    with broken_as_data_error(path, "masks of COCO+LVIS"):
        layers, fault = list(loaded[0]), ""
        if not all(isinstance(each, np.ndarray) and each.dtype == np.uint8 for each in layers):
            fault = "expected layers as PNG files in arrays of bytes"
        elif sum(layer.nbytes for layer in layers) > path.stat().st_size:  # one layer many times
            fault = "has layers that are larger than the file"
        else:
            places = [(int(layer), int(number)) for layer, number in loaded[1]]
            wrong = [p for p in places if not (p[0] in range(len(layers)) and 0 < p[1] < 256)]
            if wrong or photo.first_stuff > len(places):
                fault = (
                    f"expected at least {photo.first_stuff} objects with a value of 1..255 in one "
                    f"of {len(layers)} layers, got {len(places)}, among them {wrong[:3]}"
                )
        if fault:
            raise ValueError(fault)
        contents = [layer.tobytes() for layer in layers]
    size = image_size(image)
    counts = []
    for content in contents:
        check_same_size(size, _size_of_layer(content, path), image, path)
        counts.append(count_values(_read_layer(content, path)))
    objects = [
        _Object(key, layer, number, int(counts[layer][number]))
        for key, (layer, number) in ((key, places[key]) for key in photo.things)
    ]
    return contents, objects


def _size_of_layer(content: bytes, path: Path) -> tuple[int, int]:
    """Read `(H, W)` of a PNG file from its header, so that nothing huge is ever decoded."""
    if content[:8] != b"\x89PNG\r\n\x1a\n" or content[12:16] != b"IHDR" or len(content) < 33:
        raise DataError(f"{path}: has a layer that is not a PNG file; unpack the archive again")
    width, height = (int.from_bytes(content[k : k + 4], "big") for k in (16, 20))
    return height, width


def _read_layer(content: bytes, path: Path) -> npt.NDArray[np.uint8]:
    """Decode a PNG file to uint8 `(H, W)`."""
    with opened(BytesIO(content), f"{path}, a layer") as picture:
        values = np.asarray(picture)
    if values.ndim != 2 or values.dtype != np.uint8:
        raise DataError(
            f"{path}: has a layer with several channels or 16 bits; unpack the archive again"
        )
    return values
