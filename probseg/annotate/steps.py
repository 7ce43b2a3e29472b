"""Steps as clients send them and as the database holds them: clicks, boxes and strokes as JSON.

The database holds patches, too, as run lengths.

Coordinates are continuous: (0, 0) is the upper left corner of the first pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import cv2
import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from probseg.formats import run_lengths
from probseg.formats.polygons import Polygon
from probseg.images import MAX_PIXELS
from probseg.interact.mask import Mask
from probseg.interact.steps import BoxStep, Patch, Step, Stroke
from probseg.types import Click

MAX_POINTS = 10_000
"""Most points of a stroke."""

MAX_RADIUS = 500.0
"""Largest radius of a stroke in pixels."""

StoredStep = dict[str, Any]


class RequestError(ValueError):
    """A client's request is invalid; the message says what was expected."""


_STRICT = ConfigDict(strict=True, extra="forbid")
_Number = Annotated[float, Field(gt=-1e9, lt=1e9)]
_Side = Annotated[int, Field(ge=1, le=MAX_PIXELS)]


@with_config(_STRICT)
class _StoredClick(TypedDict):
    type: Literal["click"]
    x: _Number
    y: _Number
    positive: bool


@with_config(_STRICT)
class _StoredBox(TypedDict):
    type: Literal["box"]
    box: tuple[int, int, int, int]


@with_config(_STRICT)
class _StoredStroke(TypedDict):
    type: Literal["brush"]
    radius: Annotated[float, Field(gt=0, le=MAX_RADIUS)]
    points: Annotated[list[tuple[_Number, _Number]], Field(min_length=1, max_length=MAX_POINTS)]
    positive: bool


@with_config(_STRICT)
class _RunLengths(TypedDict):
    size: tuple[_Side, _Side]
    counts: str


@with_config(_STRICT)
class _StoredPatch(TypedDict):
    type: Literal["patch"]
    segmentation: _RunLengths
    positive: bool


_STORED: TypeAdapter[Any] = TypeAdapter(
    Annotated[_StoredClick | _StoredBox | _StoredStroke | _StoredPatch, Field(discriminator="type")]
)


def check_stored(body: str) -> None:
    """Raise a `ValueError` unless a text of the database is a step in its stored form."""
    _STORED.validate_json(body)


def check_place(step: StoredStep, size: tuple[int, int]) -> None:
    """Raise a `ValueError` unless a stored step lies in a photograph of `(H, W)`."""
    if step["type"] in CHECKS:
        check_step(step, size)
    elif tuple(step["segmentation"]["size"]) != size:
        msg = f"a patch has the size {step['segmentation']['size']}, its photograph {size}"
        raise ValueError(msg)


def check_step(sent: Mapping[str, Any], size: tuple[int, int]) -> StoredStep:
    """Validate a step on a photograph of `(H, W)`, and return it in its stored form."""
    kind = sent.get("type")
    check = CHECKS.get(kind) if isinstance(kind, str) else None
    if check is None:
        msg = f"`type` must be 'click', 'box' or 'brush', got {kind!r:.200}"
        raise RequestError(msg)
    return {"type": kind, **check(sent, *size)}


def check_polygons(sent: Mapping[str, Any], name: str, size: tuple[int, int]) -> list[Polygon]:
    """Validate the polygons `[[ring, hole, ...], ...]` of an outline, each ring `[[x, y], ...]`."""
    groups = sent.get(name)
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        msg = f"`{name}` must be a list of polygons, each a list of rings, got {groups!r:.200}"
        raise RequestError(msg)
    drawn = [[np.array(_points(ring, name, *size)) for ring in group] for group in groups]
    if sum(len(ring) for group in drawn for ring in group) > MAX_POINTS:
        msg = f"`{name}` must have at most {MAX_POINTS} points"
        raise RequestError(msg)
    return [Polygon(group[0], tuple(group[1:])) for group in drawn if group]


def check_number(value: object, name: str) -> float:
    """Return a number of a client; anything else, or an absurd one, is refused."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9:
        return float(value)
    msg = f"`{name}` must be a number, got {value!r:.200}"
    raise RequestError(msg)


def check_truth(sent: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    """Return what a client says to yes or no, `otherwise` if it does not."""
    value = sent.get(name, otherwise)
    if not isinstance(value, bool):
        msg = f"`{name}` must be true or false, got {value!r:.200}"
        raise RequestError(msg)
    return value


def as_step(stored: StoredStep) -> Step:
    """Return a stored step as models are asked; clicks are on the pixels that they lie in."""
    match stored["type"]:
        case "click":
            return Click(math.floor(stored["x"]), math.floor(stored["y"]), stored["positive"])
        case "box":
            x0, y0, x1, y1 = stored["box"]
            return BoxStep((x0, y0, x1, y1))
        case "patch":
            return Patch(run_lengths.decode(stored["segmentation"]), stored["positive"])
    points = tuple((x, y) for x, y in stored["points"])
    return Stroke(points, stored["radius"], stored["positive"])


def stored_patch(patch: Patch) -> StoredStep:
    """Return a patch in its stored form."""
    segmentation = run_lengths.encode(patch.pixels)
    return {"type": "patch", "segmentation": segmentation, "positive": patch.positive}


def next_click(mask: Mask) -> dict[str, Any] | None:
    """Suggest a click: the middle of the largest region with an entropy above half a bit.

    The click contradicts the present answer there: one that agrees with it would add little.
    """
    doubtful = (mask.uncertainty > 0.5).astype(np.uint8)
    count, regions, stats, _ = cv2.connectedComponentsWithStats(doubtful)
    if count < 2:
        return None
    largest = 1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())
    inside = np.pad((regions == largest).astype(np.uint8), 1)
    distance = cv2.distanceTransform(inside, cv2.DIST_L2, 5)[1:-1, 1:-1]
    y, x = np.unravel_index(int(distance.argmax()), distance.shape)
    positive = bool(mask.probability[y, x] <= 0.5)
    return {"x": float(x) + 0.5, "y": float(y) + 0.5, "positive": positive}


def _click(sent: Mapping[str, Any], height: int, width: int) -> StoredStep:
    x, y = check_number(sent.get("x"), "x"), check_number(sent.get("y"), "y")
    if not (0 <= x < width and 0 <= y < height):
        msg = f"`x` and `y` must satisfy 0 <= x < {width} and 0 <= y < {height}, got ({x}, {y})"
        raise RequestError(msg)
    return {"x": x, "y": y, "positive": check_truth(sent, "positive", otherwise=True)}


def _box(sent: Mapping[str, Any], height: int, width: int) -> StoredStep:
    box = sent.get("box")
    if not isinstance(box, list) or len(box) != 4:
        msg = f"`box` must be four numbers [x0, y0, x1, y1], got {box!r:.200}"
        raise RequestError(msg)
    x0, y0, x1, y1 = (check_number(value, "box") for value in box)
    if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
        msg = f"`box` must satisfy 0 <= x0 < x1 <= {width} and 0 <= y0 < y1 <= {height}, got {box}"
        raise RequestError(msg)
    return {"box": [math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1)]}


def _stroke(sent: Mapping[str, Any], height: int, width: int) -> StoredStep:
    radius = check_number(sent.get("radius"), "radius")
    if not 0 < radius <= MAX_RADIUS:
        msg = f"`radius` must be above 0 and at most {MAX_RADIUS}, got {radius}"
        raise RequestError(msg)
    pairs = _points(sent.get("points"), "points", height, width)
    return {
        "radius": radius,
        "points": pairs,
        "positive": check_truth(sent, "positive", otherwise=True),
    }


def _points(points: object, name: str, height: int, width: int) -> list[list[float]]:
    if not isinstance(points, list) or not 0 < len(points) <= MAX_POINTS:
        msg = f"`{name}` must have lists of 1 to {MAX_POINTS} pairs, got {points!r:.200}"
        raise RequestError(msg)
    pairs = []
    for point in points:
        if not isinstance(point, list) or len(point) != 2:
            msg = f"`{name}` must be pairs [x, y], got {point!r:.200}"
            raise RequestError(msg)
        x, y = (check_number(value, name) for value in point)
        if not (-width <= x <= 2 * width and -height <= y <= 2 * height):
            msg = f"`{name}` must be near the photograph, got [{x}, {y}]"
            raise RequestError(msg)
        pairs.append([x, y])
    return pairs


CHECKS: dict[str, Callable[[Mapping[str, Any], int, int], StoredStep]] = {
    "click": _click,
    "box": _box,
    "brush": _stroke,
}
"""Validates what is sent for a step in a photograph of height and width, by type of the step."""
