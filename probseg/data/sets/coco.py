"""Objects of annotation files: COCO (Lin et al. 2014), LVIS (Gupta et al. 2019), and your own."""

from __future__ import annotations

import logging
import zlib
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.data.base import InteractiveDataset, PublishedDataset
from probseg.data.layout import chosen_root
from probseg.data.published import SOURCES
from probseg.data.selection import held_out
from probseg.data.sets.annotations import NO_OUTLINE, TOO_SHORT, Entry, read_index
from probseg.errors import DataError, DatasetNotFoundError, check_name
from probseg.formats.coco import crowds_left_out, file_of
from probseg.images import check_same_size, read_image
from probseg.paths import find_data
from probseg.types import Sample

_logger = logging.getLogger(__name__)

Part = Literal["all", "train", "val"]

VAL_FRACTION = 0.1  # share of the images that the part `"val"` has


class Choice(NamedTuple):
    """Selection of the annotations of a data set."""

    min_area: float  # pixels that their `area` must have
    max_fraction: float | None = None  # share of the image that it may have at most; None for any
    crowd: bool = False  # whether outlines around several objects are chosen, too
    categories: Sequence[str] | None = None  # names of their categories; None for all
    part: Part = "all"  # of the images, `"train"` or `"val"`

    def description(self) -> str:
        """The arguments that differ from their defaults."""
        usual = self._field_defaults
        asked = {key: value for key, value in self._asdict().items() if usual.get(key) != value}
        return ", ".join(f"{key}={value!r}" for key, value in asked.items())


class AnnotatedObjects(InteractiveDataset):
    """Base of the data sets whose objects are annotations of one JSON file.

    A mask is that of one annotation; others that overlap it play no part. The file is read once and
    kept as an index in `.probseg/` next to it (or in `$PROBSEG_CACHE`), which all processes map
    into their memory.
    """

    kind: str
    """Name of the annotation format."""

    path_key: str
    """Key of an image entry that holds the path of the image."""

    images_hint = ""
    """What to do about missing images, unless the archive of their folder is to be unpacked."""

    def __init__(self, annotations: Path, images: Path, choice: Choice) -> None:
        self.annotations = annotations
        self.image_root = images
        if not annotations.is_file():
            raise self.not_found(annotations.name)
        self.index = read_index(self.kind, annotations, self.place)
        self.objects = self._chosen(choice)
        crowds = 0 if choice.crowd else int(self.index.crowds.sum())
        left_out = [crowds_left_out(crowds, len(self.index.ids))] if crowds else []
        kept = self.index.left_out()
        bare = sum(kept.get(why, 0) for why in (NO_OUTLINE, TOO_SHORT))
        if bare:
            left_out.append(
                f"annotations without an outline of three or more corners, left out: {bare}"
            )
        if len(self.objects) == 0:
            reasons = []
            if crowds < len(self.index.ids) or not left_out:
                reasons.append(
                    f"none of its {len(self.index.ids)} annotations with an outline is left with "
                    f"{choice.description()}; choose fewer restrictions"
                )
            reasons += left_out
            if crowds:
                reasons.append("where `crowd` is an option, `crowd: true` takes crowds")
            raise DataError(f"{annotations}: {'; '.join(reasons)}")
        for what in left_out:
            _logger.warning("%s: %s", annotations, what)
        self._check_images()

    @classmethod
    @abstractmethod
    def place(cls, image: Entry) -> str | None:
        """Return the path of an image inside the folder of images; None if it has none."""

    @abstractmethod
    def not_found(self, missing: str) -> DatasetNotFoundError:
        """Return the error for a missing file or folder."""

    def photo(self, file: str) -> str:
        """Identify a photograph by its path inside the folder of images."""
        return PurePosixPath(file).stem

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Sample:
        """Read the image of one annotation and draw its mask."""
        path = self.image_file(index)
        pixels = read_image(path)
        owner = int(self.index.owners[self.objects[index]])
        size = tuple(self.index.image_sizes[owner].tolist())
        check_same_size(pixels.shape, size, path, self.annotations)
        (mask,) = self.read_masks([index])
        photo = self.photo(self.index.file(owner))
        return Sample(pixels, mask, self.object_name(index), self.name, photo)

    def image_file(self, index: int) -> Path:
        """Return the file of an object's image."""
        return self.image_root / self.index.file(self.index.owners[self.objects[index]])

    def read_masks(self, indices: Iterable[int]) -> Iterator[npt.NDArray[np.uint8]]:
        """Draw the masks of objects, in the sizes that the file states for their images."""
        for index in indices:
            number = int(self.objects[index])
            height, width = self.index.image_sizes[self.index.owners[number]].tolist()
            of = f"{self.annotations}: annotation {self.index.ids[number]}"
            of += f" of {self.image_file(index)}"
            try:
                mask = self.index.mask(number, (height, width))
            except ValueError as error:
                raise DataError(
                    f"{of} cannot be drawn ({error}); download or export the file again"
                ) from error
            if not mask.any():
                raise DataError(f"{of} has no pixel inside the image; raise `min_area`")
            yield mask

    @property
    def areas(self) -> npt.NDArray[np.int64]:
        """Pixels of each object as the annotations state them, shape `(len(self),)`."""
        return np.rint(self.index.areas[self.objects]).astype(np.int64)

    def object_name(self, index: int) -> str:
        """Return the name of an object: its photograph and its id."""
        number = self.objects[index]
        photo = self.photo(self.index.file(self.index.owners[number]))
        return f"{photo}#{self.index.ids[number]}"

    def _chosen(self, choice: Choice) -> npt.NDArray[np.int64]:
        """List the annotations of a choice."""
        index = self.index
        chosen = index.areas >= choice.min_area
        if not choice.crowd:
            chosen &= ~index.crowds
        if choice.categories is not None:
            names = index.categories()  # of which two of one name are one
            for name in choice.categories:
                check_name("category", name, names)
            wanted = [number for number, name in enumerate(names) if name in choice.categories]
            chosen &= np.isin(index.kinds, wanted)
        if unknown := np.unique(index.image_ids[chosen & (index.owners < 0)]).tolist():
            raise DataError(
                f"{self.annotations}: has annotations of images that it does not list with a "
                f"{self.path_key}: {unknown[:3]} ({len(unknown)} in all); download or export the "
                "file again"
            )
        if choice.max_fraction is not None:
            pixels = index.image_sizes.prod(axis=1)[index.owners[chosen]]
            chosen[chosen] = index.areas[chosen] <= choice.max_fraction * pixels
        if choice.part != "all":
            chosen &= np.isin(index.owners, self._held_out()) == (choice.part == "val")
        return np.flatnonzero(chosen)

    def _held_out(self) -> npt.NDArray[np.int64]:
        """List the images of the part `"val"`, which no other selection changes.

        Checksums of their names decide, so that no image changes its part when others are added.
        """
        owners = self.index.owners
        images = np.unique(owners[owners >= 0]).tolist()
        if len(images) < 2:
            raise DataError(
                f"{self.annotations}: training and validation need at least 2 images, got "
                f"{len(images)}; use the `part` all"
            )
        sums = {image: zlib.crc32(self.index.file(image).encode()) for image in images}
        places = {image: checksum / 2**32 for image, checksum in sums.items()}
        return np.array(held_out(places, VAL_FRACTION))

    def _check_images(self) -> None:
        """Raise an error unless all images of the objects are there."""
        needed: dict[str, list[str]] = defaultdict(list)
        for image in np.unique(self.index.owners[self.objects]).tolist():
            folder, _, file = self.index.file(image).rpartition("/")
            needed[folder].append(file)
        for folder, files in sorted(needed.items()):
            place = self.image_root / folder
            if not place.is_dir():
                raise self.not_found(folder or f"the folder {place}")
            missing = sorted(set(files).difference(path.name for path in place.iterdir()))
            if missing:
                hint = self.images_hint or f"unpack {place.name}.zip again"
                raise DataError(
                    f"{place / missing[0]}: no such file, but {self.annotations.name} needs it "
                    f"({len(missing)} missing in all); {hint}"
                )


class COCO(AnnotatedObjects):
    """Objects of any JSON file in COCO format.

    The file has the lists `images` (with `id`, `file_name`, `height` and `width`),
    `annotations` (`id`, `image_id`, `segmentation`, and if there are such things `area`,
    `iscrowd` and `category_id`) and perhaps `categories` (`id` and `name`). An outline is
    a list of polygons, or run lengths, compressed or not. See `AnnotatedObjects` for the masks and
    for the index that is made of the file the first time.

    Args:
        annotations: The file; a relative path that does not exist is looked for in
            `$PROBSEG_DATA` (or `./data`).
        images: Folder that the `file_name` of an image starts from; looked for in the same way.
        min_area: Annotations with a smaller `area`, in pixels, are left out.
        max_fraction: Annotations whose `area` is a larger share of the image are left out; None
            for none.
        crowd: Whether crowds, outlines around several objects, are objects too.
        categories: Names of the categories that take part; None for all.
        part: `"train"` and `"val"` share the images of one file between them, a tenth of them
            for `"val"` and at least one.
        name: Name of the data set in tables and logs.
    """

    kind = "COCO"
    path_key = "file_name"
    images_hint = "check the `images` argument, or remove these images from the annotations"

    def __init__(
        self,
        annotations: Path | str,
        images: Path | str,
        min_area: int = 16,
        max_fraction: float | None = None,
        crowd: bool = False,
        categories: list[str] | None = None,
        part: Part = "all",
        name: str = "coco_json",
    ) -> None:
        self.name = name
        choice = Choice(min_area, max_fraction, crowd, categories, part)
        super().__init__(find_data(annotations), find_data(images), choice)

    @classmethod
    def place(cls, image: Entry) -> str:
        """Return the `file_name` of an image, which may have folders."""
        return file_of(image)

    def photo(self, file: str) -> str:
        """Identify a photograph by its path, as folders may have files of the same names."""
        return str(PurePosixPath(file).with_suffix(""))

    def not_found(self, missing: str) -> DatasetNotFoundError:
        """Return the error for a missing file or folder."""
        return DatasetNotFoundError(
            self.name,
            self.annotations.parent if missing == self.annotations.name else self.image_root,
            missing,
            "Check the arguments `annotations` and `images`; relative ones are also looked for in "
            "$PROBSEG_DATA or ./data.",
        )


class COCOInstances(COCO):
    """Instances of COCO 2017 as objects, of 80 categories.

    Layout: `annotations/instances_<split>2017.json`, `train2017/` and `val2017/`. Crowds are
    left out. See `AnnotatedObjects` for the masks, and for the index that is made of the JSON the
    first time.

    Args:
        split: `"train"` or `"val"`.
        root: The folder; by default `COCO` or `coco` inside `$PROBSEG_DATA` or `./data`.
        min_area: Annotations with a smaller `area`, in pixels, are left out.
    """

    name = "COCO"
    images_hint = ""
    licence = "annotations CC BY 4.0; photographs: terms of Flickr"

    def __init__(
        self,
        split: Literal["train", "val"] = "train",
        root: Path | str | None = None,
        min_area: int = 400,
    ) -> None:
        self.root = chosen_root(root, "COCO", "coco")
        annotations = self.root / "annotations" / f"instances_{split}2017.json"
        super().__init__(annotations, self.root / f"{split}2017", min_area, name=self.name)

    def not_found(self, missing: str) -> DatasetNotFoundError:
        """Return the error for a missing file or folder."""
        return DatasetNotFoundError(
            self.name,
            self.root,
            f"{missing} (in all annotations/instances_<split>2017.json, train2017/ and val2017/)",
            "Download annotations_trainval2017.zip, train2017.zip and val2017.zip from "
            "https://cocodataset.org/#download, unpack them into one folder, and pass it as `root` "
            "or set PROBSEG_DATA to the folder that holds it as COCO.",
        )


class LVIS(AnnotatedObjects, PublishedDataset):
    """Objects of LVIS v1: 1.27 million of 1203 categories on 100 thousand photographs for training.

    Layout: `lvis_v1_<split>.json`, `train2017/` and `val2017/`. Both splits have images in
    both folders: the end of an image's `coco_url` says where it is. Crowds are left out. See
    `AnnotatedObjects` for the masks, and for the index that is made of the JSON the first time: for
    the training split this takes about a minute.

    Args:
        split: `"train"` or `"val"`.
        root: The folder; by default `LVIS` or `lvis` inside `$PROBSEG_DATA` or `./data`.
        min_area: Annotations with a smaller `area`, in pixels, are left out.
    """

    name = "LVIS"
    kind = "LVIS v1"
    path_key = "coco_url"
    source = SOURCES["LVIS"]
    licence = source.licence

    def __init__(
        self,
        split: Literal["train", "val"] = "train",
        root: Path | str | None = None,
        min_area: int = 400,
    ) -> None:
        self.root = self.source.folder(root)
        annotations = self.root / f"lvis_v1_{split}.json"
        super().__init__(annotations, self.root, Choice(min_area))

    @classmethod
    def place(cls, image: Entry) -> str | None:
        """Return the last folder and the file of an image's address."""
        return "/".join(image["coco_url"].split("/")[-2:]) if "coco_url" in image else None

    def not_found(self, missing: str) -> DatasetNotFoundError:
        """Return the error for a missing file or folder."""
        return self.absent(f"{missing} (in all lvis_v1_<split>.json, train2017/ and val2017/)")
