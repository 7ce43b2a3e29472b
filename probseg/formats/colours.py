"""Colours that tell numbered objects, classes or clicks apart."""

from __future__ import annotations

import colorsys

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]

# colours of clicks on the object and on the background in all pictures: blue and orange, which
# colour-blind people tell apart
CLICK_COLOURS = {True: "#2f6db3", False: "#d9661f"}

CLICK_MARKERS = {True: "o", False: "s"}  # their shapes, as Matplotlib names them: disks and squares

_TURN = (5**0.5 - 1) / 2  # golden ratio: hues of neighbouring numbers lie far apart
_SHADES = ((0.75, 0.95), (0.9, 0.65), (0.45, 0.85), (0.6, 0.45))  # saturation and value


def distinct_colours(count: int) -> Pixels:
    """Return the colours of the numbers from 0 on, RGB, uint8, shape `(count, 3)`."""
    colours = [
        colorsys.hsv_to_rgb(number * _TURN % 1, *_SHADES[number % len(_SHADES)])
        for number in range(count)
    ]
    return np.round(255 * np.array(colours).reshape(count, 3)).astype(np.uint8)


def overlay(image: Pixels, layer: Pixels, where: npt.NDArray[np.bool_]) -> Pixels:
    """Lay a half-transparent picture over an image where a bool mask `(H, W)` is true.

    Image and layer are RGB, uint8, shape `(H, W, 3)`; the layer may be one colour, shape `(3,)`.
    """
    mixed = (image.astype(np.uint16) + layer) // 2
    return np.where(where[..., None], mixed, image).astype(np.uint8)
