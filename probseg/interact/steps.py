"""Steps of an annotator on one object: clicks, boxes, masks and strokes of a brush."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from probseg.clicks.boxes import Box
from probseg.types import Click, read_only


class BoxStep(NamedTuple):
    """A box around the object, in place of an earlier one.

    Args:
        box: `(x0, y0, x1, y1)` in whole pixels, half-open.
    """

    box: Box


@dataclass(frozen=True, eq=False)
class MaskStep:
    """A mask to begin with; earlier steps no longer count.

    Args:
        probability: Of the object, float32 in [0, 1], shape `(H, W)`; the attribute is read-only.
    """

    probability: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", read_only(self.probability))


class Stroke(NamedTuple):
    """A stroke of a round brush, whose pixels keep their label whatever the model answers.

    Args:
        points: Corners `(x, y)` of the stroke, continuous: (0, 0) is the upper left corner of the
            first pixel. They may lie outside of the image.
        radius: Of the brush, in pixels.
        positive: True on the object, False on the background.
    """

    points: tuple[tuple[float, float], ...]
    radius: float
    positive: bool = True


Step = Click | BoxStep | MaskStep | Stroke


def painted(
    stroke: Stroke, earlier: npt.NDArray[np.int8] | None, size: tuple[int, int]
) -> npt.NDArray[np.int8]:
    """Draw a stroke over earlier ones.

    Args:
        stroke: The stroke.
        earlier: Labels of earlier strokes, int8, shape `(H, W)`; None without.
        size: `(H, W)` of the image.

    Returns:
        Labels, int8, shape `(H, W)`: 1 object, -1 background, 0 no stroke.
    """
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
    labels = np.zeros(size, np.int8) if earlier is None else earlier.copy()
    labels[drawn == 1] = 1 if stroke.positive else -1
    return labels
