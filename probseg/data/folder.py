"""Any folder with `images/` and `masks/`, and any two folders of images and masks."""

from __future__ import annotations

import copy
import logging
import re
import shlex
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from probseg.data.base import InteractiveDataset, PublishedDataset
from probseg.data.cache import NAMED, index_objects, read_all
from probseg.data.layout import (
    mask_files,
    names_to_leave_out,
    names_to_use,
    picture_files,
    preview,
    refuse_missing,
    unread_folders,
)
from probseg.errors import DataError, DatasetNotFoundError
from probseg.formats.mask_names import mask_names
from probseg.images import check_same_size, image_size, read_image
from probseg.masks import (
    RULES,
    DoubtError,
    Meaning,
    count_values,
    object_mask,
    read_grey,
    read_objects,
    read_own_labels,
)
from probseg.paths import data_dir, find_data
from probseg.picture_formats import IMAGE_SUFFIXES, LOSSLESS_SUFFIXES, unread_files
from probseg.texts import count
from probseg.types import IGNORE, Sample

_logger = logging.getLogger(__name__)

DOUBT = 256  # added to numbers of objects that may be shades


class ImageMaskFolder(InteractiveDataset):
    """Objects of a folder with `images/` and `masks/`.

    An image `images/cat.jpg` belongs to `masks/cat.png`, or to several masks
    `masks/cat_1.png`, `masks/cat_2.png`; see `probseg.formats.mask_names`. Without a folder
    `images/` the images lie in the folder itself, as `probseg annotate` leaves a folder of
    photographs. In a mask, 0 is background,
    1 to 254 are objects and 255 is ignored; a mask with 0 and 255 only is black and white, 255
    being the object. When the data set is built for the first time all masks are read and the sizes
    of all images, so that a bad file is named before training starts; what was found is kept in a
    folder `.probseg` until a file changes. A mask without image is an error; images without a mask,
    or without an object that is large enough, are not used and named in the log.

    Args:
        root: The folder; a relative path that does not exist is looked for in `$PROBSEG_DATA`
            (or `./data`).
        split: Text file, relative to `root`, whose first column (up to a tab) holds the stems or
            file names of the images that take part, each once. All images by default.
        exclude: Such a list of the images to leave out. It may have other names, too, which a
            warning in the log counts.
        prefixes: Only images whose name starts with one of these; all by default.
        min_area: Objects with fewer pixels are skipped.
        name: Name of the data set in tables and logs.
        masks: What masks mean: `"numbers"` of objects, or `"black_and_white"`, where all that is
            brighter than 128 is the object. By default the values of each mask decide; one in doubt
            counts as numbers if the folder's other masks have the same, else it is an error.
    """

    def __init__(
        self,
        root: Path | str,
        split: str | None = None,
        exclude: str | None = None,
        prefixes: list[str] | None = None,
        min_area: int = 16,
        name: str = "folder",
        masks: Meaning | None = None,
    ) -> None:
        self.meaning = masks
        self.root = find_data(root)
        self.name = name
        check_layout(self.root, name)
        place, within = self.root / images_folder(self.root), self.root / "masks"
        images, mask_paths = picture_files(place, root=self.root), mask_files(within, self.root)
        for files, folder, suffixes in (
            (images, place, IMAGE_SUFFIXES),
            (mask_paths, within, LOSSLESS_SUFFIXES),
        ):
            if not files:
                inside = [f"{path} {reason}" for path, reason in unread_folders(folder).items()]
                hint = "; ".join(inside) or "check the `root` argument"
                kinds = ", ".join(suffixes)
                raise DataError(f"{folder}: holds no file with one of the suffixes {kinds}; {hint}")
        owned = pair_masks(images, mask_paths, self.root, place)
        stems = sorted(images)
        if split is not None:
            known = ((stem, images[stem]) for stem in owned)
            what = "images without image or mask"
            stems = names_to_use(self.root / split, "split", known, what)
        if exclude is not None:
            unwanted = names_to_leave_out(self.root / exclude, "exclude", images.items(), name)
            stems = [stem for stem in stems if stem not in unwanted]
        if prefixes is not None:
            unused = [
                prefix for prefix in prefixes if not any(stem.startswith(prefix) for stem in owned)
            ]
            if unused:
                raise DataError(
                    f"{self.root}: `prefixes` must be beginnings of names of images with a mask, "
                    f"none begins with {', '.join(map(repr, unused))} (images: {preview(owned)})"
                )
            stems = [stem for stem in stems if stem.startswith(tuple(prefixes))]
        bare = [images[stem].name for stem in stems if stem not in owned]
        stems = [stem for stem in stems if stem in owned]
        pairs = [(images[stem], mask_path) for stem in stems for mask_path in owned[stem]]
        read = (path for pair in pairs for path in pair)
        options = {"rules": RULES, "masks": masks or ""}
        rows = index_objects(
            "folder", self.root, partial(count_objects, masks), pairs, read, **options
        )
        list(read_all(read_objects, in_doubt(rows), "folder"))  # raises for masks in doubt
        filled = [mask.name for (_, mask), number, _ in rows if number == 0]
        rows = [(pair, number % DOUBT, area) for pair, number, area in rows if number]
        large = [(*pair, number, area) for pair, number, area in rows if area >= min_area]
        self.objects = [row[:3] for row in large]  # image, mask, object number
        self._areas = np.array([area for *_, area in large], np.int64)
        if not self.objects:
            raise DataError(
                f"{self.root}: no object of at least {min_area} pixels (`min_area`) is left after "
                "selection"
            )
        used = {image for image, *_ in self.objects}
        bare_of_objects = sorted({image.name for image, _ in pairs if image not in used})
        unread = [path.name for path in unread_files(place)]
        self._warn("photographs in a format that is not read, not used", unread)
        folders = [str(path.relative_to(self.root)) for path in unread_folders(place, within)]
        self._warn("folders of pictures inside of it, not used", folders)
        self._warn("images without a mask, not used", bare)
        small = f"images without an object of at least {min_area} pixels, not used"
        self._warn(small, bare_of_objects)
        drawn_on = {mask for (_, mask), *_ in rows}
        empty = [mask.name for _, mask in pairs if mask not in drawn_on]
        self._warn("masks without an object, not used", empty)
        white = "masks that one object fills, no background (255 alone is white, not ignored)"
        self._warn(white, filled)

    def _warn(self, what: str, names: Sequence[str]) -> None:
        """Log which images are left out, unless there are none."""
        if names:
            _logger.warning("%s: %s (%d): %s", self.root, what, len(names), preview(names, NAMED))

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Sample:
        """Read one object and its image."""
        path = self.image_file(index)
        (mask,) = self.read_masks([index])
        return Sample(read_image(path), mask, self.object_name(index), self.name, path.stem)

    def image_file(self, index: int) -> Path:
        """Return the file of an object's image."""
        return self.objects[index][0]

    def read_masks(self, indices: Iterable[int]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the masks of objects; see the base class."""
        labels = lru_cache(maxsize=1)(partial(read_own_labels, meaning=self.meaning))
        for index in indices:
            _, path, number = self.objects[index]
            yield object_mask(labels(path), number)

    @property
    def photographs(self) -> list[Path]:
        """Files of the images that have objects, sorted."""
        return sorted({image for image, _, _ in self.objects})

    def of_photographs(self, photographs: Container[Path]) -> ImageMaskFolder:
        """Return a data set of the objects of some of the photographs."""
        chosen = [i for i, (image, _, _) in enumerate(self.objects) if image in photographs]
        part = copy.copy(self)
        part.objects = [self.objects[i] for i in chosen]
        part._areas = self._areas[chosen]
        return part

    def object_name(self, index: int) -> str:
        """Return the stem of a mask and, unless it is black and white, the object's number."""
        _, mask_path, number = self.objects[index]
        return mask_path.stem + ("" if number == IGNORE else f"#{number}")


def check_layout(root: Path, name: str = "folder") -> None:
    """Raise unless a folder has `masks/`; its photographs may be in it or in `images/`."""
    if (root / "masks").is_dir():
        return
    expected = "images/ and masks/ (or masks/ next to the photographs)"
    if root.is_dir():
        there = len([path for path in root.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES])
        has = (
            "images/" if (root / "images").is_dir() else count(there, "photograph") if there else ""
        )
        expected += f"; it has {f'{has}, but no masks/' if has else 'neither'}"
    if root.is_dir():
        places = [root.absolute().parent, *sorted(root.iterdir())]
    else:
        names = [path.name for path in root.parent.glob("*/")]
        close = get_close_matches(root.name, names, cutoff=0.7)
        places = [root.with_name(name) for name in close]
    near = next((str(place) for place in places if (place / "masks").is_dir()), None)
    hint = f"Did you mean {near}? " if near else ""
    hint += f"Check the `root` argument; a relative one is also looked for in {data_dir()} "
    raise DatasetNotFoundError(f"The data set {name!r}", root, expected, f"{hint}($PROBSEG_DATA).")


def images_folder(root: Path) -> str:
    """Return `"images"`, or `"."` where photographs lie next to `masks/`."""
    flat = (root / "masks").is_dir() and not (root / "images").is_dir()
    return "." if flat else "images"


def count_objects(meaning: Meaning | None, pair: tuple[Path, Path]) -> npt.NDArray[np.int64]:
    """Count the pixels of each object of a mask; from `DOUBT` on, those of one in doubt.

    The count of number 0 is 1 if a single object leaves no background.
    """
    image_path, mask_path = pair
    try:
        (labels, numbers), offset = read_objects(mask_path, meaning), 0
    except DoubtError:
        (labels, numbers), offset = read_objects(mask_path, "numbers"), DOUBT
        if labels.shape != image_size(image_path):
            raise
    check_same_size(image_size(image_path), labels.shape, image_path, mask_path)
    areas = np.zeros(2 * DOUBT, np.int64)
    areas[[offset + number for number in numbers]] = count_values(labels)[numbers]
    areas[0] = len(numbers) == 1 and labels.all()
    return areas


_Row = tuple[tuple[Path, Path], int, int]


def in_doubt(rows: Sequence[_Row]) -> list[Path]:
    """Decide about masks in doubt: numbers that the others of the folder have are numbers."""
    sure = {(mask, number) for (_, mask), number, _ in rows if 0 < number < IGNORE}
    doubtful = {mask for (_, mask), number, _ in rows if number >= DOUBT}
    known = {number for _, number in sure}
    few = len(doubtful) <= len({mask for mask, _ in sure})
    strange = {m for (_, m), number, _ in rows if number >= DOUBT and number - DOUBT not in known}
    return sorted(strange if few else doubtful)


def pair_masks(
    images: Mapping[str, Path], masks: Mapping[str, Path], root: Path, place: Path
) -> dict[str, list[Path]]:
    """Find the masks of each image."""
    rule = mask_names(place)
    pairs: dict[str, list[Path]] = defaultdict(list)
    orphans = []
    for stem, path in masks.items():
        owner = rule.owner(stem)
        if owner is not None and owner in images:
            pairs[owner].append(path)
        else:
            orphans.append(path)
    if not orphans:
        return dict(pairs)
    names = preview(path.name for path in orphans)
    parts = [f"{root}: masks without an image: {len(orphans)}, among them {names}"]
    if not pairs:
        parts = [
            f"{root}: no mask matches an image; masks/<stem>.png or masks/<stem>_<n>.png must have "
            f"the stem of a file in images/ (images: {preview(images)}; masks: {preview(masks)})"
        ]
    near = (
        (mask, stem)
        for mask in orphans
        for stem in images
        if re.match(rf"{re.escape(stem)}[\W_]", mask.stem)
    )
    if pair := next(near, None):
        (mask, owner), suffix = pair, pair[0].suffix
        parts.append(
            f"to belong to {images[owner].name}, {mask.name} must be named {owner}{suffix} or "
            f"{owner}_1{suffix}"
        )
    else:
        parts.append("add the images or remove the masks")
    if unread := [path.name for path in unread_files(place)]:
        parts.append(f"convert {preview(unread)} to JPEG or PNG: the format is not read")
    raise DataError(
        "; ".join([*parts, f"`probseg data check {shlex.quote(str(root))}` lists all problems"])
    )


class Pairs(InteractiveDataset):
    """Base of data sets with one object in each mask.

    `pairs` has image and mask of each object, in the order of the masks' names.
    """

    pairs: list[tuple[Path, Path]]

    @staticmethod
    def photo(stem: str) -> str:
        """Identify the photograph of a mask, given the name of the mask."""
        return stem

    @staticmethod
    def read_mask(path: Path) -> npt.NDArray[np.uint8]:
        """Read a mask: uint8, shape `(H, W)`, 1 object, 0 background, 255 ignored."""
        return (read_grey(path) > 128).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        """Read one object and its photograph."""
        image_path, mask_path = self.pairs[index]
        image = read_image(image_path)
        mask = self.read_mask(mask_path)
        check_same_size(image.shape, mask.shape, image_path, mask_path)
        stem = self.object_name(index)
        return Sample(image, mask, stem, self.name, self.photo(stem))

    def object_name(self, index: int) -> str:
        """Return the stem of a mask."""
        return self.pairs[index][1].stem


class ImageMaskPairs(Pairs, PublishedDataset):
    """Base of the test sets in two folders; every mask has an image and every image a mask."""

    image_folder: str
    mask_folder: str

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = self.source.folder(root)
        folders = self.image_folder, self.mask_folder
        images, masks = (picture_files(self.root / folder) for folder in folders)
        if not images or not masks:
            raise self.absent("the folders {}/ (images) and {}/ (masks)".format(*folders))
        owners = {stem: stem if stem in images else self.photo(stem) for stem in masks}
        strangers = sorted(stem for stem, owner in owners.items() if owner not in images)
        refuse_missing(self.root / self.image_folder, "image", strangers, self.mask_folder)
        unused = sorted(set(images) - set(owners.values()))
        refuse_missing(self.root / self.mask_folder, "mask", unused, self.image_folder)
        self.pairs = [(images[owners[stem]], masks[stem]) for stem in sorted(masks)]


class ImagePairs(Pairs):
    """Images `<stem>.jpg` and masks `<stem>.png` with one object each, named by two folders.

    Grey values above 128 are the object and nothing is ignored. Both folders may be the same; a
    file is then a mask if its format is lossless, else an image. All masks and the sizes of all
    images are read once, when the data set is built for the first time, so that a bad file is named
    before training starts. For numbered objects, ignored pixels or several masks to an image there
    is `ImageMaskFolder`.

    Args:
        images: Folder of the images; a relative path that does not exist is looked for in
            `$PROBSEG_DATA` (or `./data`).
        masks: Folder of the masks; likewise.
        name: Name of the data set in tables and logs.
    """

    name = "ImagePairs"

    def __init__(self, images: Path | str, masks: Path | str, name: str = "ImagePairs") -> None:
        self.name = name
        self.images, self.masks = find_data(images), find_data(masks)
        lossy = tuple(suffix for suffix in IMAGE_SUFFIXES if suffix not in LOSSLESS_SUFFIXES)
        mixed = self.images == self.masks
        owners = _of_suffixes(self.images, lossy if mixed else IMAGE_SUFFIXES, name)
        mask_paths = _of_suffixes(self.masks, LOSSLESS_SUFFIXES, name)
        refuse_missing(self.images, "image", sorted(set(mask_paths) - set(owners)), self.masks.name)
        refuse_missing(self.masks, "mask", sorted(set(owners) - set(mask_paths)), self.images.name)
        self.pairs = [(owners[stem], mask_paths[stem]) for stem in sorted(mask_paths)]

        def count(pair: tuple[Path, Path]) -> npt.NDArray[np.int64]:
            image, mask = pair
            inside = self.read_mask(mask)
            check_same_size(image_size(image), inside.shape, image, mask)
            return np.array([0, inside.sum()])  # of number 1 of a map

        files = (path for pair in self.pairs for path in pair)
        rows = index_objects("pairs", self.masks, count, self.pairs, files, rules=RULES)
        self._areas = np.array([area for *_, area in rows], np.int64)


def _of_suffixes(folder: Path, suffixes: Sequence[str], name: str) -> dict[str, Path]:
    """Map the stems of the files of some formats in a folder to their paths."""
    files = picture_files(folder, suffixes)
    if not files:
        raise DatasetNotFoundError(
            name,
            folder,
            f"files with one of the suffixes {', '.join(suffixes)}",
            "Check the names of the folders and whether everything is unpacked.",
        )
    return files
