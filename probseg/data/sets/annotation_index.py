"""Annotations of a JSON file in COCO format, as a few flat arrays."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.formats.polygons import coco_runs, from_coco
from probseg.formats.regions import Region
from probseg.formats.run_lengths import draw_runs, parse_runs, region_of


class AnnotationIndex(NamedTuple):
    """The annotations that have an outline, and all images; N, M, C of objects, images, categories.

    Lists of lists lie end to end, and an array of starts says where each begins, and the last ends.

    Args:
        ids: int64, shape `(N,)`.
        image_ids: int64, shape `(N,)`: image of each object, as the file has it.
        owners: int32, shape `(N,)`: its place in the list of images, -1 if it is not there.
        kinds: int32, shape `(N,)`: place of its category in the list of categories, or -1.
        areas: Pixels, float64, shape `(N,)`.
        crowds: bool, shape `(N,)`.
        scores: Of predictions, float64, shape `(N,)`; NaN where there is none.
        coordinates: x, y, x, y, ... of all polygons. float32 if they have two decimals at most, see
            `exact`, or else float64.
        polygons: Starts of the polygons in `coordinates`, int64.
        objects: Starts of the objects in `polygons`, int64, shape `(N + 1,)`.
        run_objects: The objects that have run lengths and no polygon, int64, shape `(R,)`.
        run_sizes: Heights and widths of their masks, int64, shape `(R, 2)`.
        run_starts: Starts of their compressed run lengths in `run_text`, int64, `(R + 1,)`.
        run_text: uint8.
        image_sizes: Heights and widths, int64, shape `(M, 2)`.
        image_starts: Starts of the images' paths in `image_text`, int64, shape `(M + 1,)`.
        image_text: UTF-8, uint8.
        category_starts: Starts of the categories' names in `category_text`, `(C + 1,)`.
        category_text: UTF-8, uint8.
        left_counts: Numbers of things that the index does not keep, int64, shape `(L,)`.
        left_starts: Starts of their descriptions in `left_text`, int64, shape `(L + 1,)`.
        left_text: UTF-8, uint8.
    """

    ids: npt.NDArray[np.int64]
    image_ids: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.int32]
    areas: npt.NDArray[np.float64]
    crowds: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float64]
    coordinates: npt.NDArray[np.float32] | npt.NDArray[np.float64]
    polygons: npt.NDArray[np.int64]
    objects: npt.NDArray[np.int64]
    run_objects: npt.NDArray[np.int64]
    run_sizes: npt.NDArray[np.int64]
    run_starts: npt.NDArray[np.int64]
    run_text: npt.NDArray[np.uint8]
    image_sizes: npt.NDArray[np.int64]
    image_starts: npt.NDArray[np.int64]
    image_text: npt.NDArray[np.uint8]
    category_starts: npt.NDArray[np.int64]
    category_text: npt.NDArray[np.uint8]
    left_counts: npt.NDArray[np.int64]
    left_starts: npt.NDArray[np.int64]
    left_text: npt.NDArray[np.uint8]

    def file(self, image: int) -> str:
        """Return the path of an image inside the folder of the images."""
        return _unpacked(self.image_starts, self.image_text, image)

    def categories(self) -> list[str]:
        """List the names of the categories."""
        count = len(self.category_starts) - 1
        return [_unpacked(self.category_starts, self.category_text, i) for i in range(count)]

    def left_out(self) -> dict[str, int]:
        """Return how many things of the file the index does not keep, by what they are."""
        counts = self.left_counts.tolist()
        return {
            _unpacked(self.left_starts, self.left_text, i): counts[i] for i in range(len(counts))
        }

    def mask(self, index: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Draw an object of an image of `size`: uint8, shape `(H, W)`, 1 on the object."""
        if polygons := self._outlines(index):
            return draw_runs(coco_runs(polygons, size), size)
        return draw_runs(self._runs(index, size), size)

    def region(self, index: int, size: tuple[int, int]) -> Region:
        """Draw an object as `mask` does, but in its box."""
        if polygons := self._outlines(index):
            return from_coco(polygons, size)
        return region_of(self._runs(index, size), size)

    def _outlines(self, index: int) -> list[npt.NDArray[np.float64]]:
        """Return the polygons of an object; none if it has run lengths."""
        corners = self.polygons[self.objects[index] : self.objects[index + 1] + 1]
        return [exact(self.coordinates[start:end]) for start, end in pairwise(corners)]

    def _runs(self, index: int, size: tuple[int, int]) -> npt.NDArray[np.int64]:
        """Return the run lengths of an object without polygons."""
        place = int(np.searchsorted(self.run_objects, index))
        height, width = self.run_sizes[place].tolist()
        if (height, width) != size:
            msg = (
                f"its run lengths are for {width} x {height} pixels, its image has "
                f"{size[1]} x {size[0]}"
            )
            raise ValueError(msg)
        start, end = self.run_starts[place : place + 2]
        return parse_runs(self.run_text[start:end].tobytes())


def exact(
    coordinates: npt.NDArray[np.float32] | npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Restore the two decimals of coordinates stored in 32 bits.

    Without that, pixels on the edge of a polygon would come out otherwise.
    """
    numbers = coordinates.astype(np.float64)
    return numbers.round(2) if coordinates.dtype == np.float32 else numbers


def _unpacked(starts: npt.NDArray[np.int64], text: npt.NDArray[np.uint8], index: int) -> str:
    return text[starts[index] : starts[index + 1]].tobytes().decode()
