"""An image and its prompts at the working size of a method."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from probseg.clicks.annotators import BoolMap
from probseg.clicks.propagated import GUESS_RADIUS, SEED_RADIUS
from probseg.geometry import Box
from probseg.types import Click

Image = npt.NDArray[np.uint8]
FloatMap = npt.NDArray[np.float32]
Number = TypeVar("Number", np.uint8, np.float32)

# boxes are drawn by hand: what is further outside than this part of their longer side is not of the
# object
BOX_SLACK = 0.1

HALF_DIAGONAL = 0.5**0.5  # every point of a pixel is at most this far from its centre


class Scene(NamedTuple):
    """Input of a method; maps have shape `(h, w)`.

    Seeds are 1 on the object, -1 on the background and 0 where no click is near; where two disks
    meet, a pixel belongs to the nearest click. The guess is the probable object from the prompts
    alone, without the image, seeds included.
    """

    image: Image  # RGB, (h, w, 3)
    seeds: npt.NDArray[np.int8]
    guess: BoolMap
    inside: BoolMap | None  # of the box
    outside: BoolMap  # of the box by more than `BOX_SLACK`; nowhere without one
    to_object: npt.NDArray[np.float64]  # pixels to the nearest positive click, or infinity
    to_background: npt.NDArray[np.float64]  # to the nearest negative click
    size: tuple[int, int]  # (H, W) before the reduction

    @property
    def guess_radius(self) -> float:
        """`GUESS_RADIUS` in pixels of the reduced image."""
        height, width = self.image.shape[:2]
        return GUESS_RADIUS * float(max(height, width))

    def enlarged(self, values: npt.NDArray[np.bool_] | npt.NDArray[np.floating]) -> FloatMap:
        """Return a map `(h, w)` at the given size `(H, W)`, float32."""
        return _resized(values.astype(np.float32), self.size)


def make_scene(
    image: Image,
    clicks: Iterable[Click],
    box: Box | None,
    previous: FloatMap | None,
    longest: int | None = None,
) -> Scene:
    """Reduce an image `(H, W, 3)` to a longer side in pixels, and draw its prompts.

    The guess is where the probability `previous`, `(H, W)`, is above 1/2; without it, the inside
    of the box; without a box, disks around the positive clicks, as far as no negative click is
    nearer.
    """
    height, width = size = image.shape[0], image.shape[1]
    scale = 1.0 if longest is None else min(1.0, longest / max(size))
    small = max(1, round(height * scale)), max(1, round(width * scale))
    clicks = [
        Click((c.x + 0.5) * small[1] / width - 0.5, (c.y + 0.5) * small[0] / height - 0.5, sign)
        for c, sign in ((click, click.positive) for click in clicks)
    ]
    to_object = _distance((c for c in clicks if c.positive), small)
    to_background = _distance((c for c in clicks if not c.positive), small)
    inside, outside = None, np.zeros(small, dtype=np.bool_)
    if box is not None:
        inside = _box_map(box, size, small)
        x0, y0, x1, y1 = box  # slices end at the border of the image, but must not begin before it
        slack = math.ceil(BOX_SLACK * max(x1 - x0, y1 - y0))
        larger = max(0, x0 - slack), max(0, y0 - slack), x1 + slack, y1 + slack
        outside = ~_box_map(larger, size, small)
    nearest = to_object <= to_background
    if previous is not None:
        guess = _resized(previous, small) > 0.5
    elif inside is not None:
        guess = inside
    else:
        guess = (to_object <= GUESS_RADIUS * max(small)) & nearest
    radius = max(SEED_RADIUS * max(small), HALF_DIAGONAL)
    seeds = np.zeros(small, dtype=np.int8)
    seeds[(to_background <= radius) & ~nearest] = -1
    seeds[(to_object <= radius) & nearest] = 1
    guess = (guess | (seeds > 0)) & (seeds >= 0)
    return Scene(
        _resized(image, small), seeds, guess, inside, outside, to_object, to_background, size
    )


def border(size: tuple[int, int]) -> BoolMap:
    """Return a map `(h, w)` that is True at the outermost pixels of an image."""
    edge = np.ones(size, dtype=np.bool_)
    edge[1:-1, 1:-1] = False
    return edge


def _box_map(box: Box, size: tuple[int, int], small: tuple[int, int]) -> BoolMap:
    """Return where at least half of a pixel is inside the box, bool, shape `small`."""
    inside = np.zeros(size, dtype=np.float32)
    x0, y0, x1, y1 = box
    inside[y0:y1, x0:x1] = 1
    return np.asarray(_resized(inside, small) >= 0.5)


def _distance(clicks: Iterable[Click], size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Return the distance in pixels to the nearest click, infinite without one."""
    y, x = np.ogrid[: size[0], : size[1]]
    distance = np.full(size, np.inf)
    for click in clicks:
        np.minimum(distance, np.hypot(x - click.x, y - click.y), out=distance)
    return distance


def _resized(values: npt.NDArray[Number], size: tuple[int, int]) -> npt.NDArray[Number]:
    """Return an image or a map at the size `(h, w)`; areas are averaged where it shrinks."""
    if values.shape[:2] == size:
        return values
    shrinks = size[0] * size[1] < values.shape[0] * values.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    resized = cv2.resize(values, (size[1], size[0]), interpolation=method)
    return np.asarray(resized, dtype=values.dtype)
