"""Simulated annotators: where somebody who knows the truth clicks next.

Both rules look at two maps of errors: missed object (false negatives, asks for a positive click)
and false alarms (false positives, asks for a negative click). Ignored pixels are in neither. Both
are deterministic and click the centre of an error, i.e. the maximum of its distance transform,
where the border of the image counts as the border of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
import numpy.typing as npt

from probseg.types import IGNORE, Click

BoolMap = npt.NDArray[np.bool_]
ClickRule = Callable[[BoolMap, npt.NDArray[np.uint8], Sequence[Click]], Click | None]


def largest_error_click(
    prediction: BoolMap, mask: npt.NDArray[np.uint8], clicked: Sequence[Click] = ()
) -> Click | None:
    """Click the centre of the largest circle that fits into the errors.

    The rule of RITM (Sofiiuk et al., 2021), which f-BRS, SimpleClick and SegNext share: exact
    Euclidean distance transforms of both error maps after a zero border of one pixel; pixels that
    were clicked before are out; positive if the largest distance inside the missed object is
    *strictly* above that inside the false alarms, so a tie gives a negative click; the first
    maximum in row-major order.

    Where no error is left the result is None. RITM then clicks pixel (0, 0) as background.

    Args:
        prediction: bool, shape ``(H, W)``.
        mask: uint8, shape ``(H, W)``: 1 object, 0 background, 255 ignored.
        clicked: The clicks so far, in pixels of the same map.

    Raises:
        ValueError: If the shapes or the dtype of ``prediction`` are not as above.
    """
    missed, false_alarm = error_maps(prediction, mask)
    fresh = _not_clicked(prediction.shape, clicked)
    inside_missed = _inner_distance(missed) * fresh
    inside_false = _inner_distance(false_alarm) * fresh
    positive = bool(inside_missed.max() > inside_false.max())
    return _click_at_maximum(inside_missed if positive else inside_false, positive)


def largest_area_click(
    prediction: BoolMap, mask: npt.NDArray[np.uint8], clicked: Sequence[Click] = ()
) -> Click | None:
    """Click the centre of the connected error with the most pixels.

    Gabbur et al. (2021, appendix C.3) sample "the next corrective click from the largest error
    areas (positive and negative)" and leave open what is measured and where in it the click falls.
    Here: regions are 8-connected, of one sign each, and compete by their number of pixels, both
    signs together; on a tie the false alarm goes first, then the region that comes first in
    row-major order; the click is the first maximum of the distance transform inside the region.
    Pixels that were clicked before are out, and so are regions that hold no other pixels.

    Args:
        prediction: bool, shape ``(H, W)``.
        mask: uint8, shape ``(H, W)``: 1 object, 0 background, 255 ignored.
        clicked: The clicks so far, in pixels of the same map.

    Returns:
        The click, or None where no error is left.

    Raises:
        ValueError: If the shapes or the dtype of ``prediction`` are not as above.
    """
    missed, false_alarm = error_maps(prediction, mask)
    fresh = _not_clicked(prediction.shape, clicked)
    missed_labels, missed_areas = _regions(missed)
    false_labels, false_areas = _regions(false_alarm)
    missed_areas, false_areas = missed_areas * fresh, false_areas * fresh
    positive = bool(missed_areas.max() > false_areas.max())
    error, labels, areas = (
        (missed, missed_labels, missed_areas)
        if positive
        else (false_alarm, false_labels, false_areas)
    )
    region = labels == labels.flat[areas.argmax()]
    return _click_at_maximum(_inner_distance(error) * (region & fresh), positive)


CLICK_RULES: dict[str, ClickRule] = {
    "largest_radius": largest_error_click,
    "largest_area": largest_area_click,
}
"""Rules by name: each takes the prediction, the mask and the clicks so far."""


def error_maps(prediction: BoolMap, mask: npt.NDArray[np.uint8]) -> tuple[BoolMap, BoolMap]:
    """Return the missed object and the false alarms, bool, shape ``(H, W)`` each.

    Args:
        prediction: bool, shape ``(H, W)``.
        mask: uint8, shape ``(H, W)``: 1 object, 0 background, 255 ignored.

    Raises:
        ValueError: If the shapes differ, or ``prediction`` is not bool.
    """
    if prediction.ndim != 2 or prediction.shape != mask.shape:
        message = (
            "prediction and mask: expected one shape (H, W) for both, "
            f"got {prediction.shape} and {mask.shape}"
        )
        raise ValueError(message)
    if prediction.dtype != np.bool_:
        message = (
            f"prediction: expected bool, got {prediction.dtype}; compare with a threshold first"
        )
        raise ValueError(message)
    truth = mask == 1
    return truth & ~prediction, ~truth & prediction & (mask != IGNORE)


def _not_clicked(shape: tuple[int, ...], clicked: Sequence[Click]) -> BoolMap:
    """Return a map that is False at the pixels that were clicked."""
    fresh = np.ones(shape, dtype=np.bool_)
    for click in clicked:
        fresh[round(click.y), round(click.x)] = False
    return fresh


def _inner_distance(error: BoolMap) -> npt.NDArray[np.float32]:
    """Return each pixel's distance in pixels to the nearest one outside ``error``."""
    padded = np.pad(error, 1).astype(np.uint8)  # the border of the image ends an error, too
    distance = cv2.distanceTransform(padded, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    return np.asarray(distance[1:-1, 1:-1], dtype=np.float32)


def _regions(error: BoolMap) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return each pixel's region number and the number of pixels of its region (0 outside)."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(error.astype(np.uint8), connectivity=8)
    areas = stats[:, cv2.CC_STAT_AREA].copy()
    areas[0] = 0  # label 0 is what lies outside the error
    return labels, areas[labels]


def _click_at_maximum(distance: npt.NDArray[np.float32], positive: bool) -> Click | None:
    """Return a click at the first maximum in row-major order, or None where all is zero."""
    y, x = np.unravel_index(distance.argmax(), distance.shape)
    return Click(int(x), int(y), positive) if distance[y, x] > 0 else None
