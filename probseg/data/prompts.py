"""Files of boxes and clicks on many photographs, for `probseg predict`."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from probseg.data.layout import leads_outside
from probseg.errors import DataError
from probseg.formats.coco import crowds_left_out, is_crowd, whole
from probseg.types import Click

COLUMNS = ("image", "object", "label", "x", "y", "positive", "x0", "y0", "x1", "y1")
"""Columns of a CSV file of prompts."""

UNNAMED = "object"
"""Label of objects without one."""


class PromptedObject(NamedTuple):
    """Prompts for one object.

    Args:
        key: Identifies it in its photograph; in COCO JSON the id of the annotation.
        label: Name of its class.
        clicks: In pixels of the photograph.
        box: `(x0, y0, x1, y1)`, half-open, or None.
    """

    key: str
    label: str
    clicks: tuple[Click, ...]
    box: tuple[float, float, float, float] | None


class PromptedImage(NamedTuple):
    """One photograph with prompts.

    Args:
        file: Its path inside the folder of photographs.
        objects: At least one.
        key: Id of the image in COCO JSON; None elsewhere.
        size: `(H, W)` that the file of prompts says; None where it does not.
    """

    file: str
    objects: tuple[PromptedObject, ...]
    key: int | None = None
    size: tuple[int, int] | None = None


class PromptFile(NamedTuple):
    """All prompts of a file.

    Args:
        images: Those with prompts, in the order of the file.
        categories: Ids of the labels in COCO JSON by their names; those of other files count from
            1.
    """

    images: tuple[PromptedImage, ...]
    categories: Mapping[str, int]


def read_prompts(path: Path) -> PromptFile:
    """Read a CSV or JSON file of prompts.

    CSV: a row for each click (`x`, `y` and perhaps `positive`, 1 or 0) or box (`x0`,
    `y0`, `x1`, `y1`) with the column `image` and perhaps `object` and `label`. Rows of
    one image and object belong together.

    JSON: `{"cat.jpg": [{"box": [x0, y0, x1, y1], "clicks": [[x, y], [x, y, false]], "label":
    "cat"}]}`, an entry for each object, or a file in the format of COCO, whose `bbox` are the
    boxes.

    Args:
        path: The file, with the suffix `.csv` or `.json`.

    Raises:
        DataError: If it cannot be read as that, or has no prompt.
    """
    readers: dict[str, Callable[[Path], PromptFile]] = {".csv": _read_csv, ".json": _read_json}
    if path.suffix.lower() not in readers:
        msg = f"`prompts` must be a .csv or .json file, got {path}"
        raise DataError(msg)
    if not path.is_file():
        msg = f"{path}: no such file; check the spelling of `prompts`"
        raise DataError(msg)
    try:
        found = readers[path.suffix.lower()](path)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        msg = f"{path}: cannot be read as prompts ({reason}); see docs/predict.md"
        raise DataError(msg) from error
    if not found.images:
        msg = f"{path}: has no prompt; add a box or a click"
        raise DataError(msg)
    for image in found.images:
        if leads_outside(image.file):
            msg = f"{path}: {image.file!r} must be a path inside the folder of photographs"
            raise DataError(msg)
    return found


def _read_csv(path: Path) -> PromptFile:
    clicks: dict[tuple[str, str], list[Click]] = {}
    boxes: dict[tuple[str, str], tuple[float, float, float, float]] = {}
    labels: dict[tuple[str, str], str] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        unknown = sorted(set(table.fieldnames or ()) - set(COLUMNS))
        if unknown or "image" not in (table.fieldnames or ()):
            msg = f"columns must be `image` and others of {COLUMNS}, got {table.fieldnames}"
            raise ValueError(msg)
        for line, row in enumerate(table, start=2):
            try:
                key = (row["image"], row.get("object") or "1")
                labels.setdefault(key, row.get("label") or UNNAMED)
                mine = clicks.setdefault(key, [])
                if row.get("x") or row.get("y"):
                    mine.append(_click([row["x"], row["y"], _sign(row.get("positive") or "1")]))
                corners = [row.get(name) or "" for name in ("x0", "y0", "x1", "y1")]
                if any(corners):
                    if key in boxes:
                        msg = "a second box for the same object"
                        raise ValueError(msg)
                    boxes[key] = _box(corners)
            except (ValueError, KeyError, TypeError) as error:
                msg = f"line {line}: {error}"
                raise ValueError(msg) from error
    images: dict[str, list[PromptedObject]] = {}
    for key, given in clicks.items():
        one = _object(key[1], labels[key], given, boxes.get(key))
        images.setdefault(key[0], []).append(one)
    return _numbered(images)


def _read_json(path: Path) -> PromptFile:
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(content, dict):
        msg = f"expected an object of images, got a {type(content).__name__}"
        raise ValueError(msg)
    if {"images", "annotations"} <= content.keys():
        return _of_coco(content, path)
    images = {}
    for file, entries in content.items():
        objects = []
        for number, entry in enumerate(entries, start=1):
            if unknown := sorted(entry.keys() - {"box", "clicks", "label"}):
                msg = f"{file}, object {number}: unknown keys {unknown}"
                raise ValueError(msg)
            clicks = [_click(click) for click in entry.get("clicks", ())]
            box = _box(entry["box"]) if entry.get("box") is not None else None
            label = str(entry.get("label") or UNNAMED)
            objects.append(_object(str(number), label, clicks, box))
        images[file] = objects
    return _numbered(images)


def _of_coco(content: Mapping[str, Any], path: Path) -> PromptFile:
    """Take the boxes of a file in the format of COCO; crowds are left out, which is said."""
    wanted = [entry for entry in content["annotations"] if not is_crowd(entry)]
    if crowds := len(content["annotations"]) - len(wanted):
        left_out = crowds_left_out(crowds, len(content["annotations"]))
        if not wanted:
            msg = f"{left_out}; set iscrowd to 0 if each is one object"
            raise ValueError(msg)
        sys.stderr.write(f"probseg: {path}: {left_out}\n")
    names = {whole(entry, "id"): str(entry["name"]) for entry in content.get("categories", ())}
    objects: dict[int, list[PromptedObject]] = {whole(e, "id"): [] for e in content["images"]}
    for entry in wanted:
        if whole(entry, "image_id") not in objects:
            msg = f"annotation {entry['id']} is of the image {entry['image_id']}, which is missing"
            raise ValueError(msg)
        x, y, width, height = map(float, entry["bbox"])
        label = names.get(entry.get("category_id"), UNNAMED)
        box = _box([x, y, x + width, y + height])
        one = PromptedObject(str(whole(entry, "id")), label, (), box)
        objects[whole(entry, "image_id")].append(one)
    images = tuple(
        PromptedImage(
            str(entry["file_name"]),
            tuple(objects[whole(entry, "id")]),
            whole(entry, "id"),
            (whole(entry, "height", least=1), whole(entry, "width", least=1)),
        )
        for entry in content["images"]
        if objects[whole(entry, "id")]
    )
    return PromptFile(images, {name: number for number, name in names.items()} or {UNNAMED: 1})


def _numbered(images: Mapping[str, list[PromptedObject]]) -> PromptFile:
    labels = dict.fromkeys(one.label for objects in images.values() for one in objects)
    found = tuple(
        PromptedImage(file, tuple(objects)) for file, objects in images.items() if objects
    )
    return PromptFile(found, {label: number for number, label in enumerate(labels, start=1)})


def _object(
    key: str, label: str, clicks: list[Click], box: tuple[float, float, float, float] | None
) -> PromptedObject:
    if not clicks and box is None:
        msg = f"the object {key} has neither a box nor a click"
        raise ValueError(msg)
    return PromptedObject(key, label, tuple(clicks), box)


def _click(values: list[Any]) -> Click:
    if len(values) not in (2, 3):
        msg = f"a click must be [x, y] or [x, y, positive], got {values}"
        raise ValueError(msg)
    positive = values[2] if len(values) == 3 else True
    if not isinstance(positive, bool):
        msg = f"the third value of a click must be true or false, got {positive!r}"
        raise ValueError(msg)
    return Click(_number(values[0]), _number(values[1]), positive)


def _sign(text: str) -> bool:
    signs = {"1": True, "0": False, "true": True, "false": False, "+": True, "-": False}
    if text.lower() not in signs:
        msg = f"`positive` must be 1 or 0, got {text!r}"
        raise ValueError(msg)
    return signs[text.lower()]


def _box(values: list[Any]) -> tuple[float, float, float, float]:
    if len(values) != 4:
        msg = f"a box must be [x0, y0, x1, y1], got {values}"
        raise ValueError(msg)
    x0, y0, x1, y1 = map(_number, values)
    return x0, y0, x1, y1


def _number(value: Any) -> float:  # noqa: ANN401 (whatever the file holds)
    number = float(value)
    if not math.isfinite(number):
        msg = f"coordinates must be finite, got {value!r}"
        raise ValueError(msg)
    return number
