"""JSON files in COCO format, with masks as run lengths or as polygons."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TextIO
from urllib.parse import unquote, urlsplit

from pycocotools import mask as coco_mask

import probseg
from probseg.formats.regions import check_size
from probseg.paths import rewriting

Entry = dict[str, Any]


def whole(entry: Mapping[str, Any], key: str, least: int | None = None) -> int:
    """Return a whole number of an entry; some programs write it as 240.0, others as "240"."""
    value = entry[key]
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value != value // 1 or (least is not None and value < least):
        expected = "a whole number" if least is None else f"a whole number of at least {least}"
        raise ValueError(f"its {key!r} must be {expected}, got {value!r}")
    return int(value)


def size_of(
    entry: Mapping[str, Any], keys: tuple[str, str] = ("height", "width")
) -> tuple[int, int]:
    """Return `(H, W)` of an entry."""
    height, width = (whole(entry, key, least=1) for key in keys)
    check_size((height, width))
    return height, width


def text(entry: Mapping[str, Any], key: str) -> str:
    """Return a name in an entry of a file."""
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise ValueError(f"its {key!r} must be a text, got {value!r}")
    return value


def file_of(entry: Mapping[str, Any]) -> str:
    """Return the path in the `file_name` of an image, with `/`.

    Programs on Windows write a backslash between folders; of an address, the last name counts.
    LVIS has `coco_url` alone.
    """
    name = text(
        entry, "coco_url" if "file_name" not in entry and "coco_url" in entry else "file_name"
    )
    if name.startswith(("http://", "https://")):
        return PurePosixPath(unquote(urlsplit(name).path)).name
    return name if "/" in name else name.replace("\\", "/")


def is_crowd(entry: Mapping[str, Any]) -> bool:
    """Return whether the outline of an annotation is around several objects."""
    value = entry.get("iscrowd")
    return bool(value) if value is None or isinstance(value, bool) else whole(entry, "iscrowd") > 0


def score_of(entry: Mapping[str, Any]) -> float | None:
    """Return the score of a prediction; None where it has none."""
    value = entry.get("score")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"its 'score' must be a finite number, got {value!r}")
    return float(value)


def crowds_left_out(crowds: int, annotations: int) -> str:
    """Say that crowds are not objects, as part of a sentence."""
    return (
        f"{crowds} of {annotations} annotations are crowds (iscrowd = 1, as CVAT exports masks) "
        "and are left out"
    )


def measures(rle: Mapping[str, Any]) -> Entry:
    """Return `area`, `bbox` (`[x, y, width, height]`) and `iscrowd` 0 of compressed run lengths."""
    area, bbox = int(coco_mask.area(rle)), coco_mask.toBbox(rle).tolist()
    return {"area": area, "bbox": bbox, "iscrowd": 0}


def write(
    path: Path, images: Sequence[Entry], annotations: Iterable[Entry], categories: Sequence[Entry]
) -> None:
    """Write the file; it appears whole."""
    info = {"description": f"annotated with probseg {probseg.__version__}"}
    with rewriting(path) as file:
        file.write(f'{{"info": {json.dumps(info)}, "annotations": ')
        write_list(file, annotations)
        file.write(f', "images": {json.dumps(images)}, "categories": {json.dumps(categories)}}}')


def write_list(file: TextIO, entries: Iterable[object]) -> None:
    """Write a list in JSON, one entry at a time."""
    file.write("[")
    for number, entry in enumerate(entries):
        file.write(", " * (number > 0) + json.dumps(entry))
    file.write("]")


def number(numbers: dict[str, int], name: str) -> int:
    """Return the number of a class, which is the next one if it is new."""
    if name not in numbers:
        numbers[name] = max(numbers.values(), default=0) + 1
    return numbers[name]


def categories(numbers: Mapping[str, int]) -> list[Entry]:
    """Return the entries of `categories` for numbers by names."""
    return [{"id": number, "name": name} for name, number in numbers.items()]
