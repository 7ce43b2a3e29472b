"""Scores of one mask: overlap, outline, calibration, obeyed clicks, jumps.

Masks of the truth are uint8, shape `(H, W)`: 1 object, 0 background, 255 ignored. Predictions are
bool, and probabilities of the object float in [0, 1], of the same shape. All may be tensors, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from probseg.types import IGNORE, Click, check_mask, takes_tensors


@takes_tensors
def iou(prediction: npt.NDArray[np.bool_], mask: npt.NDArray[np.uint8]) -> float:
    """Return intersection over union of the object, over the pixels that are not ignored.

    Where neither the prediction nor the truth has an object pixel there is nothing to get wrong:
    the value is 1.
    """
    check_prediction(prediction, mask)
    truth = mask == 1
    union = int(np.count_nonzero((truth | prediction) & (mask != IGNORE)))
    intersection = int(np.count_nonzero(truth & prediction))
    return intersection / union if union else 1.0


def check_prediction(prediction: npt.NDArray[np.bool_], mask: npt.NDArray[np.uint8]) -> None:
    """Refuse a prediction that is not bool of the mask's shape, and a mask of other values."""
    check_mask(mask)
    if prediction.shape != mask.shape or prediction.dtype != np.bool_:
        raise ValueError(
            f"`prediction` must be bool of the mask's shape {mask.shape}, "
            f"got {prediction.dtype} of shape {prediction.shape}"
        )


DILATION = 0.02
"""Width of the boundary region as a fraction of the image's diagonal (Cheng et al., 2021)."""

_SQUARE = np.ones((3, 3), dtype=np.uint8)


class BoxedRegion(NamedTuple):
    """Pixels of an image within a box: those of a boundary, for example."""

    pixels: npt.NDArray[np.uint8]  # 0 or 1, the part within the box
    x0: int  # first column of the box
    y0: int  # first row
    area: int  # number of pixels of the region


@takes_tensors
def boundary_iou(
    prediction: npt.NDArray[np.bool_], mask: npt.NDArray[np.uint8], dilation: float = DILATION
) -> float:
    """Return intersection over union of the two boundary regions.

    The IoU of a large object hardly sees its outline. Cheng et al. (2021, "Boundary IoU: Improving
    Object-Centric Image Segmentation Evaluation") compare only the pixels within a distance `d` of
    it, on the inside::

        G_d = G minus (G eroded d times by a 3 x 3 square)
        boundary IoU = |G_d and P_d| / |G_d or P_d|

    where the outside of the image counts as background, so that its border is part of the outline.
    Ignored pixels are taken out of both the prediction and the truth before their boundary regions
    are drawn, so what is predicted there does not matter. Where neither has an object pixel the
    value is 1.

    `dilation` is `d` as a fraction of the image's diagonal.
    """
    check_prediction(prediction, mask)
    width = boundary_width(mask.shape, dilation)
    predicted = boundary_region((prediction & (mask != IGNORE)).view(np.uint8), width)
    return region_iou(predicted, boundary_region((mask == 1).view(np.uint8), width))


def boundary_width(shape: tuple[int, ...], dilation: float = DILATION) -> int:
    """Return the width `d = max(1, round(dilation * diagonal))` of a boundary region in pixels."""
    if not dilation > 0:
        raise ValueError(f"`dilation` must be a fraction above 0 of the diagonal, got {dilation}")
    return max(1, round(dilation * math.hypot(*shape)))


def boundary_region(inside: npt.NDArray[np.uint8], width: int) -> BoxedRegion:
    """Return the pixels of a 0-1 mask within `width` of its outside (chessboard)."""
    x0, y0, w, h = cv2.boundingRect(inside)
    cropped = inside[y0 : y0 + h, x0 : x0 + w]  # all background outside of the box
    if not cropped.size:
        return BoxedRegion(cropped, x0, y0, 0)
    core = cv2.erode(
        cropped, _SQUARE, iterations=width, borderType=cv2.BORDER_CONSTANT, borderValue=0
    )
    pixels = np.asarray(cv2.bitwise_xor(cropped, core))
    return BoxedRegion(pixels, x0, y0, cv2.countNonZero(pixels))


def region_iou(first: BoxedRegion, second: BoxedRegion) -> float:
    """Return intersection over union of two regions of one image; 1 where both are empty."""
    x0, y0 = max(first.x0, second.x0), max(first.y0, second.y0)
    x1 = min(region.x0 + region.pixels.shape[1] for region in (first, second))
    y1 = min(region.y0 + region.pixels.shape[0] for region in (first, second))
    common = 0
    if x0 < x1 and y0 < y1:
        parts = (
            region.pixels[y0 - region.y0 : y1 - region.y0, x0 - region.x0 : x1 - region.x0]
            for region in (first, second)
        )
        common = cv2.countNonZero(cv2.bitwise_and(*parts))
    union = first.area + second.area - common
    return common / union if union else 1.0


BINS = 15
"""Number of bins of the calibration error (Guo et al., 2017)."""

Floats = npt.NDArray[np.floating]


@takes_tensors
def brier_score(probability: Floats, mask: npt.NDArray[np.uint8]) -> float | None:
    """Return the mean squared error of the probabilities, mean of `(p - y)^2` (Brier, 1950).

    `y` is 1 on the object and 0 on the background. It is a proper score: the true probability of
    each pixel has the least expected value. The range is [0, 1], and 0.25 is what `p = 0.5`
    everywhere gets.

    Returns:
        The score, or None where all pixels are ignored.
    """
    check_probability(probability, mask)
    counted = mask != IGNORE
    if not counted.any():
        return None
    errors = probability[counted].astype(np.float64) - (mask[counted] == 1)
    return float(np.mean(errors**2))


@takes_tensors
def expected_calibration_error(
    probability: Floats, mask: npt.NDArray[np.uint8], bins: int = BINS
) -> float | None:
    """Return the mean difference between probabilities and observed shares of object pixels.

    The expected calibration error of Guo et al. (2017, Eq. 3 and 5), here of the probability of
    the object rather than of the likelier class::

        sum over bins b of  n_b / n * |mean of p in b - share of object pixels in b|

    Bin `b` of `B` holds `b / B <= p < (b + 1) / B`, the last one `p = 1` too; `p * B` is
    computed in float32. The range is [0, 1].

    Returns:
        The error, or None where all pixels are ignored.
    """
    check_probability(probability, mask)
    if bins < 1:
        raise ValueError(f"`bins` must be at least 1, got {bins}")
    counted = mask != IGNORE
    if not counted.any():
        return None
    values, truth = probability[counted], mask[counted] == 1
    index = np.minimum((values.astype(np.float32) * np.float32(bins)).astype(np.intp), bins - 1)
    # n_b * (mean of p - share of object) is the sum of p - y in the bin.
    gaps = np.bincount(index, weights=values.astype(np.float64) - truth, minlength=bins)
    return float(np.abs(gaps).sum() / truth.size)


def check_probability(probability: Floats, mask: npt.NDArray[np.uint8]) -> None:
    """Refuse values that are not probabilities in the mask's shape, and a mask of other values."""
    check_mask(mask)
    if probability.shape != mask.shape or not np.issubdtype(probability.dtype, np.floating):
        raise ValueError(
            f"`probability` must be floats of the mask's shape {mask.shape}, "
            f"got {probability.dtype} of shape {probability.shape}"
        )
    if not probability.size:
        return
    low, high = float(probability.min()), float(probability.max())  # both are NaN if any value is
    if np.isnan(low):
        raise ValueError(
            f"`probability` must be in [0, 1], got NaN at "
            f"{np.count_nonzero(np.isnan(probability))} of {probability.size} pixels; "
            "the network diverged, or divided by zero"
        )
    if low < 0 or high > 1:
        raise ValueError(
            f"`probability` must be in [0, 1], got {low:g} to {high:g}; "
            "are these logits? Take their sigmoid"
        )


@takes_tensors
def click_compliance(prediction: npt.NDArray[np.bool_], clicks: Sequence[Click]) -> float | None:
    """Return the share of clicks that agree with the prediction at their pixel.

    A click belongs to the pixel `(floor(x), floor(y))`. An annotator expects 1: what was clicked on
    once should not have to be clicked on again.

    Args:
        prediction: bool, shape `(H, W)`.
        clicks: In pixels of the prediction; or `(x, y, positive)`.

    Returns:
        Share in [0, 1], or None without clicks.
    """
    if not clicks:
        return None
    height, width = prediction.shape
    obeyed = 0
    for click in map(Click._make, clicks):
        x, y = math.floor(click.x), math.floor(click.y)
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(
                f"`clicks` must satisfy 0 <= x < {width} and 0 <= y < {height}, "
                f"got ({click.x}, {click.y}); are they in pixels of this prediction?"
            )
        obeyed += prediction[y, x] == click.positive
    return float(obeyed) / len(clicks)


@takes_tensors
def size_jump(
    before: npt.NDArray[np.bool_] | None, prediction: npt.NDArray[np.bool_]
) -> float | None:
    """Return 1 if a click changed the area of the mask by more than half, else 0.

    Args:
        before: The mask before the click, bool, shape `(H, W)`; None without one.
        prediction: The mask after it, of the same shape.

    Returns:
        None where there was no mask, or an empty one, before.
    """
    if before is None or not (size := np.count_nonzero(before)):
        return None
    return float(2 * abs(np.count_nonzero(prediction) - size) > size)
