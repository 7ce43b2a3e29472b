"""Folders of mask files: one for each object, or one for each image with the objects' numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy import ndimage

from probseg.convert.parts import (
    NO_NAME,
    AnnotatedImage,
    LabelledRegion,
    Ledger,
    Request,
    folders,
    stems,
)
from probseg.data.folder import pair_masks
from probseg.data.layout import mask_files
from probseg.errors import DataError
from probseg.formats import png
from probseg.formats.mask_names import mask_names
from probseg.formats.regions import Region
from probseg.images import check_same_size, image_size
from probseg.masks import MAX_IDS, count_values, read_objects
from probseg.types import IGNORE


def read(place: Path, request: Request, ledger: Ledger) -> Iterator[AnnotatedImage]:
    """Read a folder of masks, or its folder `masks/`, as `ImageMaskFolder` pairs them.

    `cat.png`, or `cat_1.png` and so on, are masks of `cat.jpg`: 0 is background, 1 to 254 are
    objects and 255 is ignored; with 0 and 255 only, 255 is the object.
    """
    whole = place / "masks" if (place / "masks").is_dir() else place
    for folder in folders(whole, request, ledger, "png or index", mask_files):
        masks = pair_masks(folder.photos, folder.files, place / folder.inside, folder.images)
        for stem, photo in folder.photos.items():
            ledger.find(images=1)
            paths = sorted(masks.get(stem, ()), key=lambda path: (len(path.stem), path.stem))
            yield AnnotatedImage(
                folder.inside + photo.name, image_size(photo), _objects(photo, paths, ledger)
            )


def _objects(photo: Path, paths: list[Path], ledger: Ledger) -> Iterator[LabelledRegion]:
    size = image_size(photo)
    for path in paths:
        labels, numbers = read_objects(path)
        check_same_size(size, labels.shape, photo, path)
        if not numbers:
            if path.stem != photo.stem:  # of an object, and not of the image
                ledger.find(objects=1)
                ledger.lose("in masks without a pixel", objects=1)
            continue
        ledger.find(objects=len(numbers))
        if numbers != [IGNORE] and (labels == IGNORE).any():
            ledger.change("masks with ignored pixels, which become background")
        boxes = ndimage.find_objects(labels)
        for number in numbers:
            rows, columns = boxes[number - 1]
            inside = labels[rows, columns] == number
            yield LabelledRegion(Region(inside, columns.start, rows.start, size))


def write_binary(
    place: Path, images: Iterable[AnnotatedImage], request: Request, ledger: Ledger
) -> None:
    """Write `<stem>_<n>.png` for each object, 255 on it; see `probseg.formats.mask_names`.

    Names that would belong to another image are left out, those of the folder `request.images`
    too. The files get their names when all images are known.
    """
    place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place, prefix=".") as unnamed:
        files: dict[str, list[Path]] = {}
        for number, (image, stem) in enumerate(stems(images)):
            own_files = files[str(stem)] = []
            for item in image.objects:
                _lose_label(item, ledger)
                own_files.append(Path(unnamed, f"{number}_{len(own_files)}.png"))
                png.write_binary(own_files[-1], item.region.mask())
            ledger.write(objects=len(own_files), images=bool(own_files))
            if not own_files:
                ledger.lose("without objects, which have no file", images=1)
        names = mask_names(request.images, files)
        for owner, paths in files.items():
            for path, name in zip(paths, names.first(owner, len(paths)), strict=True):
                target = place / f"{name}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)


def write_index(
    place: Path, images: Iterable[AnnotatedImage], request: Request, ledger: Ledger
) -> None:
    """Write `<stem>.png` for each image, with the numbers of its objects from 1 on."""
    for image, stem in stems(images):
        labels = np.zeros(image.size, dtype=np.uint8)
        areas = np.zeros(256, dtype=np.int64)
        count = covered = 0
        for count, item in enumerate(image.objects, start=1):
            if count > MAX_IDS:
                raise DataError(
                    f"{image.file}: has more than {MAX_IDS} objects, the most that are read from "
                    "an index PNG; convert to png"
                )
            _lose_label(item, ledger)
            part, inside = labels[item.region.window], item.region.inside
            before = count_values(part[inside])
            covered += int(before[1:].sum())
            areas -= before
            part[inside] = count
            areas[count] = item.region.area
        png.write_index(place / f"{stem}.png", labels)
        seen = int(np.count_nonzero(areas[1 : count + 1]))
        ledger.write(images=1, objects=seen)
        ledger.lose("that later ones cover whole", objects=count - seen)
        ledger.change("pixels of several objects, which the last one gets", covered)


def _lose_label(item: LabelledRegion, ledger: Ledger) -> None:
    if item.label != NO_NAME:
        ledger.change("names of classes of objects")
