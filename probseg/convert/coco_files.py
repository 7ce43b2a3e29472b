"""JSON files in COCO format, with run lengths or polygons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from probseg.convert.parts import (
    NO_NAME,
    AnnotatedImage,
    LabelledRegion,
    Ledger,
    Request,
    Writer,
    outlined,
    reading,
)
from probseg.data.sets.annotations import (
    NO_OUTLINE,
    TOO_SHORT,
    AnnotationIndex,
    entries,
    read_index,
)
from probseg.errors import DataError
from probseg.formats import coco, polygons, run_lengths
from probseg.paths import rewriting


def read(place: Path, request: Request, ledger: Ledger) -> Iterator[AnnotatedImage]:
    """Read a JSON file in COCO format; polygons are drawn as pycocotools does."""
    index = read_index("COCO", place, coco.file_of)
    left = index.left_out()
    without = {why: left.pop(why, 0) for why in (NO_OUTLINE, TOO_SHORT)}
    ledger.find(images=len(index.image_sizes), objects=len(index.ids) + sum(without.values()))
    for why, count in without.items():
        ledger.lose(why, objects=count)
    for what, count in left.items():
        ledger.change(what, count)
    ledger.lose("of images that the file does not list", objects=int((index.owners < 0).sum()))
    ledger.change("crowds, which become objects", int(index.crowds[index.owners >= 0].sum()))
    names = Counter(index.categories())
    shared = sum(count for count in names.values() if count > 1)
    ledger.change("categories of the same names, which become one", shared)
    ledger.classes.update(dict.fromkeys(names))
    order = np.argsort(index.owners, kind="stable")
    borders = np.searchsorted(index.owners[order], np.arange(len(index.image_sizes) + 1))
    for owner, (begin, end) in enumerate(pairwise(borders.tolist())):
        height, width = index.image_sizes[owner].tolist()
        objects = _objects(place, index, order[begin:end].tolist(), (height, width), ledger)
        yield AnnotatedImage(index.file(owner), (height, width), objects)


def _objects(
    place: Path, index: AnnotationIndex, numbers: list[int], size: tuple[int, int], ledger: Ledger
) -> Iterator[LabelledRegion]:
    names = index.categories()
    for number in numbers:
        with reading(place, f"COCO: annotation {index.ids[number]} cannot be drawn"):
            region = index.region(number, size)
        kind = int(index.kinds[number])
        if kind < 0:
            ledger.change(f"annotations without a listed category, which become {NO_NAME!r}")
        score = float(index.scores[number])
        label = names[kind] if kind >= 0 else NO_NAME
        yield LabelledRegion(region, label, None if math.isnan(score) else score)


def writer(segmentation: Callable[[LabelledRegion, Request, Ledger], Any]) -> Writer:
    """Return a writer of files whose `segmentation` a function makes, or None to leave one out.

    Categories have the numbers of the order in which the source lists them, or the ids of the file
    `request.ids_of`, as images have.
    """

    def write(
        place: Path, images: Iterable[AnnotatedImage], request: Request, ledger: Ledger
    ) -> None:
        listed: list[coco.Entry] = []
        image_ids, numbers = _ids(request.ids_of) if request.ids_of else ({}, {})
        for name in ledger.classes:
            coco.number(numbers, name)
        following = max(image_ids.values(), default=0) + 1
        categories: list[coco.Entry] = []

        def annotations() -> Iterator[coco.Entry]:
            count = 0
            for image in images:
                height, width = image.size
                key = image_ids.get(image.file, following + len(listed))
                listed.append(
                    {"id": key, "file_name": image.file, "height": height, "width": width}
                )
                ledger.write(images=1)
                for item in image.objects:
                    outline = segmentation(item, request, ledger)
                    if outline is None:
                        continue
                    count += 1
                    yield {
                        "id": count,
                        "image_id": key,
                        "category_id": coco.number(numbers, item.label),
                        "segmentation": outline,
                        **coco.measures(run_lengths.encode(item.region)),
                        **({} if item.score is None else {"score": item.score}),
                    }
                    ledger.write(objects=1)
            categories.extend(coco.categories(numbers))

        coco.write(place, listed, annotations(), categories)

    return write


def _ids(place: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of images and categories of a COCO file by their names."""
    with reading(place, "annotations of COCO", "see --ids-of"):
        image_ids = {
            PurePosixPath(coco.file_of(entry)).as_posix(): coco.whole(entry, "id")
            for entry in entries(place, "images")
        }
        categories = {
            coco.text(entry, "name"): coco.whole(entry, "id")
            for entry in entries(place, "categories")
        }
        if not image_ids:
            raise ValueError("it has no image")
    return image_ids, categories


def write_results(
    place: Path, images: Iterable[AnnotatedImage], request: Request, ledger: Ledger
) -> None:
    """Write a list of predictions, as `pycocotools.coco.COCO.loadRes` reads it.

    Images and categories have the ids of the COCO file `request.ids_of`, where their names are the
    same. Objects have no `bbox`: loadRes would take its area as that of the mask.
    """
    if request.ids_of is None:
        raise DataError(
            f"{place}: results have ids of images and categories; give the COCO file of the "
            "ground truth as --ids-of"
        )
    image_ids, categories = _ids(request.ids_of)

    def results() -> Iterator[coco.Entry]:
        for image in images:
            key = image_ids.get(PurePosixPath(image.file).as_posix())
            written = 0
            for item in image.objects:
                category = categories.get(item.label)
                if key is None:
                    ledger.lose("of images that the file of --ids-of does not list", objects=1)
                elif category is None:
                    ledger.lose("of classes that the file of --ids-of does not list", objects=1)
                else:
                    if item.score is None:
                        ledger.change("objects without a score, which get 1")
                    yield {
                        "image_id": key,
                        "category_id": category,
                        "segmentation": run_lengths.encode(item.region),
                        "score": 1.0 if item.score is None else item.score,
                    }
                    written += 1
            ledger.write(images=bool(written), objects=written)
            if not written:
                ledger.lose("without objects in the results, which do not list them", images=1)

    with rewriting(place) as file:
        coco.write_list(file, results())


def runs(compressed: bool) -> Callable[[LabelledRegion, Request, Ledger], dict[str, Any]]:
    """Return a function that makes run lengths, as text or as numbers."""
    return lambda item, request, ledger: run_lengths.encode(item.region, compressed)


def outlines(item: LabelledRegion, request: Request, ledger: Ledger) -> list[list[float]] | None:
    """Return polygons, which fill holes; None if they enclose nothing."""
    draw = partial(polygons.from_coco, size=item.region.size)
    outline = outlined(item, request, ledger, polygons.to_coco, draw)
    if outline is None:
        return None
    if any(part.holes for part in outline.parts):
        ledger.change("objects whose holes are filled, as polygons of COCO have none")
    written: list[list[float]] = outline.written
    return written
