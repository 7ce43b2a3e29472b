"""Objects as the pixels of a box, so that a small object of a large photograph costs little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.errors import DataError
from probseg.images import MAX_PIXELS

FARTHEST = 10**6  # pixels from the corner of an image beyond which a coordinate is a mistake

# begins and ends of runs that an object may have; each costs 60 bytes while it is written
MAX_CHANGES = 10**7

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


class Region(NamedTuple):
    """The pixels of an object in a box; outside of the box there are none."""

    inside: Mask  # bool, shape `(h, w)`
    x: int  # column of the left border of the box
    y: int  # row of its upper border
    size: tuple[int, int]  # `(H, W)` of the image, which the box does not leave

    @property
    def area(self) -> int:
        """Number of pixels of the object."""
        return int(np.count_nonzero(self.inside))

    @property
    def window(self) -> tuple[slice, slice]:
        """Rows and columns of the box: the index of its pixels in an array of the image."""
        height, width = self.inside.shape
        return slice(self.y, self.y + height), slice(self.x, self.x + width)

    def mask(self) -> Mask:
        """Draw the object: bool, shape `(H, W)`."""
        whole = np.zeros(self.size, dtype=np.bool_)
        whole[self.window] = self.inside
        return whole


def check_size(size: tuple[int, int]) -> None:
    """Raise a `ValueError` for an image `(H, W)` larger than those that are read.

    A number in a small file must not cost gigabytes.
    """
    height, width = size
    if height * width > MAX_PIXELS or max(size) > FARTHEST:
        raise ValueError(
            f"an image of {width} x {height} pixels is too large: at most {MAX_PIXELS / 1e6:.0f} "
            f"million pixels and sides of {FARTHEST} are read"
        )


def as_region(mask: Mask | Region) -> Region:
    """Cut the box of the object out of a mask, bool of shape `(H, W)`; a region is returned."""
    if isinstance(mask, Region):
        return mask
    size = (mask.shape[0], mask.shape[1])
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return Region(np.zeros((0, 0), dtype=np.bool_), 0, 0, size)
    y, x = int(rows[0]), int(columns[0])
    return Region(mask[y : rows[-1] + 1, x : columns[-1] + 1], x, y, size)


def union(regions: Sequence[Region]) -> Region:
    """Return what is in any of some objects, at least one, of one image."""
    if len(regions) == 1:
        return regions[0]
    ends = [(part.y + part.inside.shape[0], part.x + part.inside.shape[1]) for part in regions]
    y, x = min(part.y for part in regions), min(part.x for part in regions)
    bottom, right = np.max(ends, axis=0).tolist()
    inside = np.zeros((bottom - y, right - x), dtype=np.bool_)
    for part, (end_y, end_x) in zip(regions, ends, strict=True):
        inside[part.y - y : end_y - y, part.x - x : end_x - x] |= part.inside
    return Region(inside, x, y, regions[0].size)


def overlap(first: Region, second: Region) -> float:
    """Return the intersection over union of two objects of one image; 1 if both are empty."""
    y, x = max(first.y, second.y), max(first.x, second.x)
    parts = [
        region.inside[max(0, y - region.y) :, max(0, x - region.x) :] for region in (first, second)
    ]
    height, width = (min(sides) for sides in zip(*(part.shape for part in parts), strict=True))
    shared = int(np.count_nonzero(parts[0][:height, :width] & parts[1][:height, :width]))
    union = first.area + second.area - shared
    return shared / union if union else 1.0


def spans(region: Region, by_rows: bool) -> tuple[Numbers, Numbers]:
    """Return where runs of the object begin, and end, in the pixels counted by rows or columns."""
    inside, line, offset = region.inside, region.y, region.x
    length = region.size[1]
    if not by_rows:
        inside, line, offset, length = inside.T, region.x, region.y, region.size[0]
    padded = np.pad(inside, ((0, 0), (1, 1)))
    changes = padded[:, 1:] != padded[:, :-1]
    if np.count_nonzero(changes) > MAX_CHANGES:
        raise DataError(
            f"an object with more than {MAX_CHANGES // 2} runs of pixels is noise; smooth it"
        )
    lines, columns = np.nonzero(changes)  # begins and ends by turns
    positions = (lines + line) * length + columns + offset
    begins, ends = positions[::2], positions[1::2]
    apart = begins[1:] != ends[:-1]  # a run goes on in the next line
    return begins[np.append(True, apart)[: len(begins)]], ends[np.append(apart, True)[: len(ends)]]


def from_spans(begins: Numbers, ends: Numbers, size: tuple[int, int], by_rows: bool) -> Region:
    """Draw runs of pixels, as `spans` returns them; empty ones are none."""
    full = ends > begins
    begins, ends = begins[full], ends[full]
    length = size[1] if by_rows else size[0]
    first = begins // length
    counts = (ends - 1) // length - first + 1
    run = np.repeat(np.arange(len(counts)), counts)
    lines = first[run] + np.arange(len(run)) - (np.cumsum(counts) - counts)[run]
    lefts = np.maximum(begins[run], lines * length) - lines * length
    rights = np.minimum(ends[run], (lines + 1) * length) - lines * length
    return from_lines(lines, lefts, rights, size, by_rows)


def from_lines(
    lines: Numbers, lefts: Numbers, rights: Numbers, size: tuple[int, int], by_rows: bool = True
) -> Region:
    """Draw the union of pieces of lines of an image of `size` `(H, W)`.

    Each piece has the number of its row (or column), its first pixel and the first one after it.
    """
    if not len(lines):
        return Region(np.zeros((0, 0), dtype=np.bool_), 0, 0, size)
    top, left = int(lines.min()), int(lefts.min())
    shape = int(lines.max()) + 1 - top, int(rights.max()) - left
    deepest = int(np.bincount(lines - top).max())
    depth = np.zeros((shape[0], shape[1] + 1), dtype=np.min_scalar_type(-1 - deepest))
    np.add.at(depth, (lines - top, lefts - left), 1)
    np.subtract.at(depth, (lines - top, rights - left), 1)
    inside = np.cumsum(depth, axis=1, out=depth)[:, :-1] > 0
    if by_rows:
        return Region(inside, left, top, size)
    return Region(np.ascontiguousarray(inside.T), top, left, size)
