"""MATLAB files, with a limit on the size of decompressed variables."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from probseg.errors import DataError

MAX_BYTES = 32 * 10**6
"""Bytes that all variables of a file may unpack to; label maps of photographs have few MB."""

HEADER = 128
"""Bytes before the first element of a file of version 5."""

MAX_MATRICES = 1000
"""Matrices that a file may have, also in cells and structs; label maps have some twenty."""

TYPES = frozenset({*range(1, 8), 9, *range(12, 19)})
"""Types of elements; scipy looks others up behind the end of an array."""

MATRIX, COMPRESSED = 14, 15
"""Types of the elements that hold others; the second are compressed by zlib."""

LAST_OF_CELLS, SPARSE = 3, 5
"""Classes up to the first are cells, structs and objects, whose elements are matrices."""

COMPLEX = 1 << 11
"""Flag of matrices with imaginary parts."""


def load_mat(path: Path, name: str) -> Any:  # noqa: ANN401 (whatever the variable is)
    """Return a variable of a MATLAB file of version 4 or 5."""
    try:
        counts = [_count(content, place, order) for content, place, order in _elements(path)]
        if len(counts) > MAX_MATRICES or max(counts, default=0) > MAX_MATRICES:
            raise ValueError(f"has more than {MAX_MATRICES} matrices or cells")
    except ValueError as error:
        raise DataError(
            f"{path}: {error}, which no label map needs; replace or remove the file"
        ) from error
    return load_known_mat(path, name)


def load_known_mat(path: Path, name: str) -> Any:  # noqa: ANN401 (whatever the variable is)
    """Return a variable of a file that `load_mat` has read before, without unpacking it twice."""
    return loadmat(path, variable_names=[name])[name]


@contextmanager
def broken_as_data_error(path: Path, expected: str) -> Iterator[None]:
    """Raise whatever broken files raise as a `DataError`."""
    try:
        yield
    except (DataError, MemoryError):  # the second says nothing about the file
        raise
    except Exception as error:  # broken files raise a dozen different kinds
        raise DataError(
            f"{path}: cannot be read as {expected} ({error!r}); unpack the archive again"
        ) from error


def _elements(path: Path) -> Iterator[tuple[bytes, int, str]]:
    """Yield bytes, where an element begins in them, and their order."""
    content = path.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(content[HEADER - 2 : HEADER])
    left, place = MAX_BYTES, HEADER
    while order is not None and place + 8 <= len(content):  # version 4 has neither
        kind, size = struct.unpack_from(f"{order}II", content, place)
        if kind == COMPRESSED:
            stream = zlib.decompressobj()
            unpacked = stream.decompress(content[place + 8 : place + 8 + size], left + 1)
            left -= len(unpacked)
            if left < 0:
                raise ValueError(f"unpacks to more than {MAX_BYTES / 1e6:.0f} MB")
            yield unpacked, 0, order
        else:
            yield content, place, order  # scipy reads on where the size of an element is too small
        place += 8 + size


def _count(content: bytes, place: int, order: str) -> int:
    """Count the matrices and their cells from a place on as scipy does, one after the other.

    It goes down a level for each matrix inside of a cell, without a limit, and makes as many cells
    as a matrix says that it has. It crashes where a matrix stands in place of numbers.
    """
    count = numbers = 0  # elements of the last matrix that hold sizes, a name or numbers
    while place + 8 <= len(content) and count <= MAX_MATRICES:
        kind, size = struct.unpack_from(f"{order}II", content, place)
        place += 8
        if (kind & 0xFFFF if kind >> 16 else kind) not in TYPES:
            raise struct.error(f"has an element of the unknown type {kind}")
        if kind == MATRIX:
            if numbers > 0:
                raise struct.error("has a matrix in place of numbers")
            count += 1
            if size and place + 24 <= len(content):  # tag and flags, 16 bytes, and the dimensions
                (flags,) = struct.unpack_from(f"{order}I", content, place + 8)
                kind, size = struct.unpack_from(f"{order}II", content, place + 16)
                place += 16
                if flags & COMPLEX:
                    raise struct.error("has complex numbers")
                if flags & 255 > LAST_OF_CELLS:
                    numbers = 5 if flags & 255 == SPARSE else 3
                start, size = (place + 4, kind >> 16) if kind >> 16 else (place + 8, size)
                sides = content[start : start + size]
                if flags & 255 <= LAST_OF_CELLS:
                    sides = sides[: len(sides) // 4 * 4]
                    count += abs(math.prod(np.frombuffer(sides, f"{order}i4").tolist()))
        else:
            numbers -= 1
            if not kind >> 16:  # a small element has its data in the tag
                place += size + -size % 8
    return count
