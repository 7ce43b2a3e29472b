"""JSON files in the format of COCO, with masks as run lengths or as polygons."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pycocotools import mask as coco_mask

import probseg
from probseg.paths import replacing

Entry = dict[str, Any]


def measures(rle: Mapping[str, Any]) -> Entry:
    """Return the keys of an annotation that follow from its mask.

    Args:
        rle: Compressed run lengths; see `probseg.formats.run_lengths.encode`.

    Returns:
        `area` in pixels, `bbox` as `[x, y, width, height]`, and `iscrowd` 0.
    """
    area, bbox = int(coco_mask.area(rle)), coco_mask.toBbox(rle).tolist()
    return {"area": area, "bbox": bbox, "iscrowd": 0}


def write(
    path: Path,
    images: Sequence[Entry],
    annotations: Iterable[Entry],
    categories: Sequence[Entry],
) -> None:
    """Write the file; it appears whole.

    Args:
        path: The file to be.
        images: With `id`, `file_name`, `height` and `width`.
        annotations: Written one by one, before the rest, so that a generator of them may complete
            the other lists. With `id`, `image_id`, `category_id`, `segmentation` and the keys of
            `measures`; others are written too.
        categories: With `id` and `name`.
    """
    info = {"description": f"annotated with probseg {probseg.__version__}"}
    with replacing(path) as draft, draft.open("w", encoding="utf-8") as file:
        file.write(f'{{"info": {json.dumps(info)}, "annotations": ')
        write_list(file, annotations)
        file.write(f', "images": {json.dumps(images)}, "categories": {json.dumps(categories)}}}')


def write_list(file: TextIO, entries: Iterable[object]) -> None:
    """Write a list in JSON, one entry at a time."""
    file.write("[")
    for number, entry in enumerate(entries):
        file.write(", " * (number > 0) + json.dumps(entry))
    file.write("]")


def numbered(names: Mapping[str, int]) -> list[Entry]:
    """Return the entries of `categories` for numbers by names."""
    return [{"id": number, "name": name} for name, number in names.items()]
