"""Steps of an annotator on one object: clicks, boxes, masks, strokes of a brush and patches.

Snapped strokes keep to the contours of the model's answer, or to edges of the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cv2
import numpy as np
import numpy.typing as npt

from probseg.errors import require
from probseg.geometry import mask_box
from probseg.types import Click, Patch, Stroke

STEP = 1.0  # how far the logit may fall below that of the middle of a stroke

CRUMB = 0.005  # share of a mask below which a part or a hole is tidied away

SUREST = 1e-4  # probabilities nearer to 0 or 1 do not differ


def paint(
    step: Stroke | Patch, earlier: npt.NDArray[np.int8] | None, size: tuple[int, int]
) -> npt.NDArray[np.int8]:
    """Return labels int8 `(H, W)` with a stroke or a patch over earlier ones; None without."""
    pixels = step.pixels if isinstance(step, Patch) else brush_pixels(step, size)
    require(pixels.shape == size, "pixels", f"of the image's shape, {size}", pixels.shape)
    labels = np.zeros(size, np.int8) if earlier is None else earlier.copy()
    labels[pixels] = 1 if step.positive else -1
    return labels


def brush_pixels(stroke: Stroke, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return the pixels of an image `(H, W)` under a stroke, bool of this shape."""
    shift = 4  # OpenCV draws lines between sixteenths of a pixel, centres being whole numbers
    drawn = np.zeros(size, np.uint8)
    points = np.rint((np.array(stroke.points) - 0.5) * (1 << shift)).astype(np.int32)
    for point in points:
        centre = (int(point[0]), int(point[1]))
        radius = round(stroke.radius * (1 << shift))
        cv2.circle(drawn, centre, radius, 1, cv2.FILLED, cv2.LINE_8, shift)
    if len(points) > 1:
        thickness = max(1, round(2 * stroke.radius))
        cv2.polylines(drawn, [points], False, 1, thickness, cv2.LINE_8, shift)
    return drawn.astype(np.bool_)


def snap(
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
    to it under the brush; there are no pixels where it is outside of the image.

    The image is RGB, uint8, `(H, W, 3)`; the probability that of the object before the stroke.
    """
    size = probability.shape
    under = brush_pixels(stroke, size)
    line = brush_pixels(stroke._replace(radius=0.5), size) & under
    if not line.any():
        return Patch(line, stroke.positive)
    x0, y0, x1, y1 = mask_box(under)
    box = slice(max(0, y0 - 1), y1 + 1), slice(max(0, x0 - 1), x1 + 1)
    pixels = np.zeros(size, np.bool_)
    of_label = probability if stroke.positive else 1 - probability
    pixels[box] = _belonging(under[box], line[box], image[box], of_label[box])
    return Patch(pixels, stroke.positive)


def _belonging(
    under: npt.NDArray[np.bool_],
    line: npt.NDArray[np.bool_],
    image: npt.NDArray[np.uint8],
    probability: npt.NDArray[np.float32],
) -> npt.NDArray[np.bool_]:
    """Return the pixels `(h, w)` of a stroke under a brush, for the probability of its label."""
    # A start without snapping need not wait for these.
    from scipy.ndimage import distance_transform_edt
    from skimage.segmentation import watershed

    sure = np.clip(probability.astype(np.float64), SUREST, 1 - SUREST)
    logit = np.log(sure / (1 - sure))
    # Of several pixels at the same distance, this returns the leftmost, then the uppermost.
    rows, columns = distance_transform_edt(~line, return_distances=False, return_indices=True)
    same = logit >= np.minimum(logit[rows, columns] - STEP, 0)
    other = logit < 0
    gain = logit[under & other]
    if gain.size and np.ptp(gain) <= STEP:  # the line's side of the strongest edges of colours
        lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
        slopes = [cv2.Sobel(lab, cv2.CV_32F, *order) for order in ((1, 0), (0, 1))]
        relief = np.sqrt(np.square(slopes).sum(axis=(0, -1)))
        markers = np.where(line, 1, 2 * (~under & other))
        same = ~other | (watershed(relief, markers, mask=other | line) == 1)
    _, parts = cv2.connectedComponents((under & same | line).astype(np.uint8), connectivity=4)
    return np.isin(parts, np.unique(parts[line]))


def fill_holes(mask: npt.NDArray[np.bool_]) -> Patch:
    """Return a patch of the background that the object, bool `(H, W)`, encloses."""
    background = np.pad(~mask, 1, constant_values=True).astype(np.uint8)
    _, parts = cv2.connectedComponents(background, connectivity=4)
    return Patch(~mask & (parts[1:-1, 1:-1] != parts[0, 0]))


def remove_islands(mask: npt.NDArray[np.bool_], clicks: Sequence[Click]) -> Patch:
    """Return a patch, on the background, of the parts of a mask that nobody clicked on.

    Where no object click is on the mask, bool `(H, W)` and not empty, its largest part stays.
    """
    parts, areas = _parts(mask)
    clicked = {int(parts[int(click.y), int(click.x)]) for click in clicks if click.positive} - {0}
    largest = 1 + int(areas.argmax())
    return Patch(mask & ~np.isin(parts, list(clicked or {largest})), positive=False)


def tidy(
    mask: npt.NDArray[np.bool_], clicks: Sequence[Click], *, holes: bool = True
) -> npt.NDArray[np.bool_]:
    """Return a mask without crumbs and, with `holes`, without tiny holes.

    They are parts and holes of less than `CRUMB` of the mask that nobody clicked on.
    """
    if not mask.any():
        return mask
    x0, y0, x1, y1 = mask_box(mask)
    tidied = np.pad(mask[y0:y1, x0:x1], 1)
    least = CRUMB * int(mask.sum())
    for sign, connectivity in ((True, 8), (False, 4))[: 1 + holes]:
        _, parts, stats, _ = cv2.connectedComponentsWithStats(
            (tidied == sign).astype(np.uint8), connectivity=connectivity
        )
        small = stats[:, cv2.CC_STAT_AREA] < least
        for click in clicks:
            x, y = int(click.x) - x0 + 1, int(click.y) - y0 + 1
            if click.positive == sign and 0 <= y < parts.shape[0] and 0 <= x < parts.shape[1]:
                small[parts[y, x]] = False
        small[[0, parts[0, 0]]] = False  # what is not of this sign, and what is around the object
        tidied = np.where(small[parts], not sign, tidied)
    whole = np.zeros_like(mask)
    whole[y0:y1, x0:x1] = tidied[1:-1, 1:-1]
    return whole


def islands(mask: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield the parts of a mask, the largest first, all bool of shape `(H, W)`."""
    parts, areas = _parts(mask)
    for number in np.argsort(-areas, kind="stable"):
        yield parts == 1 + number


def with_touching(
    pixels: npt.NDArray[np.bool_], others: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return pixels with the parts of others that touch them, all bool of shape `(H, W)`."""
    parts, _ = _parts(pixels | others)
    return np.isin(parts, parts[pixels])


def _parts(mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the number of each pixel's part, from 1 on, and the parts' areas; corners connect."""
    _, parts, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    return parts, stats[1:, cv2.CC_STAT_AREA]
