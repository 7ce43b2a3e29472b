"""Outlines of masks: polygons with holes.

Traced with `tolerance=0` they run along the borders of pixels, and filled at the centres of
pixels they give the mask back exactly. Simplified they are shorter and lossy.

The polygons of COCO are a union and have no way to cut a hole: `to_coco` fills holes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.float64]

_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # right, down, left, up: a right turn is the next one


class Polygon(NamedTuple):
    """One part of an object.

    Args:
        outer: Corners of the outline `(x, y)` on the borders of pixels, float64, shape
            `(N, 2)`; clockwise on the screen, the last corner is joined to the first.
        holes: The same of each hole, counterclockwise.
    """

    outer: Points
    holes: tuple[Points, ...] = ()


def trace(mask: Mask, tolerance: float = 0.0) -> list[Polygon]:
    """Trace the outlines of a mask.

    Parts that touch at a corner are separate polygons.

    Args:
        mask: bool, shape `(H, W)`.
        tolerance: Largest distance in pixels of a simplified outline from the exact one (Douglas
            and Peucker 1973); parts and holes that shrink to a line are left out. 0 is exact.

    Returns:
        One polygon for each part; none for an empty mask.

    Raises:
        ValueError: If `tolerance` is negative or no number.
    """
    if not 0 <= tolerance < math.inf:
        msg = f"`tolerance` must be finite and at least 0 pixels, got {tolerance}"
        raise ValueError(msg)
    _, parts = cv2.connectedComponents(mask.astype(np.uint8), connectivity=4)
    outer: dict[int, Points] = {}
    holes: dict[int, list[Points]] = {}
    for ring, (column, row) in _rings(mask):
        part = int(parts[row, column])
        simple = _simplified(ring, tolerance)
        if len(simple) < 3:
            continue
        if signed_area(ring) > 0:
            outer[part] = simple
        else:
            holes.setdefault(part, []).append(simple)
    return [Polygon(ring, tuple(holes.get(part, ()))) for part, ring in sorted(outer.items())]


def fill(polygons: Sequence[Polygon], size: tuple[int, int]) -> Mask:
    """Draw polygons: a pixel is object if its centre is inside of one, and in none of its holes.

    Args:
        polygons: In pixels.
        size: `(H, W)`; what is outside is left out.

    Returns:
        bool, shape `(H, W)`.
    """
    mask = np.zeros(size, dtype=np.bool_)
    for polygon in polygons:
        mask |= _inside([polygon.outer, *polygon.holes], size)
    return mask


def to_coco(polygons: Sequence[Polygon]) -> list[list[float]]:
    """Return the outer outlines as COCO has them, `[x, y, x, y, ...]` each; holes are filled."""
    return [polygon.outer.ravel().tolist() for polygon in polygons]


def from_coco(outlines: Sequence[Sequence[float]], size: tuple[int, int]) -> Mask:
    """Draw the polygons of COCO as pycocotools does.

    Args:
        outlines: `[x, y, x, y, ...]` each, at least three corners; their union is the object.
        size: `(H, W)`.

    Returns:
        bool, shape `(H, W)`.

    Raises:
        ValueError: If an outline has fewer than three corners or half a corner.
    """
    for outline in outlines:
        if len(outline) < 6 or len(outline) % 2:
            msg = f"an outline must have at least 3 pairs of numbers, got {len(outline)} numbers"
            raise ValueError(msg)
    if not outlines:
        return np.zeros(size, dtype=np.bool_)
    runs = coco_mask.frPyObjects([list(outline) for outline in outlines], *size)
    drawn: Mask = coco_mask.decode(coco_mask.merge(runs)).astype(np.bool_)
    return np.ascontiguousarray(drawn)


def _rings(mask: Mask) -> list[tuple[Points, tuple[int, int]]]:
    """Return the closed lines between object and background, the object at their right hand.

    Returns:
        Corners, and column and row of a pixel of the object that the line runs along.
    """
    height, width = mask.shape
    inside = np.zeros((height + 2, width + 2), dtype=np.bool_)
    inside[1:-1, 1:-1] = mask
    above, below = inside[:-1], inside[1:]  # of the line between two rows
    left, right = inside[:, :-1], inside[:, 1:]
    begins = np.zeros((4, height + 2, width + 2), dtype=np.bool_)  # by direction and first corner
    begins[0, :-1, :-1] = (below & ~above)[:, 1:]
    begins[1, :-1, :-1] = (left & ~right)[1:]
    begins[2, :-1, 1:] = (above & ~below)[:, 1:]
    begins[3, 1:, :-1] = (right & ~left)[1:]
    # The corner (x, y) is at begins[:, y, x].
    found = []
    for y, x in np.argwhere(begins[0]).tolist():
        if not begins[0, y, x]:
            continue
        corners = []
        direction, column, row = 0, x, y
        while begins[direction, row, column]:
            begins[direction, row, column] = False
            column, row = column + _STEPS[direction][0], row + _STEPS[direction][1]
            before = direction
            for turn in (1, 0, 3):  # to the right first: parts that touch at a corner stay apart
                direction = (before + turn) % 4
                if begins[direction, row, column]:
                    break
            if direction != before:
                corners.append((column, row))
        found.append((np.array(corners, dtype=np.float64), (x, y)))
    return found


def _simplified(ring: Points, tolerance: float) -> Points:
    if tolerance == 0:
        return ring
    short = cv2.approxPolyDP(ring.astype(np.float32), tolerance, closed=True)
    simple: Points = short[:, 0].astype(np.float64)
    return simple


def signed_area(ring: Points) -> float:
    """Return the area that a ring of shape `(N, 2)` encloses; negative counterclockwise."""
    x, y = ring.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _inside(rings: Sequence[Points], size: tuple[int, int]) -> Mask:
    """Return the pixels whose centres an odd number of lines separates from the left border."""
    height, width = size
    first = np.concatenate(rings)
    last = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    upper = np.where((first[:, 1] <= last[:, 1])[:, None], first, last)
    lower = np.where((first[:, 1] <= last[:, 1])[:, None], last, first)
    begin = np.clip(np.ceil(upper[:, 1] - 0.5), 0, height).astype(np.int64)
    end = np.clip(np.ceil(lower[:, 1] - 0.5), 0, height).astype(np.int64)
    lengths = np.maximum(end - begin, 0)
    line = np.repeat(np.arange(len(first)), lengths)
    rows = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + begin[line]
    share = (rows + 0.5 - upper[line, 1]) / (lower[line, 1] - upper[line, 1])
    x = upper[line, 0] + share * (lower[line, 0] - upper[line, 0])
    columns = np.clip(np.ceil(x - 0.5), 0, width).astype(np.int64)
    crossings = np.zeros((height, width + 1), dtype=np.int32)
    np.add.at(crossings, (rows, columns), 1)
    odd: Mask = np.cumsum(crossings, axis=1)[:, :width] % 2 == 1
    return odd
