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
    UNUSED,
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
    ledger.change(UNUSED, len(index.categories()) - np.unique(index.kinds[index.kinds >= 0]).size)
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
    """Return a writer of files whose `segmentation` a function makes, or None to leave one out."""

    def write(
        place: Path, images: Iterable[AnnotatedImage], request: Request, ledger: Ledger
    ) -> None:
        listed: list[coco.Entry] = []
        numbers: dict[str, int] = {}
        categories: list[coco.Entry] = []

        def annotations() -> Iterator[coco.Entry]:
            count = 0
            for key, image in enumerate(images, start=1):
                height, width = image.size
                listed.append(
                    {"id": key, "file_name": image.file, "height": height, "width": width}
                )
                ledger.write(images=1)
                for item in image.objects:
                    outline = segmentation(item, request, ledger)
                    if outline is None:
                        continue
                    count += 1
                    category = numbers.setdefault(item.label, len(numbers) + 1)
                    if category > len(categories):
                        categories.extend(coco.numbered({item.label: category}))
                    yield {
                        "id": count,
                        "image_id": key,
                        "category_id": category,
                        "segmentation": outline,
                        **coco.measures(run_lengths.encode(item.region)),
                        **({} if item.score is None else {"score": item.score}),
                    }
                    ledger.write(objects=1)

        coco.write(place, listed, annotations(), categories)

    return write


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
    with reading(request.ids_of, "annotations of COCO", "see --ids-of"):
        image_ids = {
            PurePosixPath(coco.file_of(entry)).as_posix(): coco.whole(entry, "id")
            for entry in entries(request.ids_of, "images")
        }
        categories = {
            coco.text(entry, "name"): coco.whole(entry, "id")
            for entry in entries(request.ids_of, "categories")
        }
        if not image_ids:
            raise ValueError("it has no image")

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
