"""Any folder with `images/` and `masks/`."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from probseg.data.base import InteractiveDataset
from probseg.data.layout import mask_files, picture_files
from probseg.data.reading import NAMED, index_objects
from probseg.errors import DataError, DatasetNotFoundError
from probseg.images import (
    IMAGE_SUFFIXES,
    LOSSLESS_SUFFIXES,
    check_same_size,
    image_size,
    read_image,
    unread_files,
)
from probseg.masks import RULES, Objects, read_object, read_objects
from probseg.object_numbers import refuse_empty
from probseg.paths import data_dir, find_data
from probseg.types import IGNORE, Sample


class ImageMaskFolder(InteractiveDataset):
    """Objects of a folder with `images/` and `masks/`.

    An image `images/cat.jpg` belongs to `masks/cat.png`, or to several masks
    `masks/cat_1.png`, `masks/cat_2.png`. Without a folder `images/` the images lie in the
    folder itself, as `probseg annotate` leaves a folder of photographs. In a mask, 0 is background,
    1 to 254 are objects and 255 is ignored; a mask with 0 and 255 only is black and white, 255
    being the object. When the data set is built for the first time all masks are read and the sizes
    of all images, so that a bad file is named before training starts; what was found is kept in a
    folder `.probseg` until a file changes. A mask without image is an error; images without a mask,
    or without an object that is large enough, are not used and named on stderr.

    Args:
        root: The folder; a relative path that does not exist is looked for in `$PROBSEG_DATA`
            (or `./data`).
        split: Text file with one image stem per line that says which images take part; relative
            to `root`. All images by default.
        exclude: Image stems to leave out: a text file, relative to `root`, whose first column
            (up to a tab) holds the stems.
        prefixes: Only images whose name starts with one of these; all by default.
        min_area: Objects with fewer pixels are skipped.
        name: Name of the data set in tables and logs.

    Raises:
        DatasetNotFoundError: If the folders are not there.
        DataError: If files do not pair up or a mask cannot be used.
    """

    def __init__(
        self,
        root: Path | str,
        split: str | None = None,
        exclude: str | None = None,
        prefixes: list[str] | None = None,
        min_area: int = 16,
        name: str = "folder",
    ) -> None:
        self.root = find_data(root)
        self.name = name
        images = _list(self.root, images_folder(self.root), IMAGE_SUFFIXES, name)
        drawn = _list(self.root, "masks", LOSSLESS_SUFFIXES, name)
        masks = pair_masks(images, drawn, self.root, self.root / images_folder(self.root))
        stems = sorted(images)
        if split is not None:
            stems = _read_stems(self.root / split, masks)
        if exclude is not None:
            unwanted = set(_read_stems(self.root / exclude, None))
            stems = [stem for stem in stems if stem not in unwanted]
        if prefixes is not None:
            stems = [stem for stem in stems if stem.startswith(tuple(prefixes))]
        bare = [images[stem].name for stem in stems if stem not in masks]
        stems = [stem for stem in stems if stem in masks]
        pairs = [(images[stem], mask_path) for stem in stems for mask_path in masks[stem]]
        files = (path for pair in pairs for path in pair)
        found = index_objects("folder", self.root, _count, pairs, files, rules=RULES)
        large = [(*pair, number, area) for pair, number, area in found if area >= min_area]
        self.objects = [row[:3] for row in large]  # image, mask, object number
        self._areas = np.array([area for *_, area in large], np.int64)
        if not self.objects:
            msg = (
                f"{self.root}: no object of at least {min_area} pixels (`min_area`) is left after "
                "selection"
            )
            raise DataError(msg)
        used = {image for image, *_ in self.objects}
        bare_of_objects = sorted({image.name for image, _ in pairs if image not in used})
        self._say("images have no mask and are not used", bare)
        small = f"images have no object of at least {min_area} pixels and are not used"
        self._say(small, bare_of_objects)

    def _say(self, what: str, names: Sequence[str]) -> None:
        """Say on stderr which images are left out, unless there are none."""
        if names:
            sys.stderr.write(f"probseg: {self.root}: {len(names)} {what}: {_some(names, NAMED)}\n")

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.objects)

    def __getitem__(self, index: int) -> Sample:
        """Read one object and its image."""
        image_path, mask_path, number = self.objects[index]
        image = read_image(image_path)
        mask = read_object(mask_path, number)
        return Sample(image, mask, self.object_name(index), self.name, image_path.stem)

    @property
    def areas(self) -> npt.NDArray[np.int64]:
        """Pixels of each object, shape `(len(self),)`."""
        return self._areas

    def object_name(self, index: int) -> str:
        """Return the stem of a mask and, unless it is black and white, the object's number."""
        _, mask_path, number = self.objects[index]
        return mask_path.stem + ("" if number == IGNORE else f"#{number}")


def images_folder(root: Path) -> str:
    """Return `"images"`, or `"."` where photographs lie next to `masks/`."""
    flat = (root / "masks").is_dir() and not (root / "images").is_dir()
    return "." if flat else "images"


def drawn_objects(path: Path) -> Objects:
    """Read the objects of a mask file, see `read_objects`; there is at least one."""
    found = read_objects(path)
    refuse_empty(found.numbers, path)
    return found


def _count(pair: tuple[Path, Path]) -> npt.NDArray[np.int64]:
    """Count the pixels of each object of a mask."""
    image_path, mask_path = pair
    labels, numbers = drawn_objects(mask_path)
    check_same_size(image_size(image_path), labels.shape, image_path, mask_path)
    areas = np.zeros(256, np.int64)
    areas[numbers] = np.bincount(labels.ravel(), minlength=256)[numbers]
    return areas


def _list(root: Path, folder: str, suffixes: tuple[str, ...], name: str) -> dict[str, Path]:
    """Map the stems of a folder's picture files to their paths."""
    place = root / folder
    if not place.is_dir():
        raise DatasetNotFoundError(
            name,
            root,
            f"the folders images/ and masks/, and {folder}/ is missing",
            "Check the `root` argument; a relative one is also looked for in "
            f"{data_dir()} ($PROBSEG_DATA).",
        )
    files = mask_files(place) if folder == "masks" else picture_files(place, suffixes)
    if not files:
        msg = (
            f"{place}: holds no file with one of the suffixes {', '.join(suffixes)}; check the "
            "`root` argument"
        )
        raise DataError(msg)
    return files


def pair_masks(
    images: Mapping[str, Path], masks: Mapping[str, Path], root: Path, place: Path
) -> dict[str, list[Path]]:
    """Find the masks of each image.

    Args:
        images: Files of the images by their stems.
        masks: Files of the masks by their stems.
        root: The folder, named in the errors.
        place: The folder of the images.

    Returns:
        The masks of the images that have one, in the order of `masks`.

    Raises:
        DataError: If a mask has no image.
    """
    pairs: dict[str, list[Path]] = defaultdict(list)
    orphans = []
    for stem, path in masks.items():
        owner = stem if stem in images else re.sub(r"_\d+$", "", stem)
        if owner in images:
            pairs[owner].append(path)
        else:
            orphans.append(path)
    if masks and not pairs:
        msg = (
            f"{root}: no mask matches an image; masks/<stem>.png or masks/<stem>_<n>.png must have "
            f"the stem of a file in images/ (images: {_some(images)}; masks: {_some(masks)}); "
            f"{_remedies(orphans, images, root, place)}"
        )
        raise DataError(msg)
    if orphans:
        names = _some(path.name for path in orphans)
        msg = (
            f"{root}: masks without an image: {len(orphans)}, among them {names}; "
            f"{_remedies(orphans, images, root, place)}"
        )
        raise DataError(msg)
    return dict(pairs)


def _some(names: Iterable[str], most: int = 3) -> str:
    """Return the first of some names in their order, as part of a sentence."""
    ordered = sorted(names)
    return ", ".join([*ordered[:most], *(["..."] if ordered[most:] else [])])


def _remedies(orphans: Sequence[Path], images: Mapping[str, Path], root: Path, place: Path) -> str:
    """Return how to give masks their images, as the end of a sentence.

    Args:
        orphans: Masks without an image.
        images: Files of the images by their stems.
        root: The folder.
        place: The folder of the images.
    """
    parts = []
    for mask in orphans:
        near = (stem for stem in images if re.match(rf"{re.escape(stem)}[\W_]", mask.stem))
        owner = next(near, None)
        if owner is not None:
            suffix = mask.suffix
            parts.append(
                f"to belong to {images[owner].name}, {mask.name} must be named {owner}{suffix} or "
                f"{owner}_1{suffix}"
            )
            break
    else:
        parts.append("add the images or remove the masks")
    unread = [path.name for path in unread_files(place)]
    if unread:
        parts.append(f"convert {_some(unread)} to JPEG or PNG: the format is not read")
    return "; ".join([*parts, f"`probseg data check {root}` lists all problems"])


def _read_stems(path: Path, known: dict[str, list[Path]] | None) -> list[str]:
    """Read the first column of a list of stems; stems that are not known raise."""
    if not path.is_file():
        msg = f"{path}: no such list of images; check the `split` and `exclude` arguments"
        raise DataError(msg)
    lines = path.read_text(encoding="utf-8").splitlines()
    stems = [line.split("\t")[0].strip() for line in lines if line.strip()]
    if known is not None:
        missing = [stem for stem in stems if stem not in known]
        if missing:
            msg = f"{path}: lists {len(missing)} images without image or mask: {_some(missing)}"
            raise DataError(msg)
    return stems
