"""The deepest pixels and the largest connected regions of errors.

Both run after every answer of a network, so they look no farther than they have to: nothing lies
outside the bounding box of a map, and a border of zeros around it gives what the whole map would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

BoolMap = npt.NDArray[np.bool_]
Pixels = Sequence[tuple[int, int]]

LOW, HIGH = 0.98, 1.02
"""Chamfer distances with steps 1, 1.4 and 2.1969 are 0.982 to 1.02 times the Euclidean ones."""


class Centre(NamedTuple):
    """The pixel of a map that is farthest from the outside."""

    x: int
    y: int
    squared: int  # Euclidean distance to the nearest pixel outside; 0 where there is no such pixel


class ErrorRegion(NamedTuple):
    """A connected part of a map."""

    corner: tuple[int, int]  # column and row of the first pixel of its bounding box
    inside: BoolMap  # of its bounding box
    area: int  # number of pixels; 0 where there is no such region


NO_CENTRE = Centre(0, 0, 0)
NO_REGION = ErrorRegion((0, 0), np.zeros((0, 0), dtype=np.bool_), 0)


def deepest(maps: Sequence[BoolMap], taken: Pixels) -> tuple[int, Centre]:
    """Find the pixel that is farthest from the outside of its map, over several bool maps `(H, W)`.

    Return the number of the map and the pixel; on a tie the first map, then the first pixel in row-
    major order. The border of a map counts as outside, and `taken` pixels are not returned. A
    chamfer transform (Borgefors, 1986; the 5 x 5 one of OpenCV), which costs a fifth of the exact
    one, says where that pixel can be. The exact transform is taken only around there.
    """
    roughs = {}
    for number, inside in enumerate(maps):
        if inside.any():
            x, y, width, height = _bounding_box(inside)
            box = inside.view(np.uint8)[y : y + height, x : x + width]
            padded = np.pad(box, 1)
            depth = _distance(padded, cv2.DIST_MASK_5)[1:-1, 1:-1]
            _clear(depth, (x, y), taken)
            roughs[number] = _Rough((x, y), padded, depth)
    top = max((float(rough.depth.max()) for rough in roughs.values()), default=0.0)
    best = 0, NO_CENTRE
    if top > 0:
        for number, rough in roughs.items():
            centre = _exact_centre(rough, taken, top)
            if centre.squared > best[1].squared:
                best = number, centre
    return best


def largest_region(maps: Sequence[BoolMap], taken: Pixels) -> tuple[int, ErrorRegion]:
    """Find the 8-connected region with the most pixels that are not all taken, over several maps.

    Return the number of the map and the region; on a tie the first map, then the region whose first
    pixel that is not taken comes first in row-major order. Taken pixels count in the area.
    """
    best = 0, NO_REGION
    for number, inside in enumerate(maps):
        if np.count_nonzero(inside) > best[1].area:
            region = _largest_of(inside, taken)
            if region.area > best[1].area:
                best = number, region
    return best


class _Rough(NamedTuple):
    """The bounding box of a map: its corner, its pixels in a border of zeros, their depth."""

    corner: tuple[int, int]
    padded: npt.NDArray[np.uint8]
    depth: npt.NDArray[np.float32]


def _bounding_box(inside: BoolMap) -> tuple[int, int, int, int]:
    """Return column, row, width and height; the map has at least one pixel."""
    x, y, width, height = cv2.boundingRect(inside.view(np.uint8))
    return x, y, width, height


def _exact_centre(rough: _Rough, taken: Pixels, top: float) -> Centre:
    """Return the deepest pixel of a map, if it can be the deepest of all."""
    near = rough.depth >= top * (LOW / HIGH)
    if not near.any():
        return NO_CENTRE
    x, y, width, height = _bounding_box(near)
    # No pixel is deeper than this, so the nearest pixel outside is not farther.
    reach = math.ceil(top / LOW)
    left, above = min(x + 1, reach), min(y + 1, reach)  # one more for the border of zeros
    window = rough.padded[
        y + 1 - above : y + 1 + height + reach, x + 1 - left : x + 1 + width + reach
    ]
    distance = _distance(window, cv2.DIST_MASK_PRECISE)
    depth = distance[above : above + height, left : left + width]
    corner = rough.corner[0] + x, rough.corner[1] + y
    _clear(depth, corner, taken)
    squared = round(float(depth.max()) ** 2)  # a whole number, so this undoes float rounding
    row, column = divmod(int((depth > math.sqrt(squared - 0.5)).argmax()), width)
    return Centre(corner[0] + column, corner[1] + row, squared)


def _distance(inside: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.float32]:
    return np.asarray(cv2.distanceTransform(inside, cv2.DIST_L2, size), dtype=np.float32)


def _clear(values: npt.NDArray[np.float32], corner: tuple[int, int], taken: Pixels) -> None:
    """Write 0 at those pixels that lie in the box of `values`."""
    for column, row in taken:
        x, y = column - corner[0], row - corner[1]
        if 0 <= x < values.shape[1] and 0 <= y < values.shape[0]:
            values[y, x] = 0


def _largest_of(inside: BoolMap, taken: Pixels) -> ErrorRegion:
    x0, y0, width, height = _bounding_box(inside)
    box = inside[y0 : y0 + height, x0 : x0 + width]
    count, numbers = cv2.connectedComponents(box.view(np.uint8), connectivity=8)
    labels = np.asarray(numbers, dtype=np.int32)
    areas = np.bincount(labels[box], minlength=count)  # none at label 0, which is outside
    free, fresh = areas.copy(), box.copy()
    for x, y in {(x - x0, y - y0) for x, y in taken}:
        if 0 <= x < width and 0 <= y < height and box[y, x]:
            free[labels[y, x]] -= 1
            fresh[y, x] = False
    areas[free == 0] = 0
    most = int(areas.max())
    if most == 0:
        return NO_REGION
    largest = np.flatnonzero(areas == most)
    label = largest[0]
    if largest.size > 1:
        label = labels.flat[(np.isin(labels, largest) & fresh).argmax()]
    region = labels == label
    x, y, width, height = _bounding_box(region)
    return ErrorRegion((x0 + x, y0 + y), region[y : y + height, x : x + width], most)
