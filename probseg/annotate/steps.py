"""Steps as clients send them and as the database holds them: clicks, boxes and strokes as JSON.

The database holds patches, too, as run lengths.

Coordinates are continuous: (0, 0) is the upper left corner of the first pixel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from probseg.formats import run_lengths
from probseg.formats.polygons import Polygon
from probseg.formats.prompts import FORMS, MAX_POINTS, parse_points, parse_step
from probseg.geometry import check_box, check_click
from probseg.interact.mask import Mask
from probseg.types import BoxStep, Click, Patch, Step, Stroke

StoredStep = dict[str, Any]


class RequestError(ValueError):
    """A client's request is invalid; the message says what was expected."""


def check_stored(body: str) -> None:
    """Raise a `ValueError` unless a text of the database is a step in its stored form."""
    FORMS.validate_json(body)


def check_place(step: StoredStep, size: tuple[int, int]) -> None:
    """Raise a `ValueError` unless a stored step lies in a photograph of `(H, W)`."""
    if step["type"] in ("click", "box", "brush"):
        stored_step(step, size)
    elif step["type"] == "patch" and tuple(step["segmentation"]["size"]) != size:
        raise ValueError(
            f"a patch has the size {step['segmentation']['size']}, its photograph {size}"
        )


def stored_step(sent: Mapping[str, Any], size: tuple[int, int]) -> StoredStep:
    """Validate a step on a photograph of `(H, W)`, and return it in its stored form."""
    try:
        step = parse_step(sent)
        if isinstance(step, Click):
            check_click(step, size)
        elif isinstance(step, BoxStep):
            check_box(step.box, size)
    except ValueError as error:
        raise RequestError(str(error)) from error
    match step:
        case Click(x, y, positive):
            return {"type": "click", "x": x, "y": y, "positive": positive}
        case BoxStep((x0, y0, x1, y1)):
            corners = [math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1)]
            return {"type": "box", "box": corners}
        case Stroke(points, radius, positive):
            _check_near(points, "points", size)
            pairs = [list(point) for point in points]
            return {"type": "brush", "radius": radius, "points": pairs, "positive": positive}
    raise RequestError(f"`type` must be 'click', 'box' or 'brush', got {sent.get('type')!r:.200}")


def check_polygons(sent: Mapping[str, Any], name: str, size: tuple[int, int]) -> list[Polygon]:
    """Validate the polygons `[[ring, hole, ...], ...]` of an outline, each ring `[[x, y], ...]`."""
    groups = sent.get(name)
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise RequestError(
            f"`{name}` must be a list of polygons, each a list of rings, got {groups!r:.200}"
        )
    drawn = []
    for group in groups:
        try:
            rings = [parse_points(ring) for ring in group]
        except ValueError as error:
            raise RequestError(f"`{name}` must have lists of {error}") from error
        for ring in rings:
            _check_near(ring, name, size)
        drawn.append([np.array(ring) for ring in rings])
    if sum(len(ring) for group in drawn for ring in group) > MAX_POINTS:
        raise RequestError(f"`{name}` must have at most {MAX_POINTS} points")
    return [Polygon(group[0], tuple(group[1:])) for group in drawn if group]


def check_truth(sent: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    """Return what a client says to yes or no, `otherwise` if it does not."""
    value = sent.get(name, otherwise)
    if not isinstance(value, bool):
        raise RequestError(f"`{name}` must be true or false, got {value!r:.200}")
    return value


def as_step(stored: Mapping[str, Any]) -> Step:
    """Return a stored step as models are asked; clicks are on the pixels that they lie in."""
    step = parse_step(stored)
    if isinstance(step, Click):
        return step._replace(x=math.floor(step.x), y=math.floor(step.y))
    return step


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


def _check_near(points: Sequence[Sequence[float]], name: str, size: tuple[int, int]) -> None:
    """Raise a RequestError for points that are further than the size from a photograph."""
    height, width = size
    for x, y in points:
        if not (-width <= x <= 2 * width and -height <= y <= 2 * height):
            raise RequestError(f"`{name}` must be near the photograph, got [{x}, {y}]")
