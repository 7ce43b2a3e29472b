"""Text of YOLO-seg: a line for each object, `class x y x y ...`, relative to the image's size.

A line is one outline. Parts and holes of an object are joined to it by lines that lead there and
back along the same way, which encloses no pixel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from probseg.formats.polygons import Points, Polygon, fill

DIGITS = 7
"""Decimals of a coordinate: less than a hundredth of a pixel in images of 100,000."""


def encode(number: int, polygons: Sequence[Polygon], size: tuple[int, int]) -> str:
    """Write an object as a line.

    Args:
        number: Of its class, from 0 on.
        polygons: Its parts in pixels, at least one.
        size: `(H, W)` of the image.

    Returns:
        The line, without its end.

    Raises:
        ValueError: If there is no polygon, which YOLO cannot say.
    """
    if not polygons:
        msg = "`polygons` must have at least one part, got none: YOLO has no empty objects"
        raise ValueError(msg)
    rings = [ring for polygon in polygons for ring in (polygon.outer, *polygon.holes)]
    joined = rings[0]
    for ring in rings[1:]:
        joined = _joined(joined, ring)
    relative = joined / [size[1], size[0]]
    return " ".join([str(number), *(f"{value:.{DIGITS}f}" for value in relative.ravel())])


def decode(line: str, size: tuple[int, int]) -> tuple[int, npt.NDArray[np.bool_]]:
    """Draw the object of a line.

    Args:
        line: `class x y x y ...`.
        size: `(H, W)` of the image, which the text does not have.

    Returns:
        Number of the class, and the mask, bool, shape `(H, W)`.

    Raises:
        ValueError: If the line has another form, or coordinates are outside of [0, 1].
    """
    words = line.split()
    try:
        number = int(words[0]) if words else -1
        values = np.array([float(word) for word in words[1:]])
    except ValueError as error:
        msg = f"a line must be `class x y x y ...` in numbers, got {line[:60]!r}"
        raise ValueError(msg) from error
    if number < 0 or len(values) < 6 or len(values) % 2:
        msg = (
            "a line must be a class of at least 0 and three or more pairs of coordinates, got "
            f"{line[:60]!r}; lines of four numbers are boxes"
        )
        raise ValueError(msg)
    if not ((values >= 0) & (values <= 1)).all():
        msg = f"coordinates must be relative to the image, from 0 to 1, got {line[:60]!r}"
        raise ValueError(msg)
    return number, fill([Polygon(values.reshape(-1, 2) * [size[1], size[0]])], size)


def _joined(ring: Points, other: Points) -> Points:
    """Join another ring at the nearest corners of both."""
    distances, nearest = cKDTree(ring).query(other)
    j = int(distances.argmin())
    i = int(nearest[j])
    return np.concatenate([ring[: i + 1], other[j:], other[: j + 1], ring[i:]])
