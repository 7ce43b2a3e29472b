"""Annotated images from one file format to another, with an account of what is lost."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from probseg.convert import coco_files, label_studio, labelme, masks, others, yolo
from probseg.convert.parts import (
    IMAGES,
    OBJECTS,
    UNUSED,
    AnnotatedImage,
    LabelledRegion,
    Ledger,
    Reader,
    Request,
    Writer,
)
from probseg.data.archives import unpack
from probseg.errors import DataError
from probseg.paths import replacing

__all__ = ["FOLDERS", "READERS", "WRITERS", "Ledger", "Request", "convert"]

READERS: dict[str, Reader] = {
    "png": masks.read,
    "index": masks.read,
    "coco": coco_files.read,
    "yolo": yolo.read,
    "label-studio": label_studio.read,
    "labelme": labelme.read,
    "cvat": others.read_cvat,
    "via": others.read_via,
    "sa-1b": others.read_sa1b,
}
WRITERS: dict[str, Writer] = {
    "png": masks.write_binary,
    "index": masks.write_index,
    "coco": coco_files.writer(coco_files.runs(compressed=True)),
    "coco-uncompressed": coco_files.writer(coco_files.runs(compressed=False)),
    "coco-polygons": coco_files.writer(coco_files.outlines),
    "coco-results": coco_files.write_results,
    "yolo": yolo.write,
    "label-studio": label_studio.write,
    "labelme": labelme.writer(labelme.mask),
    "labelme-polygons": labelme.writer(labelme.outlines),
}
"""Formats by name. All of COCO are read as `coco`, and those of labelme as `labelme`; results are
not read, as they name no images."""

LARGEST = 1 << 32  # most bytes in an archive of annotations

LISTING = ("coco", "coco-uncompressed", "coco-polygons", "yolo")  # formats that list all classes

SCORED = ("coco", "labelme")  # beginnings of the names of formats that have scores

FOLDERS = ("png", "index", "yolo", "labelme", "labelme-polygons", "sa-1b")
"""Formats that are a folder; the others are one file."""

# files and folders of the annotation page by format; `coco` is its `annotations.json` itself
EXPORTS = {
    name: f"annotations-{name}{'' if name in FOLDERS else '.json'}"
    for name in WRITERS
    if name != "coco"
}


def convert(
    source: Path,
    target: Path,
    formats: tuple[str, str],
    request: Request,
    progress: Callable[[int], None] = lambda count: None,
) -> Ledger:
    """Write the objects of a file or folder in another format.

    Objects are drawn one at a time, in their boxes. The target appears whole: after an error
    there is nothing of it.

    Args:
        source: A file or folder.
        target: The file or folder to write; it does not exist, or is an empty folder.
        formats: Names of the formats to read and to write.
        request: Options.
        progress: Called with the number of each image, from 1 on.

    Returns:
        What was found, written and lost.

    Raises:
        DataError: If the source cannot be read, or the target exists or cannot hold what is in the
            source.
    """
    reader, writer = formats
    is_folder = writer in FOLDERS
    if any(target.iterdir()) if is_folder and target.is_dir() else target.exists():
        raise DataError(f"{target}: exists; remove it, or choose another name")
    ledger = Ledger()
    try:
        with replacing(target) as draft:
            if is_folder:
                draft.mkdir()
            images = READERS[reader](source, request, ledger)
            images = chain([*islice(images, 1)], images)  # a reader lists its classes first
            counted = _checked(images, ledger, progress, writer.startswith(SCORED))
            WRITERS[writer](draft, counted, request, ledger)
            if writer not in LISTING:
                ledger.change(UNUSED, len(ledger.classes.keys() - ledger.used))
            fault = "" if ledger.found[IMAGES] else f"has no image in the format {reader}"
            ledger.check()
            if ledger.found[OBJECTS] and not ledger.written[OBJECTS]:
                losses = "; ".join(ledger.lines())
                fault = f"none of its objects can be written as {writer}: {losses}"
            if fault:
                raise DataError(f"{source}: {fault}; check --from, --to and the file")
    except DataError as error:
        raise DataError(f"{error}{others.recognised(source, reader)}") from error
    return ledger


def export(
    name: str,
    annotations: Path,
    target: Path,
    places: tuple[PurePosixPath, Path],
    progress: Callable[[int], None],
) -> list[str]:
    """Write COCO annotations in another format, to a path that does not exist.

    `places` are the folder of the photographs for Label Studio, whose document root is above it,
    and as it is here; `progress` is called as by `convert`.
    Returns what the format cannot hold, one thing a line.
    """
    storage, images = places
    request = Request(images, storage=storage, ids_of=annotations)
    return convert(annotations, target, ("coco", name), request, progress).lines()


def bring(
    source: Path, images: Path, lost: Counter[str], classes: dict[str, None]
) -> Iterator[tuple[str, LabelledRegion]]:
    """Yield the objects of a file, folder or archive in any format, with their photographs' paths.

    The photographs of formats without sizes are those that come along, or those in `images`.
    Objects that cannot be read are counted in `lost` by the reason why; the names that the source
    lists go to `classes`, in their order.
    """
    ledger = Ledger()
    with TemporaryDirectory(prefix="probseg-", ignore_cleanup_errors=True) as room:
        place = source
        if source.is_file() and zipfile.is_zipfile(source):
            place = Path(room) / source.stem
            unpack(source, place, LARGEST)
        try:
            reader, own = others.reader_of(place), place / "images"
            request = Request(own if own.is_dir() else images)
            several = place.is_dir() and reader not in FOLDERS
            for path in others.files_of(place, reader) if several else [place]:
                for image in READERS[reader](path, request, ledger):
                    for item in image.objects:
                        yield image.file, item
            classes.update(ledger.classes)
            lost.update(
                {why: count for (what, why), count in ledger.lost.items() if what == OBJECTS}
            )
        except DataError as error:
            raise DataError(str(error).replace(str(place), str(source))) from error


def _checked(
    images: Iterable[AnnotatedImage],
    ledger: Ledger,
    progress: Callable[[int], None],
    keeps_scores: bool,
) -> Iterator[AnnotatedImage]:
    """Pass images on, without objects that have no pixel."""

    def drawn(objects: Iterable[LabelledRegion]) -> Iterator[LabelledRegion]:
        for item in objects:
            ledger.used.add(item.label)
            if any("\ud800" <= sign <= "\udfff" for sign in item.label):
                raise DataError(
                    f"{item.label!a}: is the name of a class with half a character; rename it"
                )
            if item.region.area:
                ledger.change("scores of objects", item.score is not None and not keeps_scores)
                yield item
            else:
                ledger.lose("without a pixel inside of their image", objects=1)

    seen = set()
    for number, image in enumerate(images, start=1):
        path = PurePosixPath(image.file)  # without "./"
        if path in seen:
            raise DataError(
                f"{image.file}: is the name of two images, whose objects cannot be told apart "
                "afterwards; rename one of them, or remove it"
            )
        seen.add(path)
        progress(number)
        yield image._replace(objects=drawn(image.objects))
