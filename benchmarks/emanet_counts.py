"""The pixels of each class that a row finds in each block of frames, as one small file."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.errors import DataError
from probseg.paths import replacing
from probseg.semantic import CamVid

Integers = npt.NDArray[np.int64]

NAME = "emanet_blocks.csv.gz"

Key = tuple[str, str, int, str]
"""Training, row, seed and block."""

HEADER = ["training", "row", "seed", "block", "frames"]
HEADER += [f"{part} {of}" for part in ("found", "union") for of in CamVid.classes]


class Block(NamedTuple):
    """Counts of one row in one block.

    Args:
        frames: Number of frames.
        found: Pixels of each class that are predicted as this class, shape `(C,)`.
        union: Pixels that have the class or are predicted as it, shape `(C,)`.
    """

    frames: int
    found: Integers
    union: Integers


def write_counts(folder: Path, counts: Mapping[Key, Block]) -> None:
    """Write the counts; the same counts give the same bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for key, block in sorted(counts.items()):
        writer.writerow([*key, block.frames, *block.found, *block.union])
    with replacing(folder / NAME) as draft:
        draft.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def read_counts(folder: Path) -> dict[Key, Block]:
    """Read the counts; there are none without the file.

    Raises:
        DataError: If the file has other columns.
    """
    path = folder / NAME
    if not path.is_file():
        return {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    if header != HEADER:
        msg = f"{path}: expected the columns {HEADER}, got {header}; restore the file"
        raise DataError(msg)
    counts = {}
    for training, row, seed, block, *numbers in lines:
        frames, *pixels = map(int, numbers)
        found, union = np.array(pixels).reshape(2, -1)
        counts[training, row, int(seed), block] = Block(frames, found, union)
    return counts
