"""Whether the values of a mask can be the numbers of objects."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from probseg.errors import DataError
from probseg.types import IGNORE

Labels = npt.NDArray[np.uint8]
Where = npt.NDArray[np.bool_]

MAX_IDS = 200
"""More different values than this in one mask are taken for a grey picture, not object ids."""

MAX_IDS_IF_RESTLESS = 16
"""The same for a mask whose numbers change every few pixels, as no outlines of objects do."""

MAX_SMEARED = 6
"""More different values than this, with fewer pixels than white, are taken for blurred edges."""

UNKNOWN = range(120, 137)
"""Greys that stand for an unknown band in trimaps, as 128 does in GrabCut's."""

NEARLY_WHITE = 240

DARK, BRIGHT = 32, 224
"""Values up to the first are taken for black, and from the second on for white, where a file shows
nothing else."""

STRETCHED = 16
"""Least difference of neighbouring grey values for which even ones are taken for numbers that a
program has stretched to 255, so that people see them."""

BAND = 6
"""Pixels from the next number within which 255 is taken for an ignored band along its contour."""

DWARFED = 8
"""Times the pixels of all numbers that white may have at most away from such bands."""

BETWEEN = 0.6
"""Share of the middle values with a neighbour above and one below that makes them a slope."""


class DoubtError(DataError):
    """The values of a mask may be numbers of objects or shades."""

    def __init__(self, path: Path, doubt: str) -> None:
        ways = "say what masks of the folder mean by --data.masks numbers or black_and_white"
        super().__init__(f"{path}: {doubt}; or {ways}")


COUNTED = 1 << 22
"""Pixels that are counted at once."""

HINT = (
    "threshold it to 0 and 255 if white is the object; if the numbers are meant, save it as a PNG "
    "with a palette of colours"
)


def count_values(labels: Labels) -> npt.NDArray[np.int64]:
    """Count the pixels of each value: labels uint8 of any shape, result of shape `(256,)`."""
    values, counts = labels.ravel(), np.zeros(256, dtype=np.int64)
    for start in range(0, len(values), COUNTED):  # `bincount` makes eight bytes of each
        counts += np.bincount(values[start : start + COUNTED], minlength=256)
    return counts


def object_ids(labels: Labels, path: Path, *, certain: bool = False) -> list[int]:
    """List the numbers of the objects in labels, uint8, shape `(H, W)`, in ascending order.

    Numbers 1 to 254 are objects and 255 is ignored. A mask that holds 0 and 255 only is a plain
    black-and-white mask: 255 is its object.
    """
    areas = count_values(labels)
    ids = [value for value in np.flatnonzero(areas).tolist() if value != 0]
    if ids in ([], [IGNORE]):
        return ids
    changes = (labels[:, 1:] != labels[:, :-1]).sum() / labels.size
    many = len(ids) > MAX_IDS and not certain  # a palette of colours is taken at its word
    if many or (len(ids) > MAX_IDS_IF_RESTLESS and changes > 0.25):
        doubt: str | None = (
            f"{len(ids)} different values: this looks like a grey picture or a mask saved as JPEG, "
            "not like object numbers 1..254 (255 = ignored); save masks as PNG"
        )
    else:
        doubt = None if certain else _doubt(labels, areas, ids)
    if doubt is not None:
        raise DoubtError(path, doubt)
    return [value for value in ids if value != IGNORE]


def _doubt(labels: Labels, areas: npt.NDArray[np.int64], ids: list[int]) -> str | None:
    """Say why values look like shades of a black-and-white mask, whose object is white."""
    if len(ids) == 2 and ids[0] in UNKNOWN and ids[1] == IGNORE:
        return (
            f"holds 0, {ids[0]} and 255, which is GrabCut's convention ({ids[0]} = unknown) and "
            "not that of a plain folder; write 1 for the object and 255 for ignored pixels"
        )
    objects = [value for value in ids if value != IGNORE]
    if not areas[0] and len(ids) == 2 and ids[0] <= DARK and ids[1] >= BRIGHT:
        return (
            f"holds {ids[0]} and {ids[1]} alone and no 0: this looks like a black-and-white mask "
            f"whose black is {ids[0]}; {HINT}"
        )
    white, rest = areas[NEARLY_WHITE:].sum(), areas[1:NEARLY_WHITE].sum()
    blurred = len(ids) > MAX_SMEARED and objects[0] < 64 and objects[-1] >= 192 and white > rest
    if blurred or _slopes(labels, ids):
        return (
            f"{len(ids)} different values, those between black and white on its contours: this "
            "looks like a black-and-white mask with blurred edges, from JPEG or from a smooth "
            f"change of size; {HINT}"
        )
    gaps = np.diff([0, *ids])
    if IGNORE in ids and len(ids) > 2 and STRETCHED <= gaps.min() >= gaps.max() - 1:
        return (
            f"255 would be ignored, but the values {_shown(ids)} are evenly spaced: this looks "
            f"like the numbers of {len(ids)} objects, stretched so that they can be seen; save the "
            f"numbers 1 to {len(ids)}, or threshold it to 0 and 255 if white is the object"
        )
    if IGNORE in ids and (objects[0] >= NEARLY_WHITE or _led_by_white(labels, areas)):
        return (
            f"255 would be ignored, but has {areas[IGNORE]} pixels, and the numbers "
            f"{_shown(objects)} have {areas[1:IGNORE].sum()}: this looks like a black-and-white "
            f"mask with a few other values; {HINT}"
        )
    return None


def _slopes(labels: Labels, ids: list[int]) -> bool:
    """Whether most pixels between the extreme values lie on a slope, as after smoothing.

    Contours of objects that touch are slopes too, but objects have more than contours. A single
    small number may be a class of contours.
    """
    lowest = int(labels.min())
    middle = [value for value in ids[:-1] if value != lowest]
    if len(middle) == 0 or (len(middle) == 1 and not 16 <= middle[0] < NEARLY_WHITE):
        return False
    inside = labels[1:-1, 1:-1]  # a slope may end at the border of the picture
    between = (inside > lowest) & (inside < ids[-1])
    shifted = (labels[2:, 1:-1], labels[:-2, 1:-1], labels[1:-1, 2:], labels[1:-1, :-2])
    above = np.logical_or.reduce([neighbour > inside for neighbour in shifted])
    below = np.logical_or.reduce([neighbour < inside for neighbour in shifted])
    slope = int((between & above & below).sum())
    return slope > 0 and slope >= BETWEEN * int(between.sum())


def _led_by_white(labels: Labels, areas: npt.NDArray[np.int64]) -> bool:
    """Whether white dwarfs the numbers, or the numbers are a rim that parts it from the rest."""
    white, numbered = labels == IGNORE, (labels > 0) & (labels < IGNORE)
    count = int(areas[1:IGNORE].sum())
    if areas[IGNORE] > DWARFED * count:
        square = np.ones((2 * BAND + 1, 2 * BAND + 1), np.uint8)
        far = white & (cv2.dilate(numbered.astype(np.uint8), square) == 0)
        if far.sum() > DWARFED * count:
            return True
    if areas[IGNORE] <= count:
        return False
    background = labels == 0
    bare = _contacts(white, background)
    parted = _contacts(numbered, background) > 0 or not numbered[1:-1, 1:-1].any()
    return parted and bare <= 0.05 * _contacts(white, numbered)


def _contacts(one: Where, other: Where) -> int:
    """Count the pairs of neighbours of which one pixel is in each of two regions."""
    across = (one[:, 1:] & other[:, :-1]).sum() + (one[:, :-1] & other[:, 1:]).sum()
    along = (one[1:] & other[:-1]).sum() + (one[:-1] & other[1:]).sum()
    return int(across + along)


def _shown(values: list[int]) -> str:
    return ", ".join(map(str, values[:6])) + (", ..." if values[6:] else "")
