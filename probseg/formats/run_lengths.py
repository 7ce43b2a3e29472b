"""Masks as run lengths in COCO format, in column-major order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from probseg.formats.coco import size_of
from probseg.formats.regions import Mask, Region, as_region, check_size, from_spans, spans


def parse_runs(text: bytes) -> npt.NDArray[np.int64]:
    """Read compressed run lengths of pycocotools: int64, shape `(R,)`, background first.

    Each number has groups of five bits, lowest first, in characters from "0" on whose sixth bit
    says that another one follows; from the fourth on, numbers are differences to the last but one.
    pycocotools itself accepts any text and leaves pixels without a run undefined.
    """
    codes = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - 48
    if codes.size == 0:
        return codes
    ends = np.flatnonzero(codes < 32)
    starts = np.append(0, ends[:-1] + 1)
    lengths = np.diff(ends, prepend=-1)
    whole = codes.min() >= 0 and codes.max() < 64 and codes[-1] < 32
    if not whole or lengths.max() > 8:
        raise ValueError(
            f"compressed run lengths are cut off or have foreign characters: {text[:20]!r}"
        )
    shifts = 5 * (np.arange(codes.size) - np.repeat(starts, lengths))
    numbers = np.add.reduceat((codes & 31) << shifts, starts)
    numbers -= np.where(codes[ends] & 16, 1 << 5 * lengths, 0)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def check_runs(runs: npt.NDArray[np.int64], size: tuple[int, int]) -> None:
    """Raise a `ValueError` unless the runs fill a mask of a size that is not too large."""
    check_size(size)
    pixels = size[0] * size[1]
    if runs.min(initial=0) < 0 or runs.max(initial=0) > pixels or runs.sum() != pixels:
        raise ValueError(
            f"{len(runs)} run lengths fill {runs.sum()} pixels, the mask has "
            f"{size[0]} x {size[1]} (height x width)"
        )


def draw_runs(runs: npt.NDArray[np.int64], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Draw run lengths, background first, as a mask: uint8, shape `(H, W)`, 1 on the object."""
    check_runs(runs, size)
    values = (np.arange(len(runs)) % 2).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(values, runs).reshape(size[::-1]).T)


def runs_of(mask: Mask | Region) -> npt.NDArray[np.int64]:
    """Return the run lengths of a mask or region, as `draw_runs` takes them."""
    region = as_region(mask)
    begins, ends = spans(region, by_rows=False)
    pixels = region.size[0] * region.size[1]
    borders = np.stack([begins, ends], axis=1).ravel()
    if not len(borders) or borders[-1] < pixels:
        borders = np.append(borders, pixels)
    return np.diff(borders, prepend=0)


def region_of(runs: npt.NDArray[np.int64], size: tuple[int, int]) -> Region:
    """Draw run lengths in the box of their object."""
    check_runs(runs, size)
    borders = np.cumsum(runs)
    ends = borders[1::2]
    return from_spans(borders[::2][: len(ends)], ends, size, by_rows=False)


def encode(mask: Mask | Region, compressed: bool = True) -> dict[str, Any]:
    """Return a mask or region as the `segmentation` of an annotation of COCO, ready for JSON.

    It is `{"size": [H, W], "counts": ...}`; compressed counts are text, as pycocotools writes it.
    """
    region = as_region(mask)
    size = list(region.size)
    plain = {"size": size, "counts": runs_of(region).tolist()}
    if not compressed:
        return plain
    counts: bytes = coco_mask.frPyObjects(plain, *size)["counts"]
    return {"size": size, "counts": counts.decode("ascii")}


def stated_size(rle: Mapping[str, Any]) -> tuple[int, int]:
    """Return `(H, W)` of the run lengths of an annotation of COCO."""
    return size_of(dict(zip(("height", "width"), rle["size"], strict=True)))


def decode(rle: Mapping[str, Any]) -> Mask:
    """Draw the run lengths of an annotation of COCO, compressed or not: bool, shape `(H, W)`."""
    size = stated_size(rle)
    counts = rle["counts"]
    if isinstance(counts, str):
        counts = counts.encode("ascii", errors="replace")
    runs = parse_runs(counts) if isinstance(counts, bytes) else np.array(counts, dtype=np.int64)
    return draw_runs(runs, size).astype(np.bool_)
