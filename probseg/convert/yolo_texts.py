"""Folders of YOLO-seg texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from probseg.convert import yolo
from probseg.convert.folders import folders
from probseg.convert.ledger import Ledger
from probseg.convert.parts import (
    NO_NAME,
    UNUSED,
    AnnotatedImage,
    LabelledRegion,
    Request,
    outlined,
    stems,
)
from probseg.data.layout import picture_files, read_classes
from probseg.errors import DataError
from probseg.formats.regions import Region
from probseg.images import image_size
from probseg.paths import write_text
from probseg.texts import read_lines

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
            number, region = yolo.decode(line, size)
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
        for one in image.objects:
            name = " ".join(one.label.split()) or NO_NAME
            number = classes.get(name, len(classes))
            encode = partial(yolo.encode, number, size=image.size)
            outline = outlined(one, request, ledger, encode, partial(_drawn, size=image.size))
            if outline is None:
                continue
            classes[name] = number
            lines.append(outline.written)
            if name != one.label:
                ledger.change("names of classes that do not fit into a line, which change")
        write_text(place / f"{stem}.txt", "".join(f"{line}\n" for line in lines))
        ledger.write(images=1, objects=len(lines))
    write_text(place / CLASSES, "".join(f"{name}\n" for name in classes))


def _drawn(line: str, size: tuple[int, int]) -> Region:
    return yolo.decode(line, size)[1]
