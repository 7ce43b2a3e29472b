"""Files of boxes and clicks on many photographs, for `probseg predict`."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from probseg.data.layout import leads_outside
from probseg.errors import DataError, UnknownNameError
from probseg.formats.coco import crowds_left_out, file_of, is_crowd, size_of, text, whole
from probseg.formats.mask_names import refuse_name
from probseg.formats.prompts import parse_number, parse_step
from probseg.texts import open_text, read_json
from probseg.types import BoxStep, Click, Step

# columns of a CSV file of prompts
COLUMNS = ("image", "object", "label", "x", "y", "positive", "x0", "y0", "x1", "y1")
# values of the column `positive`
SIGNS = {"1": True, "0": False, "true": True, "false": False, "+": True, "-": False}

PROMPTS = "check the `prompts` argument"

KEYS = {"box", "clicks", "label"}  # of an object in JSON

UNNAMED = "object"  # label of objects without one


class PromptedObject(NamedTuple):
    """Prompts for one object."""

    key: str  # identifies it in its photograph; in COCO JSON the id of the annotation
    category: int  # id of its class
    steps: tuple[Step, ...]  # clicks and perhaps a box, in pixels of the photograph


class PromptedImage(NamedTuple):
    """One photograph with prompts."""

    # its path inside the folder of photographs, with `/`, in one way alone: `a.jpg`, not `./a.jpg`
    file: str
    objects: tuple[PromptedObject, ...]  # at least one
    key: int | None = None  # id of the image in COCO JSON; None elsewhere
    # `(H, W)` that the file of prompts says; None where it does not
    size: tuple[int, int] | None = None


class PromptFile(NamedTuple):
    """All prompts of a file."""

    images: tuple[PromptedImage, ...]  # those with prompts, in the order of the file
    # names of the classes by their ids: those of COCO JSON, of which several may have one name; of
    # other files the labels, counted from 1
    categories: Mapping[int, str]
    empty: tuple[str, ...] = ()  # paths of images that are listed without an object
    crowds: int = 0  # number of annotations of COCO JSON that are left out


def read_prompts(path: Path) -> PromptFile:
    """Read a CSV or JSON file of prompts.

    CSV: a row for each click (`x`, `y` and perhaps `positive`, 1 or 0) or box (`x0`,
    `y0`, `x1`, `y1`) with the column `image` and perhaps `object` and `label`. Rows of
    one image and object belong together.

    JSON: `{"cat.jpg": [{"box": [x0, y0, x1, y1], "clicks": [[x, y], [x, y, false]], "label":
    "cat"}]}`, an entry for each object, or a file in COCO format, whose `bbox` are the
    boxes. Objects without a label, or a category, are of the class `object`.
    """
    readers: dict[str, Callable[[Path], PromptFile]] = {".csv": _read_csv, ".json": _read_json}
    if path.suffix.lower() not in readers:
        raise DataError(f"`prompts` must be a .csv or .json file, got {path}")
    try:
        prompts = readers[path.suffix.lower()](path)
    except DataError:  # which names the file
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, csv.Error) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path}: cannot be read as prompts ({reason}); see docs/predict.md"
        ) from error
    outside = [image.file for image in prompts.images if leads_outside(image.file)]
    if outside or not prompts.images:
        inside = f"{outside[:1]} must be a path inside the folder of photographs"
        fault = inside if outside else "has no prompt; add a box or a click"
        raise DataError(f"{path}: {fault}")
    for image in prompts.images:
        refuse_name(image.file)
    return prompts


def _read_csv(path: Path) -> PromptFile:
    clicks: dict[tuple[str, str], list[Click]] = defaultdict(list)
    boxes: dict[tuple[str, str], BoxStep] = {}
    labels: dict[tuple[str, str], set[str]] = defaultdict(set)
    with open_text(path, PROMPTS) as file:
        table = csv.DictReader(file, skipinitialspace=True, strict=True)
        columns = [name.strip() for name in table.fieldnames or ()]
        wrong = sorted(set(columns) - set(COLUMNS)) or len(set(columns)) < len(columns)
        if wrong or "image" not in columns:
            raise ValueError(
                f"columns must be `image` and others of {COLUMNS}, each once, with commas between, "
                f"got {columns}"
            )
        table.fieldnames = columns
        for cells in table:
            fault, too_many = None, cells.pop(None, None) is not None
            row = {name: (text or "").strip() for name, text in cells.items()}
            if not any(row.values()):  # as spreadsheets write below a table
                continue
            key = (_file(row["image"]), row.get("object") or "1")
            labels[key] |= {row["label"]} if row.get("label") else set()
            sign = (row.get("positive") or "1").lower()
            corners = {name: row.get(name) or "" for name in ("x0", "y0", "x1", "y1")}
            if too_many:
                fault = "has more cells than columns; names with commas must stand in double quotes"
            elif not row["image"]:
                fault = "expected an image"
            elif len(labels[key]) > 1:
                fault = f"a second label for the same object, {sorted(labels[key])}"
            elif sign not in SIGNS:
                fault = f"`positive` must be 1 or 0, got {row['positive']!r}"
            elif any(corners.values()) and key in boxes:
                fault = "a second box for the same object"
            try:
                so_far = clicks[key]
                if row.get("x") or row.get("y"):
                    x, y = (_cell(row.get(name, ""), name) for name in ("x", "y"))
                    so_far.append(Click(x, y, SIGNS.get(sign, True)))
                if any(corners.values()):
                    x0, y0, x1, y1 = (_cell(text, name) for name, text in corners.items())
                    boxes[key] = BoxStep((x0, y0, x1, y1))
            except ValueError as error:
                fault = fault or str(error)
            if fault is not None:
                raise ValueError(f"line {table.line_num}: {fault}")
    images: dict[str, list[PromptedObject]] = {}
    categories = _Categories()
    for key, points in clicks.items():
        box = [boxes[key]] if key in boxes else []
        prompted = PromptedObject(key[1], categories.number(*labels[key]), (*points, *box))
        images.setdefault(key[0], []).append(prompted)
    return _prompt_file(images, categories)


def _read_json(path: Path) -> PromptFile:
    content = read_json(path, PROMPTS)
    if not isinstance(content, dict):
        raise ValueError(f"expected an object of images, got a {type(content).__name__}")
    if {"images", "annotations"} <= content.keys():
        return _of_coco(content)
    images: dict[str, list[PromptedObject]] = {}
    categories = _Categories()
    for name, entries in content.items():
        file, objects, fault = _file(name), [], None
        if file in images:
            fault = f"{name!r} is there more than once, written differently; merge its entries"
        elif not isinstance(entries, list) or not all(isinstance(x, dict) for x in entries):
            fault = f'{file}: expected a list of objects, such as [{{"box": [10, 20, 30, 40]}}]'
        if fault is not None:
            raise ValueError(fault)
        for number, entry in enumerate(entries, start=1):
            if unknown := sorted(entry.keys() - KEYS):
                meant = UnknownNameError("key", unknown[0], KEYS)
                raise ValueError(f"{file}, object {number}: {meant}")
            steps = []
            for click in entry.get("clicks", ()):
                if not isinstance(click, list) or len(click) not in (2, 3):
                    raise ValueError(f"a click must be [x, y] or [x, y, positive], got {click}")
                named = dict(zip(("x", "y", "positive"), click, strict=False))
                steps.append(parse_step({"type": "click", **named}))
            if entry.get("box") is not None:
                steps.append(parse_step({"type": "box", "box": entry["box"]}))
            category = categories.number(str(entry.get("label") or UNNAMED))
            objects.append(PromptedObject(str(number), category, tuple(steps)))
        images[file] = objects
    return _prompt_file(images, categories)


class _Categories(dict[int, str]):
    """Names of classes by their ids."""

    def number(self, name: str = UNNAMED) -> int:
        """Return the id of a class, the first of several of one name; a new one gets the next."""
        known = next((key for key, other in self.items() if other == name), None)
        key = max(self, default=0) + 1 if known is None else known
        self[key] = name
        return key


def _of_coco(content: Mapping[str, Any]) -> PromptFile:
    """Take the boxes of a file in COCO format; crowds are left out."""
    listed = _by_id(content.get("categories", ()), "categories")
    categories = _Categories({key: text(entry, "name") for key, entry in listed.items()})
    images = _by_id(content["images"], "images")
    annotations = _by_id(content["annotations"], "annotations")
    objects: dict[int, list[PromptedObject]] = {key: [] for key in images}
    single = {key: entry for key, entry in annotations.items() if not is_crowd(entry)}
    crowds = len(annotations) - len(single)
    if annotations and not single:
        left_out = crowds_left_out(crowds, len(annotations))
        raise ValueError(f"{left_out}; set iscrowd to 0 if each is one object")
    for key, entry in single.items():
        image, fault = whole(entry, "image_id"), None
        has_kind = entry.get("category_id") is not None
        kind = whole(entry, "category_id") if has_kind else categories.number()
        if image not in objects:
            fault = f"is of the image {image}, which is missing"
        elif has_kind and kind not in listed:
            known = sorted(listed)[:10]
            fault = f"is of the category {kind}, but `categories` has {known}; add it there, or "
            fault += "leave `category_id` out"
        try:
            x, y, width, height = map(float, entry["bbox"])
            box = parse_step({"type": "box", "box": [x, y, x + width, y + height]})
        except (TypeError, ValueError):
            bbox = entry["bbox"]
            fault = f"must have the `bbox` [x, y, width, height] in pixels, got {bbox!r}"
        if fault is not None:
            raise ValueError(f"annotation {key} {fault}")
        objects[image].append(PromptedObject(str(key), kind, (box,)))
    files = {key: _file(file_of(entry)) for key, entry in images.items()}
    prompted = tuple(
        PromptedImage(files[key], tuple(objects[key]), key, size_of(entry))
        for key, entry in images.items()
        if objects[key]
    )
    empty = tuple(file for key, file in files.items() if not objects[key])
    return PromptFile(prompted, categories, empty, crowds)


def _by_id(entries: Sequence[Mapping[str, Any]], what: str) -> dict[int, Mapping[str, Any]]:
    """Map the entries of a list of COCO JSON by their ids."""
    by_id: dict[int, Mapping[str, Any]] = {}
    for entry in entries:
        key = whole(entry, "id")
        if key in by_id:
            raise ValueError(f"the id {key} in `{what}` is there more than once")
        by_id[key] = entry
    return by_id


def _prompt_file(images: Mapping[str, list[PromptedObject]], categories: _Categories) -> PromptFile:
    for file, objects in images.items():
        for prompted in objects:
            if not prompted.steps:
                raise ValueError(f"{file}: the object {prompted.key} has neither a box nor a click")
    prompts = tuple(
        PromptedImage(file, tuple(objects)) for file, objects in images.items() if objects
    )
    return PromptFile(prompts, categories, tuple(file for file in images if not images[file]))


def _file(name: str) -> str:
    """Return the one way to write a path; empty where it names no file."""
    return "" if not name else PurePosixPath(name).as_posix()


def _cell(text: str, column: str) -> float:
    """Return the number in a cell of a table."""
    try:
        return parse_number(float(text), column)
    except ValueError as error:
        raise ValueError(
            f"`{column}` must be a finite number such as 12.5, with a point, got {text!r}"
        ) from error
