"""Folders of labelme's JSON files, which X-AnyLabeling reads and writes, too.

A file has the shapes on one image: masks (a PNG in base64, inside of a box), or polygons. Shapes of
one label and one `group_id` are one object.
"""

from __future__ import annotations

import base64
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from probseg.convert.parts import (
    AnnotatedImage,
    LabelledRegion,
    Ledger,
    Request,
    Writer,
    inside,
    outlined,
    reading,
    stems,
)
from probseg.errors import DataError
from probseg.formats import polygons
from probseg.formats.coco import score_of, size_of, text
from probseg.formats.regions import Region, union
from probseg.images import opened
from probseg.paths import write_text
from probseg.texts import read_json

VERSION = "5.5.0"  # version of labelme in the files that are written

_reading = partial(reading, what="a file of labelme", hint="save it again")

IGNORED = "__ignore__"  # label of pixels that labelme's own converters leave out

Shape = dict[str, Any]  # an entry of a file


def read(place: Path, request: Request, ledger: Ledger) -> Iterator[AnnotatedImage]:
    """Read the JSON files of a folder and its sub-folders, or a single one.

    An image is in the folder of its file. Shapes of other kinds than polygons and masks are counted
    as lost.
    """
    single = place.is_file()
    for path in [place] if single else sorted(place.rglob("*.json")):
        folder = path.relative_to(place.parent if single else place).parent
        if any(part.startswith(".") for part in (*folder.parts, path.name)):
            continue
        with _reading(path):
            content = read_json(path)
            image = PurePosixPath(text(content, "imagePath").replace("\\", "/"))
            name = inside(image.name, "imagePath")
            size = size_of(content, ("imageHeight", "imageWidth"))
            groups: dict[tuple[object, ...], list[Shape]] = defaultdict(list)
            for number, shape in enumerate(content["shapes"]):
                why = f"of the label {IGNORED}, not an object"
                if shape.get("shape_type", "polygon") not in ("polygon", "mask"):
                    why = "of shapes other than polygons and masks"
                elif shape["label"] != IGNORED:
                    group = shape.get("group_id")
                    key = (number,) if group is None else (text(shape, "label"), group)
                    groups[key].append(shape)
                    continue
                ledger.find(objects=1)
                ledger.lose(why, objects=1)
        ledger.find(images=1, objects=len(groups))
        objects = _objects(path, list(groups.values()), size)
        yield AnnotatedImage((folder / name).as_posix(), size, objects)


def _objects(
    path: Path, groups: list[list[Shape]], size: tuple[int, int]
) -> Iterator[LabelledRegion]:
    for shapes in groups:
        with _reading(path):
            region = union([_drawn(shape, size) for shape in shapes])
            scores = [score for score in map(score_of, shapes) if score is not None]
            item = LabelledRegion(region, text(shapes[0], "label"), max(scores, default=None))
        yield item


def _drawn(shape: Shape, size: tuple[int, int]) -> Region:
    if shape.get("shape_type", "polygon") == "polygon":
        return polygons.ring(shape["points"], size)
    points = np.array(shape["points"], dtype=np.float64)
    if points.shape != (2, 2) or not np.isfinite(points).all():
        raise ValueError(f"its 'points' must be [[x, y], [x, y]], got {shape['points']!r:.60}")
    (x0, y0), (x1, y1) = points.astype(int).tolist()
    mask = io.BytesIO(base64.b64decode(shape["mask"], validate=True))
    with opened(mask, f"the mask of {shape['points']}") as picture:
        fits = 0 <= x0 <= x1 < size[1] and 0 <= y0 <= y1 < size[0]
        if picture.size != (x1 - x0 + 1, y1 - y0 + 1) or len(picture.getbands()) > 1 or not fits:
            raise DataError(
                f"a mask of {picture.size} and mode {picture.mode} does not fit its corners "
                f"{shape['points']} in an image of {size[1]} x {size[0]}"
            )
        return Region(np.asarray(picture).astype(np.bool_), x0, y0, size)


def writer(shapes_of: Callable[[LabelledRegion, Request, Ledger], list[Shape]]) -> Writer:
    """Return a writer of files whose shapes a function makes, none to leave an object out."""

    def write(
        place: Path, images: Iterable[AnnotatedImage], request: Request, ledger: Ledger
    ) -> None:
        for image, stem in stems(images):
            shapes: list[Shape] = []
            for number, item in enumerate(image.objects, start=1):
                parts = shapes_of(item, request, ledger)
                group = number if len(parts) > 1 else None
                common: Shape = {"label": item.label, "group_id": group}
                if item.score is not None:  # a key of X-AnyLabeling
                    common["score"] = item.score
                shapes += [{**common, **part} for part in parts]
                ledger.write(objects=bool(parts))
            content: Shape = {
                "version": VERSION,
                "flags": {},
                "shapes": shapes,
                "imagePath": PurePosixPath(image.file).name,
                "imageData": None,
                "imageHeight": image.size[0],
                "imageWidth": image.size[1],
            }
            target = place / f"{stem}.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text(target, json.dumps(content))
            ledger.write(images=1)

    return write


def mask(item: LabelledRegion, request: Request, ledger: Ledger) -> list[Shape]:
    """Return an object as one mask, with every pixel."""
    region, file = item.region, io.BytesIO()
    height, width = region.inside.shape
    Image.fromarray(region.inside).save(file, "PNG")
    corners = [[region.x, region.y], [region.x + width - 1, region.y + height - 1]]
    code = base64.b64encode(file.getvalue()).decode("ascii")
    return [{"shape_type": "mask", "points": corners, "mask": code, "flags": {}}]


def outlines(item: LabelledRegion, request: Request, ledger: Ledger) -> list[Shape]:
    """Return the parts of an object as polygons, which fill holes."""

    def draw(rings: list[list[list[float]]]) -> Region:
        return polygons.draw([polygons.Polygon(np.array(ring)) for ring in rings], item.region.size)

    outline = outlined(
        item, request, ledger, lambda parts: [part.outer.tolist() for part in parts], draw
    )
    if outline is None:
        return []
    if any(part.holes for part in outline.parts):
        ledger.change("objects whose holes are filled, as polygons of labelme have none")
    return [{"shape_type": "polygon", "points": ring, "flags": {}} for ring in outline.written]
