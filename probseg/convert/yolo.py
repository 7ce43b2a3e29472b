"""Folders of YOLO-seg texts: a line for each object, relative to the image's size.

A line `class x y x y ...` is one outline. Parts and holes of an object are joined to it by lines
that lead there and back along the same way, which encloses no pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

from probseg.convert.parts import (
    NO_NAME,
    UNUSED,
    AnnotatedImage,
    LabelledRegion,
    Ledger,
    Request,
    folders,
    outlined,
    stems,
)
from probseg.data.layout import picture_files, read_classes
from probseg.errors import DataError
from probseg.formats.polygons import Points, Polygon, draw
from probseg.formats.regions import Region
from probseg.images import image_size
from probseg.paths import write_text
from probseg.texts import read_lines

DIGITS = 7
"""Decimals of a coordinate: less than a hundredth of a pixel in images of 100,000."""


def encode(number: int, polygons: Sequence[Polygon], size: tuple[int, int]) -> str:
    """Write an object, its parts as polygons in pixels of an image `(H, W)`, as a line."""
    if not polygons:
        msg = "`polygons` must have at least one part, got none: YOLO has no empty objects"
        raise ValueError(msg)
    rings = [ring for polygon in polygons for ring in (polygon.outer, *polygon.holes)]
    joined = _joined(rings)
    relative = joined / [size[1], size[0]]
    return " ".join([str(number), *(f"{value:.{DIGITS}f}" for value in relative.ravel())])


def decode(line: str, size: tuple[int, int]) -> tuple[int, Region]:
    """Return class and region of a line `class x y x y ...` of an image of `size` `(H, W)`."""
    words = line.split()
    try:
        number = int(words[0]) if words else -1
        values = np.array([float(word) for word in words[1:]])
    except ValueError as error:
        msg = f"a line must be `class x y x y ...` in numbers, got {line[:60]!r}"
        raise ValueError(msg) from error
    fault = ""
    if number < 0 or len(values) < 6 or len(values) % 2:
        fault = "a line must be a class of at least 0 and three or more pairs of coordinates"
        fault += "; lines of four numbers are boxes"
    elif not ((values >= 0) & (values <= 1)).all():
        fault = "coordinates must be relative to the image, from 0 to 1"
    if fault:
        msg = f"{fault}, got {line[:60]!r}"
        raise ValueError(msg)
    return number, draw([Polygon(values.reshape(-1, 2) * [size[1], size[0]])], size)


def _joined(rings: Sequence[Points]) -> Points:
    """Join each ring to those before it, at the nearest corners of both."""
    corners = np.concatenate(rings)
    starts = np.cumsum([0, *map(len, rings)])
    following = (np.arange(len(corners)) + 1).tolist()
    for begin, end in pairwise(starts.tolist()):
        following[end - 1] = begin
    places = list(range(len(corners)))  # corner of each place of the way; two are added by a join
    trees: list[tuple[int, cKDTree]] = []
    for begin, end in pairwise(starts.tolist()):
        if begin:
            ring = corners[begin:end]
            distances, nearest = zip(*(tree.query(ring) for _, tree in trees), strict=True)
            tree, j = np.unravel_index(np.argmin(distances), np.shape(distances))
            i, j = trees[tree][0] + int(nearest[tree][j]), begin + int(j)
            before = j - 1 if j > begin else end - 1
            back_at_j, back_at_i = len(places), len(places) + 1
            places += [j, i]
            following += [back_at_i, following[i]]
            following[before] = back_at_j
            following[i] = j
        # Trees of falling sizes: a corner is put into log2 of their number, not into one per ring.
        first = begin
        while trees and trees[-1][1].n <= end - first:
            first, _ = trees.pop()
        trees.append((first, cKDTree(corners[first:end])))
    way = [0]
    while (place := following[way[-1]]) != 0:
        way.append(place)
    joined: Points = corners[np.array(places)[way]]
    return joined


CLASSES = "classes.txt"
"""File with the names of the classes, a line each, in the order of their numbers."""


def read(place: Path, request: Request, ledger: Ledger) -> Iterator[AnnotatedImage]:
    """Read a folder of texts, without blank lines; `classes.txt` has the names of the classes."""
    listing = place / CLASSES
    names = read_classes(listing) if listing.is_file() else []
    used: set[int] = set()
    texts = partial(picture_files, suffixes=(".txt",))
    for folder in folders(place, request, ledger, "yolo", texts):
        for stem, path in folder.files.items():
            if stem not in folder.photos and path != listing:
                msg = (
                    f"{path}: there is no photograph of this name in {folder.images}; add the "
                    "photograph, or remove the file"
                )
                raise DataError(msg)
        for stem, photo in folder.photos.items():
            ledger.find(images=1)
            text = folder.files.get(stem)
            size = image_size(photo)
            objects = _objects(text, size, names, used, ledger) if text and text != listing else ()
            yield AnnotatedImage(folder.inside + photo.name, size, objects)
    ledger.change(UNUSED, len(set(range(len(names))) - used))


def _objects(
    path: Path, size: tuple[int, int], names: list[str], used: set[int], ledger: Ledger
) -> Iterator[LabelledRegion]:
    for row, line in read_lines(path):
        ledger.find(objects=1)
        try:
            number, region = decode(line, size)
        except ValueError as error:
            msg = f"{path}, line {row}: {error}"
            raise DataError(msg) from error
        used.add(number)
        name = names[number] if number < len(names) else f"{NO_NAME} {number}"
        ledger.change(f"objects of classes after the last of {CLASSES}", number >= len(names) > 0)
        yield LabelledRegion(region, name)


def write(place: Path, images: Iterable[AnnotatedImage], request: Request, ledger: Ledger) -> None:
    """Write `<stem>.txt` for each image, and `classes.txt`."""
    classes: dict[str, int] = {}
    for image, stem in stems(images):
        if f"{stem}.txt" == CLASSES:
            msg = f"{image.file}: its text would be {CLASSES}, the list of the classes; rename it"
            raise DataError(msg)
        lines = []
        for item in image.objects:
            name = " ".join(item.label.split()) or NO_NAME
            number = classes.get(name, len(classes))
            write_line = partial(encode, number, size=image.size)

            def draw_line(line: str, size: tuple[int, int] = image.size) -> Region:
                return decode(line, size)[1]

            outline = outlined(item, request, ledger, write_line, draw_line)
            if outline is None:
                continue
            classes[name] = number
            lines.append(outline.written)
            if name != item.label:
                ledger.change("names of classes that do not fit into a line, which change")
        write_text(place / f"{stem}.txt", "".join(f"{line}\n" for line in lines))
        ledger.write(images=1, objects=len(lines))
    write_text(place / CLASSES, "".join(f"{name}\n" for name in classes))
