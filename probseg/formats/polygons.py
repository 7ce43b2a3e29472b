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

from probseg.errors import require
from probseg.formats.regions import FARTHEST, Mask, Region, as_region, check_size, from_lines
from probseg.formats.run_lengths import parse_runs, region_of

Points = npt.NDArray[np.float64]

# pixels along outlines of few corners; each costs 80 bytes while they are drawn
MAX_LENGTH = 5 * 10**6

# steps to the right, down, left and up: a right turn is the next one
_RIGHT, _DOWN = np.array([[1, 0, -1, 0], [0, 1, 0, -1]])


class Polygon(NamedTuple):
    """One part of an object."""

    # corners of the outline `(x, y)` on the borders of pixels, float64, shape `(N, 2)`; clockwise
    # on the screen, the last corner is joined to the first
    outer: Points
    holes: tuple[Points, ...] = ()  # the same of each hole, counterclockwise


def trace(mask: Mask | Region, tolerance: float = 0.0) -> list[Polygon]:
    """Trace the outlines of a mask, bool, shape `(H, W)`, or a region: a polygon for each part.

    `tolerance` is the largest distance in pixels of a simplified outline from the exact one
    (Douglas and Peucker 1973); parts and holes that shrink to a line are left out. 0 is exact:
    `fill` gives every mask back.

    Parts that touch at a corner are separate polygons.
    """
    require(0 <= tolerance < math.inf, "tolerance", "finite and at least 0 pixels", tolerance)
    region = as_region(mask)
    if not region.inside.size:
        return []
    rings = _rings(region.inside)
    _, parts = cv2.connectedComponents(region.inside.view(np.uint8), connectivity=4)
    outer: dict[int, Points] = {}
    holes: dict[int, list[Points]] = {}
    for ring in rings:
        column, row = ring[0].astype(int).tolist()
        part = int(parts[row, column])
        simple = ring
        if tolerance > 0:
            short = cv2.approxPolyDP(ring.astype(np.float32), tolerance, closed=True)
            simple = short[:, 0].astype(np.float64)
        if len(simple) < 3:
            continue
        simple = simple + np.array([region.x, region.y])
        if signed_area(ring) > 0:
            outer[part] = simple
        else:
            holes.setdefault(part, []).append(simple)
    return [Polygon(ring, tuple(holes.get(part, ()))) for part, ring in sorted(outer.items())]


def fill(polygons: Sequence[Polygon], size: tuple[int, int]) -> Mask:
    """Draw polygons as a whole mask, see `draw`: bool, shape `(H, W)`."""
    return draw(polygons, size).mask()


def draw(polygons: Sequence[Polygon], size: tuple[int, int]) -> Region:
    """Draw polygons: a pixel is object if its centre is inside of one, and in none of its holes.

    Inside are points that an odd number of the polygon's lines separates from the left border.
    """
    rings = [[polygon.outer, *polygon.holes] for polygon in polygons]
    flat = [ring for group in rings for ring in group]
    if not flat:
        none = np.zeros(0, dtype=np.int64)
        return from_lines(none, none, none, size)
    owner = np.repeat(np.arange(len(rings)), [sum(map(len, group)) for group in rings])
    first = np.concatenate(flat)
    last = np.concatenate([np.roll(ring, -1, axis=0) for ring in flat])
    downwards = (first[:, 1] <= last[:, 1])[:, None]
    upper, lower = np.where(downwards, first, last), np.where(downwards, last, first)
    height, width = size
    begin = np.clip(np.ceil(upper[:, 1] - 0.5), 0, height).astype(np.int64)
    end = np.clip(np.ceil(lower[:, 1] - 0.5), 0, height).astype(np.int64)
    lengths = np.maximum(end - begin, 0)
    _check_length(float(lengths.sum()), len(first))
    line = np.repeat(np.arange(len(first)), lengths)
    rows = np.arange(len(line)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + begin[line]
    share = (rows + 0.5 - upper[line, 1]) / (lower[line, 1] - upper[line, 1])
    x = upper[line, 0] + share * (lower[line, 0] - upper[line, 0])
    columns = np.clip(np.ceil(x - 0.5), 0, width).astype(np.int64)
    order = np.lexsort((columns, rows, owner[line]))  # each row enters and leaves each polygon
    rows, lefts, rights = rows[order][::2], columns[order][::2], columns[order][1::2]
    full = rights > lefts
    return from_lines(rows[full], lefts[full], rights[full], size)


def ring(corners: object, size: tuple[int, int], scale: tuple[float, float] = (1.0, 1.0)) -> Region:
    """Draw a polygon without holes as other programs have it, `[[x, y], ...]`."""
    points = np.array(corners, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or not (abs(points) <= FARTHEST).all():
        raise ValueError(f"its 'points' must be [[x, y], ...], got {corners!r:.60}")
    return draw([Polygon(points * scale)], size)


def to_coco(polygons: Sequence[Polygon]) -> list[list[float]]:
    """Return the outer outlines as COCO has them, `[x, y, x, y, ...]` each; holes are filled."""
    return [polygon.outer.ravel().tolist() for polygon in polygons]


def from_coco(outlines: Sequence[Sequence[float] | Points], size: tuple[int, int]) -> Region:
    """Draw the union of polygons `[x, y, x, y, ...]` in `(H, W)` pixels as pycocotools does."""
    return region_of(coco_runs(outlines, size), size) if outlines else draw([], size)


def coco_runs(
    outlines: Sequence[Sequence[float] | Points], size: tuple[int, int]
) -> npt.NDArray[np.int64]:
    """Return the run lengths of outlines as pycocotools draws them, see `from_coco`."""
    check_size(size)
    for outline in outlines:
        if len(outline) < 6 or len(outline) % 2:
            raise ValueError(
                f"an outline must have at least 3 pairs of numbers, got {len(outline)} numbers"
            )
        corners = np.reshape(outline, (-1, 2))
        steps = np.abs(corners - np.roll(corners, 1, axis=0)).max(axis=1)
        _check_length(float(steps.sum()), len(corners))
    return parse_runs(coco_mask.merge(coco_mask.frPyObjects(list(outlines), *size))["counts"])


def _check_length(length: float, corners: int) -> None:
    """Raise a `ValueError` for outlines whose memory their corners do not explain."""
    if not length <= MAX_LENGTH + 2 * corners:  # nor a number that is none
        raise ValueError(f"outlines of {corners} corners must not be {length:.0f} pixels long")


def _rings(mask: Mask) -> list[Points]:
    """Return the closed lines between object and background, the object at their right hand.

    Each side of a pixel on the border is in one line, once: a step is followed by the one that
    turns right, or else leads straight on, or else turns left, which is a permutation of the
    steps, and its cycles are the lines. Parts that touch at a corner stay apart.
    """
    height, width = mask.shape
    inside = np.pad(mask, 1)
    above, below = inside[:-1], inside[1:]  # of the line between two rows
    left, right = inside[:, :-1], inside[:, 1:]
    begins = np.zeros((height + 2, width + 2), dtype=np.uint8)  # directions as bits, by corner
    begins[:-1, :-1] = (below > above)[:, 1:]
    begins[:-1, :-1] |= (left > right)[1:].view(np.uint8) << 1
    begins[:-1, 1:] |= (above > below)[:, 1:].view(np.uint8) << 2
    begins[1:, :-1] |= (right > left)[1:].view(np.uint8) << 3
    # The corner (x, y) is at begins[y, x].
    shape = (4, *begins.shape)
    steps = np.concatenate(
        [n * begins.size + np.flatnonzero(begins & (1 << n)) for n in range(len(_DOWN))]
    )
    direction, row, column = np.unravel_index(steps, shape)
    to_row, to_column = row + _DOWN[direction], column + _RIGHT[direction]
    following = np.zeros_like(steps)
    for turn in (3, 0, 1):  # left, straight on, right: the last that is possible remains
        turned = (direction + turn) % 4
        possible = (begins[to_row, to_column] >> turned & 1).astype(np.bool_)
        there = np.ravel_multi_index((turned, to_row, to_column), shape)
        following[possible] = there[possible]
    places = np.searchsorted(steps, following)
    is_corner = np.zeros(len(steps), dtype=np.bool_)
    is_corner[places] = direction != direction[places]
    corners = np.stack([column, row], axis=1).astype(np.float64)
    after, seen, rings = places.tolist(), bytearray(len(steps)), []
    for start in np.flatnonzero(is_corner & (direction == 0)).tolist():
        ring = []
        step = start
        while not seen[step]:
            seen[step] = True
            ring.append(step)
            step = after[step]
        if ring:
            rings.append(corners[ring][is_corner[ring]])
    return rings


def signed_area(ring: Points) -> float:
    """Return the area that a ring of shape `(N, 2)` encloses; negative counterclockwise."""
    x, y = ring.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
