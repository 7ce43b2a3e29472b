"""Steps of an annotator on one object: clicks, boxes, masks, strokes of a brush and patches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True, eq=False)
class Patch:
    """Pixels that keep their label whatever the model answers, like those of a stroke.

    Args:
        pixels: bool, shape `(H, W)`; the attribute is read-only.
        positive: True on the object, False on the background.
    """

    pixels: npt.NDArray[np.bool_]
    positive: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", read_only(self.pixels))


Step = Click | BoxStep | MaskStep | Stroke | Patch


def painted(
    step: Stroke | Patch, earlier: npt.NDArray[np.int8] | None, size: tuple[int, int]
) -> npt.NDArray[np.int8]:
    """Draw a stroke or a patch over earlier ones.

    Args:
        step: The stroke or patch.
        earlier: Labels of earlier ones, int8, shape `(H, W)`; None without.
        size: `(H, W)` of the image.

    Returns:
        Labels, int8, shape `(H, W)`: 1 object, -1 background, 0 neither.

    Raises:
        ValueError: If a patch is of another size.
    """
    pixels = step.pixels if isinstance(step, Patch) else covered(step, size)
    if pixels.shape != size:
        msg = f"`pixels` must have the shape of the image, {size}, got {pixels.shape}"
        raise ValueError(msg)
    labels = np.zeros(size, np.int8) if earlier is None else earlier.copy()
    labels[pixels] = 1 if step.positive else -1
    return labels


def covered(stroke: Stroke, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return the pixels under a stroke.

    Args:
        stroke: The stroke.
        size: `(H, W)` of the image.

    Returns:
        bool, shape `(H, W)`.
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
    return drawn.astype(np.bool_)


def fill_holes(mask: npt.NDArray[np.bool_]) -> Patch:
    """Return a patch of the background that the object encloses.

    Args:
        mask: The object, bool, shape `(H, W)`.
    """
    background = np.pad(~mask, 1, constant_values=True).astype(np.uint8)
    _, parts = cv2.connectedComponents(background, connectivity=4)
    return Patch(~mask & (parts[1:-1, 1:-1] != parts[0, 0]))


def remove_islands(mask: npt.NDArray[np.bool_], clicks: Sequence[Click]) -> Patch:
    """Return a patch, on the background, of the parts of a mask that nobody clicked on.

    Where no object click is on the mask, its largest part stays.

    Args:
        mask: The object, bool, shape `(H, W)`, with at least one pixel.
        clicks: On the object and on the background.
    """
    parts, areas = _parts(mask)
    clicked = {int(parts[int(click.y), int(click.x)]) for click in clicks if click.positive} - {0}
    largest = 1 + int(areas.argmax())
    return Patch(mask & ~np.isin(parts, list(clicked or {largest})), positive=False)


def islands(mask: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield the parts of a mask, the largest first, each bool of shape `(H, W)`.

    Args:
        mask: The object, bool, shape `(H, W)`.
    """
    parts, areas = _parts(mask)
    for number in np.argsort(-areas, kind="stable"):
        yield parts == 1 + number


def _parts(mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the number of each pixel's part, from 1 on, and the parts' areas; corners connect."""
    _, parts, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    return parts, stats[1:, cv2.CC_STAT_AREA]
