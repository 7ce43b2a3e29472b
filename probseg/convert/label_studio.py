"""Tasks of Label Studio, with masks of its brush and polygons."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from posixpath import commonpath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from probseg.convert.parts import (
    NO_NAME,
    AnnotatedImage,
    LabelledRegion,
    Ledger,
    Request,
    inside,
    reading,
)
from probseg.data.sets.annotations import entries
from probseg.errors import DataError
from probseg.formats import brush, polygons
from probseg.formats.coco import size_of, write_list
from probseg.formats.regions import Region
from probseg.paths import rewriting

# address of the files of a local storage; the query `d` is the path of the file in it
LOCAL = "/data/local-files/"

# names of the tags BrushLabels and Image in the labelling interface of docs/integrations.md
BRUSH_TAG, IMAGE_TAG = "mask", "image"

Entry = Mapping[str, Any]
_Kind = TypeVar("_Kind", str, list[Any])


class _Drawn(NamedTuple):
    """A result of the brush or a polygon: `(H, W)` of its image, and its labels."""

    draw: Callable[[], Region]
    size: tuple[int, int]
    labels: list[str]


def read(place: Path, request: Request, ledger: Ledger) -> Iterator[AnnotatedImage]:
    """Read tasks exported as JSON; of each, the masks and polygons of the annotation that counts.

    That is the first one that was not skipped. Files of a local storage have the path that they
    have in `request.storage`; other images have that of their address, without the folders that
    all share.
    """
    hint = "export it as JSON, not JSON-MIN"
    with reading(place, "tasks of Label Studio", hint):
        addresses = [_checked(task["data"]["image"], str, "image") for task in entries(place, "")]
        files = _names(addresses, request.storage or PurePosixPath())
        for file, task in zip(files, entries(place, ""), strict=True):
            ledger.find(images=1)
            results = _results(task, ledger)
            brushed = [result for result in results if result["type"] in _KINDS]
            for kind in (result["type"] for result in results if result["type"] not in _KINDS):
                ledger.lose(f"of the type {kind}, not {' or '.join(_KINDS)}", objects=1)
            if file is None:
                why = "of tasks that hold the image itself, which has no name"
                ledger.lose(why, images=1, objects=len(brushed))
            elif not brushed:
                ledger.lose("of tasks without a mask, whose size is not known", images=1)
            else:
                objects = []
                for result in brushed:
                    kind, value = result["type"], result["value"]
                    size = size_of(result, ("original_height", "original_width"))
                    labels = _checked(value.get(kind) or [NO_NAME], list, kind)
                    labels = [_checked(label, str, kind) for label in labels]
                    objects.append(_Drawn(partial(_KINDS[kind], value, size), size, labels))
                size = objects[0].size
                yield AnnotatedImage(file, size, _objects(place, file, size, objects, ledger))


def _checked(value: Any, kind: type[_Kind], key: str) -> _Kind:  # noqa: ANN401 (any JSON)
    if not isinstance(value, kind):
        expected = {str: "text", list: "a list"}[kind]
        raise TypeError(f"expected {expected} for {key!r}, got {value!r:.60}")
    return value


# types of results that have a mask; corners of polygons are in percent of the image's sides
_KINDS: dict[str, Callable[[Entry, tuple[int, int]], Region]] = {
    "brushlabels": lambda value, size: brush.decode(_checked(value["rle"], list, "rle"), size),
    "polygonlabels": lambda value, size: polygons.ring(
        value["points"], size, scale=(size[1] / 100, size[0] / 100)
    ),
}


def _results(task: Entry, ledger: Ledger) -> list[Entry]:
    """Return the results of the annotation that counts."""
    annotations = task["annotations"]
    ledger.find(objects=sum(len(annotation["result"]) for annotation in annotations))
    skipped = [annotation for annotation in annotations if annotation.get("was_cancelled")]
    first, *others = [item for item in annotations if not item.get("was_cancelled")] or [
        {"result": []}
    ]
    for which, left_out in (("skipped", skipped), ("further", others)):
        ledger.change(f"{which} annotations of tasks", len(left_out))
        ledger.lose(
            f"of {which} annotations of tasks",
            objects=sum(len(annotation["result"]) for annotation in left_out),
        )
    for key in ("predictions", "drafts"):
        ledger.change(f"{key} of tasks", len(task.get(key) or ()))
    results: list[Entry] = first["result"]
    return results


def _objects(
    place: Path, file: str, size: tuple[int, int], objects: list[_Drawn], ledger: Ledger
) -> Iterator[LabelledRegion]:
    for item in objects:
        if item.size != size:
            raise DataError(f"{place}: the masks of {file} are for images of different sizes")
        with reading(place, f"Label Studio: a mask of {file} cannot be drawn"):
            region = item.draw()
        label, *more = item.labels
        ledger.change("labels of objects after the first", len(more))
        yield LabelledRegion(region, label)


def _names(addresses: list[str], storage: PurePosixPath) -> list[str | None]:
    """Return the paths of images, with `/`; None for those without a name."""
    paths = [_path(address) for address in addresses]
    remote = [f"/{path.parent}" for path, is_local in filter(None, paths) if not is_local]
    shared = len(PurePosixPath(commonpath(remote)).parts) - 1 if remote else 0
    names: list[str | None] = []
    for address, place in zip(addresses, paths, strict=True):
        if place is None:
            names.append(None)
            continue
        path, is_local = place
        if is_local and not path.is_relative_to(storage):
            raise ValueError(f"{address!r} is not in the folder of --storage, {storage}")
        path = path.relative_to(storage) if is_local else path
        names.append(inside("/".join(path.parts if is_local else path.parts[shared:])))
    return names


def _path(address: str) -> tuple[PurePosixPath, bool] | None:
    """Return the path in an address and whether it is one in a local storage; None for content."""
    if address[:5].lower() == "data:":
        return None
    scheme, _, rest = address.partition("://")
    parts = urlsplit(address)
    is_local = True  # as paths that are not addresses are
    if address.startswith("/") or (rest and scheme.lower() in ("http", "https", "file")):
        is_local = f"{parts.path.rstrip('/')}/".endswith(LOCAL)
        file = unquote(parts.path).strip("/")
        text = f"{parts.netloc}/{file}" if file else ""
        if is_local:
            query = parse_qs(parts.query, keep_blank_values=True)
            text, *others = query.get("d", [""])
            if others or len(query) > 1 or parts.fragment:
                raise ValueError(
                    f"{address!r} has more than the path of a file; write & and # as %26 and %23"
                )
    elif rest:  # of a bucket, whose keys are not encoded
        text, is_local = rest, False
    else:
        text = address
    text = re.sub(r"^[A-Za-z]:(?=[\\/])", "", text.strip()).replace("\\", "/")
    return PurePosixPath(text.lstrip("/")), is_local


def write(place: Path, images: Iterable[AnnotatedImage], request: Request, ledger: Ledger) -> None:
    """Write tasks for an import into Label Studio, with brush labels as their annotations.

    The images are files of a local storage, in the folder `request.storage` of the document root.
    """
    with rewriting(place) as file:
        file.write("[")
        for number, image in enumerate(images):
            if "\\" in image.file:
                raise DataError(
                    f"{image.file}: in Label Studio a backslash separates folders; rename the file"
                )
            path = (request.storage or PurePosixPath()) / image.file
            if len(path.parts) == 1:
                raise DataError(
                    f"{image.file}: Label Studio shows files of folders inside its document root; "
                    "give the name of the folder of the photographs as --storage"
                )
            address = f"{LOCAL}?d={quote(path.as_posix())}"
            file.write(", " * (number > 0))
            file.write(f'{{"data": {json.dumps({"image": address})}, "annotations": [{{"result": ')
            before = ledger.written["objects"]
            write_list(file, _written(image, ledger))
            file.write("}]}")
            ledger.write(images=1)
            if ledger.written["objects"] == before:
                ledger.change("sizes of images without objects")
        file.write("]")


def _written(image: AnnotatedImage, ledger: Ledger) -> Iterator[Entry]:
    height, width = image.size
    for number, item in enumerate(image.objects, start=1):
        yield {
            "id": f"mask{number}",
            "from_name": BRUSH_TAG,
            "to_name": IMAGE_TAG,
            "type": "brushlabels",
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "value": {
                "format": "rle",
                "rle": brush.encode(item.region),
                "brushlabels": [item.label],
            },
        }
        ledger.write(objects=1)
