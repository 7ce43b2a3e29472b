"""Overlap of the boundary regions of a predicted mask and of the truth.

The IoU of a large object hardly sees its outline. The boundary IoU of Cheng et al. (2021,
"Boundary IoU: Improving Object-Centric Image Segmentation Evaluation") compares only the pixels
within a distance `d` of it, on the inside::

    G_d = G minus (G eroded d times by a 3 x 3 square)
    boundary IoU = |G_d and P_d| / |G_d or P_d|

where the outside of the image counts as background, so that its border is part of the outline.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from probseg.metrics.overlap import check_prediction
from probseg.types import IGNORE

DILATION = 0.02
"""Width of the boundary region as a fraction of the image's diagonal (Cheng et al., 2021)."""

_SQUARE = np.ones((3, 3), dtype=np.uint8)


class Region(NamedTuple):
    """Some pixels of an image.

    Args:
        pixels: uint8, 0 or 1, shape `(h, w)`: those within a box; the others are out.
        x0: First column of the box in the image.
        y0: First row of the box in the image.
        area: Number of pixels of the region.
    """

    pixels: npt.NDArray[np.uint8]
    x0: int
    y0: int
    area: int


def boundary_iou(
    prediction: npt.NDArray[np.bool_],
    mask: npt.NDArray[np.uint8],
    dilation: float = DILATION,
) -> float:
    """Return intersection over union of the two boundary regions.

    Ignored pixels are taken out of both the prediction and the truth before their boundary regions
    are drawn, so what is predicted there does not matter. Where neither has an object pixel the
    value is 1.

    Args:
        prediction: bool, shape `(H, W)`.
        mask: uint8, shape `(H, W)`: 1 object, 0 background, 255 ignored.
        dilation: Width of the region as a fraction of the image's diagonal, above 0; see
            `boundary_width`.

    Raises:
        ValueError: If the shapes differ, `prediction` is not bool, or `dilation` is not
            positive.
    """
    check_prediction(prediction, mask)
    width = boundary_width(mask.shape, dilation)
    found = boundary_region((prediction & (mask != IGNORE)).view(np.uint8), width)
    return region_iou(found, boundary_region((mask == 1).view(np.uint8), width))


def boundary_width(shape: tuple[int, ...], dilation: float = DILATION) -> int:
    """Return the width `d = max(1, round(dilation * diagonal))` of a boundary region in pixels.

    Args:
        shape: `(H, W)` of the image.
        dilation: Fraction of its diagonal, above 0.

    Raises:
        ValueError: If `dilation` is not positive.
    """
    if not dilation > 0:
        message = f"`dilation` must be a fraction above 0 of the diagonal, got {dilation}"
        raise ValueError(message)
    return max(1, round(dilation * math.hypot(*shape)))


def boundary_region(inside: npt.NDArray[np.uint8], width: int) -> Region:
    """Return the pixels of a mask that are within `width` pixels of its outside.

    Args:
        inside: uint8, 0 or 1, shape `(H, W)`.
        width: In pixels, in the chessboard distance.
    """
    x0, y0, w, h = cv2.boundingRect(inside)
    cropped = inside[y0 : y0 + h, x0 : x0 + w]  # all background outside of the box
    if not cropped.size:
        return Region(cropped, x0, y0, 0)
    core = cv2.erode(
        cropped, _SQUARE, iterations=width, borderType=cv2.BORDER_CONSTANT, borderValue=0
    )
    pixels = np.asarray(cv2.bitwise_xor(cropped, core))
    return Region(pixels, x0, y0, cv2.countNonZero(pixels))


def region_iou(first: Region, second: Region) -> float:
    """Return intersection over union of two regions of one image; 1 where both are empty."""
    common = _common_area(first, second)
    union = first.area + second.area - common
    return common / union if union else 1.0


def _common_area(first: Region, second: Region) -> int:
    """Return the number of pixels that are in both regions."""
    x0, y0 = max(first.x0, second.x0), max(first.y0, second.y0)
    x1 = min(region.x0 + region.pixels.shape[1] for region in (first, second))
    y1 = min(region.y0 + region.pixels.shape[0] for region in (first, second))
    if x0 >= x1 or y0 >= y1:
        return 0
    parts = (
        region.pixels[y0 - region.y0 : y1 - region.y0, x0 - region.x0 : x1 - region.x0]
        for region in (first, second)
    )
    return int(cv2.countNonZero(cv2.bitwise_and(*parts)))
