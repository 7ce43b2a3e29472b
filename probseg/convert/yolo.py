"""Folders of YOLO-seg texts: a line for each object, relative to the image's size.

A line `class x y x y ...` is one outline; predictions have a confidence after it. Parts and holes
of an object are joined to it by lines that lead there and back along the same way, which encloses
no pixel.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from scipy.spatial import cKDTree

from probseg.convert.parts import (
    NO_NAME,
    AnnotatedImage,
    LabelledRegion,
    Ledger,
    Request,
    folders,
    outlined,
    stems,
)
from probseg.data.layout import picture_files, read_classes
from probseg.errors import DataError, require
from probseg.formats.polygons import Points, Polygon, draw
from probseg.formats.regions import Region
from probseg.images import image_size
from probseg.paths import write_text
from probseg.texts import read_lines

MARGIN = 0.05  # share of a side by which corners may be outside of the image

MOST_CLASSES = 1_000_000  # numbers of classes are below

DIGITS = 7  # decimals of a coordinate: less than a hundredth of a pixel in images of 100,000


def encode(number: int, polygons: Sequence[Polygon], size: tuple[int, int]) -> str:
    """Write an object, its parts as polygons in pixels of an image `(H, W)`, as a line."""
    require(polygons, "polygons", "at least one part, as YOLO has no empty objects", "none")
    rings = [ring for polygon in polygons for ring in (polygon.outer, *polygon.holes)]
    joined = _joined(rings)
    relative = joined / [size[1], size[0]]
    return " ".join([str(number), *(f"{value:.{DIGITS}f}" for value in relative.ravel())])


class Line(NamedTuple):
    """Content of a line."""

    number: int  # of the class
    region: Region
    score: float | None  # confidence of a prediction
    outside: bool  # whether a corner is outside of the image


def decode(line: str, size: tuple[int, int]) -> Line:
    """Read a line `class x y x y ...`, perhaps with a confidence, of an image of `(H, W)`.

    What is a little outside of the image is cut off: programs round, and people drag corners there.
    """
    try:
        number, *listed = map(float, line.split() or ["-1"])
    except ValueError as error:
        raise ValueError(
            f"a line must be `class x y x y ...` in numbers, got {line[:60]!r}"
        ) from error
    score = listed.pop() if len(listed) % 2 and len(listed) > 6 and 0 < listed[-1] < 1 else None
    values = np.array(listed)
    fault = ""
    if not 0 <= number < MOST_CLASSES or number % 1 or len(values) < 6 or len(values) % 2:
        fault = "a line must be a class of at least 0 and three or more pairs of coordinates"
        fault += "; lines of four numbers are boxes"
    elif not ((values >= -MARGIN) & (values <= 1 + MARGIN)).all():
        fault = "coordinates must be relative to the image, from 0 to 1"
    if fault:
        raise ValueError(f"{fault}, got {line[:60]!r}")
    region = draw([Polygon(values.reshape(-1, 2) * [size[1], size[0]])], size)
    return Line(int(number), region, score, bool(((values < 0) | (values > 1)).any()))


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


# file with the names of the classes, a line each, in the order of their numbers
CLASSES = "classes.txt"

# file of Ultralytics and Roboflow with the `names` of the classes; it may have another name
CONFIG = "data.yaml"


def read(place: Path, request: Request, ledger: Ledger) -> Iterator[AnnotatedImage]:
    """Read a folder of texts, without blank lines, or one with texts in its `labels/`.

    The names of the classes are those of `classes.txt` or of a `data.yaml`, in the folder or above
    its `labels/`. Photographs are in `images/` beside `labels/` unless the request says where.
    """
    roots = sorted({place, *(path for path in place.rglob("labels") if path.is_dir())} - {place})
    names = next(filter(None, map(_names, (place, *place.parents[:2]))), [])
    ledger.classes.update(dict.fromkeys(names))
    for root in roots or [place]:
        beside = len(roots) > 1 or request.images is None
        images = root.parent / "images" if beside else request.images
        inside = "" if len(roots) < 2 else f"{root.parent.relative_to(place).as_posix()}/"
        where, listing = request._replace(images=images), root / CLASSES
        texts = partial(picture_files, suffixes=(".txt",))
        for folder in folders(root, where, ledger, "yolo", texts, {root / CONFIG}):
            for stem, path in folder.files.items():
                if stem not in folder.photos and path != listing:
                    raise DataError(
                        f"{path}: there is no photograph of this name in {folder.images}; add the "
                        "photograph, or remove the file"
                    )
            for stem, photo in folder.photos.items():
                ledger.find(images=1)
                text, size = folder.files.get(stem), image_size(photo)
                labelled = None if text == listing else text
                objects = _objects(labelled, size, names, ledger) if labelled else ()
                yield AnnotatedImage(f"{inside}{folder.inside}{photo.name}", size, objects)


def _names(place: Path) -> list[str]:
    """Return the names of the classes that the files of a folder list; none without any."""
    if (place / CLASSES).is_file():
        return read_classes(place / CLASSES)
    for path in sorted(place.glob("*.y*ml"), key=lambda path: path.name != CONFIG):
        try:
            table = yaml.safe_load(path.read_text("utf-8"))
            if path.name != CONFIG and "names" not in (table or ()):  # of something else
                continue
            names = table["names"]
            listed = dict(enumerate(names)) if isinstance(names, list) else dict(names)
            return [str(listed.get(n, f"{NO_NAME} {n}")) for n in range(max(map(int, listed)) + 1)]
        except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path}: `names` must be a list of classes, or a table by their numbers"
            ) from error
    return []


def _objects(
    path: Path, size: tuple[int, int], names: list[str], ledger: Ledger
) -> Iterator[LabelledRegion]:
    unnamed = f"objects of classes after the last of {CLASSES}"
    if not names:
        unnamed = f"objects whose classes have numbers only, without {CLASSES} or {CONFIG}"
    for row, line in read_lines(path):
        ledger.find(objects=1)
        try:
            number, region, score, outside = decode(line, size)
        except ValueError as error:
            raise DataError(f"{path}, line {row}: {error}") from error
        name = names[number] if number < len(names) else f"{NO_NAME} {number}"
        ledger.change(unnamed, number >= len(names))
        ledger.change("objects with corners outside of their image, which are cut", outside)
        yield LabelledRegion(region, name, score)


def _in_a_line(name: str) -> str:
    return " ".join(name.split()) or NO_NAME


def write(place: Path, images: Iterable[AnnotatedImage], request: Request, ledger: Ledger) -> None:
    """Write a data set that Ultralytics trains from.

    That is `labels/<stem>.txt` for each image, `data.yaml`, and `classes.txt` for other programs.
    Classes have the numbers of the order in which the source lists them. The photographs of
    `request.images` are linked into `images/`, or copied.
    """
    listed = dict.fromkeys(map(_in_a_line, ledger.classes))
    classes = {name: number for number, name in enumerate(listed)}
    for image, stem in stems(images):
        if f"{stem}.txt" == CLASSES:
            raise DataError(
                f"{image.file}: its text would be {CLASSES}, the list of the classes; rename it"
            )
        lines = []
        for item in image.objects:
            name = _in_a_line(item.label)
            number = classes.get(name, len(classes))
            write_line = partial(encode, number, size=image.size)

            def draw_line(line: str, size: tuple[int, int] = image.size) -> Region:
                return decode(line, size).region

            outline = outlined(item, request, ledger, write_line, draw_line)
            if outline is None:
                continue
            classes[name] = number
            lines.append(outline.written)
            if name != item.label:
                ledger.change("names of classes that do not fit into a line, which change")
        write_text(place / "labels" / f"{stem}.txt", "".join(f"{line}\n" for line in lines))
        ledger.write(images=1, objects=len(lines))
        photo, target = (request.images or place) / image.file, place / "images" / image.file
        if request.images is not None and photo.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.hardlink_to(photo.resolve())
            except OSError:  # another file system
                shutil.copyfile(photo, target)
    write_text(place / CLASSES, "".join(f"{name}\n" for name in classes))
    numbers = {number: name for name, number in classes.items()}
    config = {"train": "images", "val": "images", "names": numbers}
    write_text(place / CONFIG, yaml.safe_dump(config, allow_unicode=True, sort_keys=False))
