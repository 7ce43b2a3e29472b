"""Strokes of a brush that keep to the contours of the model's answer, or to edges of the image."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from probseg.clicks.boxes import mask_box
from probseg.interact.steps import Patch, Stroke, covered

STEP = 1.0
"""How far the logit may fall below that of the middle of a stroke."""

SUREST = 1e-4
"""Probabilities nearer to 0 or 1 do not differ."""


def snapped(
    stroke: Stroke, image: npt.NDArray[np.uint8], probability: npt.NDArray[np.float32]
) -> Patch:
    """Return the pixels of a stroke that belong to what lies under its middle line.

    A pixel under the brush belongs to it if the logit of the stroke's label is at most `STEP` below
    the logit at the nearest pixel of the middle line, or not below 0: the model then sees no
    contour between the two. Of several pixels at the same distance the leftmost counts, and of
    those in its column the uppermost. Where the logits below 0 under the brush differ by no more
    than `STEP`, as in a mask without probabilities, there is no contour to see: of these pixels, a
    watershed of the colours decides, from the middle line and from the pixels around the brush that
    have the other label. The middle line belongs to the stroke, and the rest where it is connected
    to it under the brush.

    Args:
        stroke: The stroke.
        image: RGB, uint8, shape `(H, W, 3)`.
        probability: Of the object before the stroke, float32, shape `(H, W)`.

    Returns:
        A patch with the label of the stroke; without pixels where its middle line is outside of the
        image.
    """
    size = probability.shape
    under = covered(stroke, size)
    line = covered(stroke._replace(radius=0.5), size) & under
    if not line.any():
        return Patch(line, stroke.positive)
    x0, y0, x1, y1 = mask_box(under)
    box = slice(max(0, y0 - 1), y1 + 1), slice(max(0, x0 - 1), x1 + 1)
    found = np.zeros(size, np.bool_)
    own = probability if stroke.positive else 1 - probability
    found[box] = _belonging(under[box], line[box], image[box], own[box])
    return Patch(found, stroke.positive)


def _belonging(
    under: npt.NDArray[np.bool_],
    line: npt.NDArray[np.bool_],
    image: npt.NDArray[np.uint8],
    own: npt.NDArray[np.float32],
) -> npt.NDArray[np.bool_]:
    """Return the pixels `(h, w)` of a stroke, for the probability of its label.

    Args:
        under: The pixels under the brush.
        line: The pixels of the middle line, one at least.
        image: RGB, shape `(h, w, 3)`.
        own: The probability of the stroke's label.
    """
    from scipy.ndimage import distance_transform_edt  # a start without snapping need not wait

    sure = np.clip(own.astype(np.float64), SUREST, 1 - SUREST)
    logit = np.log(sure / (1 - sure))
    # Of several pixels at the same distance, this returns the leftmost, then the uppermost.
    rows, columns = distance_transform_edt(~line, return_distances=False, return_indices=True)
    same = logit >= np.minimum(logit[rows, columns] - STEP, 0)
    other = logit < 0
    gained = logit[under & other]
    if gained.size and np.ptp(gained) <= STEP:
        same = ~other | _basin(under, line, image, other)
    _, parts = cv2.connectedComponents((under & same | line).astype(np.uint8), connectivity=4)
    return np.isin(parts, np.unique(parts[line]))


def _basin(
    under: npt.NDArray[np.bool_],
    line: npt.NDArray[np.bool_],
    image: npt.NDArray[np.uint8],
    other: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Return the pixels of the middle line's side of the strongest edges of the colours.

    Args:
        under: The pixels under the brush.
        line: The pixels of the middle line.
        image: RGB, shape `(h, w, 3)`.
        other: The pixels with the other label than the stroke's.
    """
    from skimage.segmentation import watershed

    lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
    slopes = [cv2.Sobel(lab, cv2.CV_32F, *order) for order in ((1, 0), (0, 1))]
    relief = np.sqrt(np.square(slopes).sum(axis=(0, -1)))
    markers = np.where(line, 1, 2 * (~under & other))
    basins: npt.NDArray[np.int32] = watershed(relief, markers, mask=other | line)
    of_line: npt.NDArray[np.bool_] = basins == 1
    return of_line
