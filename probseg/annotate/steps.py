"""The steps of an object: clicks, boxes and strokes, and the resulting mask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from torch import Tensor

from probseg.interact.loop import InteractionLoop
from probseg.interact.predictor import Mask
from probseg.interact.states import InteractionState, with_crop
from probseg.types import Click, read_only

MAX_POINTS = 10_000
"""Most points of a stroke."""

MAX_RADIUS = 500.0
"""Largest radius of a stroke in pixels."""

Step = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """Result of the steps of an object.

    Args:
        state: Prompts and the last answer.
        painted: Labels set by strokes, int8, shape `(H, W)`: 1 object, -1 background, 0 nothing;
            None before the first stroke. It holds over later answers.
        begun: Whether there is a mask to show.
    """

    state: InteractionState
    painted: npt.NDArray[np.int8] | None = None
    begun: bool = False

    @property
    def probability(self) -> npt.NDArray[np.float32]:
        """Of the object, strokes included, float32, shape `(H, W)`, read-only."""
        return self.state.probability

    def mask(self) -> npt.NDArray[np.bool_] | None:
        """Return the mask, bool, shape `(H, W)`; None before the first step."""
        return self.probability > 0.5 if self.begun else None

    def entropy(self) -> npt.NDArray[np.float32]:
        """Return the entropy of each pixel in bits, 0 to 1; 0 before the first step."""
        if not self.begun:
            return np.zeros_like(self.probability)
        return Mask(self.probability).uncertainty

    def corrected(self, mask: npt.NDArray[np.bool_], steps: Sequence[Step]) -> Work:
        """Begin with a mask in place of the answers to these steps."""
        work = self
        for step in steps:
            work = _with_prompt(work, step)
        state = work.state._replace(probability=read_only(mask.astype(np.float32)))
        return replace(work, state=state, begun=True)

    @property
    def own_size(self) -> int:
        """Bytes of the answer and of what was encoded for it."""
        painted = 0 if self.painted is None else self.painted.nbytes
        return self.probability.nbytes + painted + _tensor_bytes(self.state.encoded)

    @property
    def size(self) -> int:
        """Bytes, the image included."""
        return self.own_size + self.state.image.nbytes


def check_step(step: Mapping[str, Any], size: tuple[int, int]) -> Step:
    """Validate a step, and return it in its stored form.

    Coordinates are continuous: (0, 0) is the upper left corner of the first pixel.

    Args:
        step: With a `type` of `"click"`, `"box"` or `"brush"`, as clients send it.
        size: `(H, W)` of the photograph.

    Raises:
        ValueError: If something is missing, of another type, or outside of the photograph.
    """
    kind, (height, width) = step.get("type"), size
    if kind == "click":
        x, y = (_number(step, name) for name in ("x", "y"))
        if not (0 <= x < width and 0 <= y < height):
            msg = f"`x` and `y` must satisfy 0 <= x < {width} and 0 <= y < {height}, got ({x}, {y})"
            raise ValueError(msg)
        return {"type": kind, "x": x, "y": y, "positive": _sign(step)}
    if kind == "box":
        box = step.get("box")
        if not isinstance(box, list) or len(box) != 4:
            msg = f"`box` must be four numbers [x0, y0, x1, y1], got {box!r:.200}"
            raise ValueError(msg)
        x0, y0, x1, y1 = (_number({"box": value}, "box") for value in box)
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            msg = (
                f"`box` must satisfy 0 <= x0 < x1 <= {width} and 0 <= y0 < y1 <= {height}, "
                f"got {box}"
            )
            raise ValueError(msg)
        whole = [math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1)]
        return {"type": kind, "box": whole}
    if kind == "brush":
        radius, points = _number(step, "radius"), step.get("points")
        if not 0 < radius <= MAX_RADIUS:
            msg = f"`radius` must be above 0 and at most {MAX_RADIUS}, got {radius}"
            raise ValueError(msg)
        if not isinstance(points, list) or not 0 < len(points) <= MAX_POINTS:
            msg = f"`points` must be a list of 1 to {MAX_POINTS} pairs, got {points!r:.200}"
            raise ValueError(msg)
        pairs = []
        for point in points:
            if not isinstance(point, list) or len(point) != 2:
                msg = f"`points` must be pairs [x, y], got {point!r:.200}"
                raise ValueError(msg)
            x, y = (_number({"points": value}, "points") for value in point)
            if not (-width <= x <= 2 * width and -height <= y <= 2 * height):
                msg = f"`points` must be near the photograph, got [{x}, {y}]"
                raise ValueError(msg)
            pairs.append([x, y])
        return {"type": kind, "radius": radius, "points": pairs, "positive": _sign(step)}
    msg = f"`type` must be 'click', 'box' or 'brush', got {kind!r:.200}"
    raise ValueError(msg)


def answer(loop: InteractionLoop, work: Work, step: Step) -> Work:
    """Carry out a step: the model answers clicks and boxes, strokes change the answer themselves.

    Args:
        loop: Of the model.
        work: Before the step.
        step: As `check_step` returns it.
    """
    work = _with_prompt(work, step)
    state, painted = work.state, work.painted
    if step["type"] != "brush":
        (state,) = loop.answer([with_crop(state)])
    if painted is not None:
        probability = np.where(painted == 0, state.probability, painted > 0).astype(np.float32)
        state = state._replace(probability=read_only(probability))
    return Work(state, painted, begun=True)


def _with_prompt(work: Work, step: Step) -> Work:
    """Add a prompt or a stroke without an answer."""
    state = work.state
    if step["type"] == "click":  # whole numbers are centres of pixels there
        click = Click(math.floor(step["x"]), math.floor(step["y"]), step["positive"])
        return replace(work, state=state._replace(clicks=(*state.clicks, click)))
    if step["type"] == "box":
        x0, y0, x1, y1 = step["box"]
        return replace(work, state=state._replace(box=(x0, y0, x1, y1)))
    return replace(work, painted=_painted(work, step))


def _painted(work: Work, step: Step) -> npt.NDArray[np.int8]:
    """Draw a stroke of round ends over the earlier ones."""
    shift = 4  # OpenCV draws lines between sixteenths of a pixel, centres being whole numbers
    stroke = np.zeros(work.probability.shape, np.uint8)
    points = np.rint((np.array(step["points"]) - 0.5) * (1 << shift)).astype(np.int32)
    radius = step["radius"]
    for point in points:
        centre = (int(point[0]), int(point[1]))
        cv2.circle(stroke, centre, round(radius * (1 << shift)), 1, cv2.FILLED, cv2.LINE_8, shift)
    if len(points) > 1:
        thickness = max(1, round(2 * radius))
        cv2.polylines(stroke, [points], False, 1, thickness, cv2.LINE_8, shift)
    painted = np.zeros(stroke.shape, np.int8) if work.painted is None else work.painted.copy()
    painted[stroke == 1] = 1 if step["positive"] else -1
    return painted


def _number(step: Mapping[str, Any], name: str) -> float:
    value = step.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9:
        return float(value)
    msg = f"`{name}` must be a number, got {value!r:.200}"
    raise ValueError(msg)


def _sign(step: Mapping[str, Any]) -> bool:
    positive = step.get("positive", True)
    if not isinstance(positive, bool):
        msg = f"`positive` must be true or false, got {positive!r:.200}"
        raise ValueError(msg)
    return positive


def _tensor_bytes(value: object) -> int:
    """Return the bytes of all tensors in nested tuples."""
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(_tensor_bytes, value)) if isinstance(value, tuple) else 0


def next_click(work: Work) -> dict[str, Any] | None:
    """Suggest a click: the middle of the largest region with an entropy above half a bit.

    The click contradicts the present answer there: one that agrees with it would add little.
    """
    doubtful = (work.entropy() > 0.5).astype(np.uint8)
    count, regions, stats, _ = cv2.connectedComponentsWithStats(doubtful)
    if count < 2:
        return None
    largest = 1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())
    inside = np.pad((regions == largest).astype(np.uint8), 1)
    distance = cv2.distanceTransform(inside, cv2.DIST_L2, 5)[1:-1, 1:-1]
    y, x = np.unravel_index(int(distance.argmax()), distance.shape)
    positive = bool(work.probability[y, x] <= 0.5)
    return {"x": float(x) + 0.5, "y": float(y) + 0.5, "positive": positive}
