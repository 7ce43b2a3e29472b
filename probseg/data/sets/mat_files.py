"""MATLAB files, with a limit on the size of decompressed variables."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scipy.io import loadmat

from probseg.errors import DataError
from probseg.transfer import BLOCK

MAX_BYTES = 256 * 10**6
"""Most bytes that all variables of a file may unpack to; label maps of photographs have few MB."""

HEADER = 128
"""Bytes before the first element of a file of version 5."""

COMPRESSED = 15
"""Type of the elements that hold others, compressed by zlib."""


def load_mat(path: Path, name: str) -> Any:  # noqa: ANN401 (whatever the variable is)
    """Return a variable of a MATLAB file of version 4 or 5.

    Args:
        path: The file.
        name: The variable.

    Raises:
        DataError: If the file unpacks to more than `MAX_BYTES`.
        Exception: Whatever `scipy.io.loadmat` raises if the file is damaged or of another kind, and
            a KeyError if it has no such variable.
    """
    unpacked = 0
    for size in _unpacked(path):
        unpacked += size
        if unpacked > MAX_BYTES:
            msg = (
                f"{path}: unpacks to more than {MAX_BYTES / 1e6:.0f} MB, which no label map needs; "
                "replace or remove the file"
            )
            raise DataError(msg)
    return load_known_mat(path, name)


def load_known_mat(path: Path, name: str) -> Any:  # noqa: ANN401 (whatever the variable is)
    """Return a variable of a file that `load_mat` has read before, without unpacking it twice.

    Args:
        path: The file.
        name: The variable.

    Raises:
        Exception: As `load_mat`.
    """
    return loadmat(path, variable_names=[name])[name]


@contextmanager
def broken_as_data_error(path: Path, expected: str) -> Iterator[None]:
    """Raise whatever broken files raise as a `DataError`.

    Args:
        path: The file that is read inside the context.
        expected: What it should be.
    """
    try:
        yield
    except (DataError, MemoryError):  # the second says nothing about the file
        raise
    except Exception as error:  # broken files raise a dozen different kinds
        msg = f"{path}: cannot be read as {expected} ({error!r}); unpack the archive again"
        raise DataError(msg) from error


def _unpacked(path: Path) -> Iterator[int]:
    """Yield the sizes of what the compressed elements hold, block by block, in bytes."""
    content = path.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(content[HEADER - 2 : HEADER])
    if order is None:  # version 4, which has no compression, or no MATLAB file
        return
    place = HEADER
    while place + 8 <= len(content):
        kind, size = struct.unpack_from(f"{order}II", content, place)
        if kind == COMPRESSED:
            stream = zlib.decompressobj()
            block = stream.decompress(content[place + 8 : place + 8 + size], BLOCK)
            while block:
                yield len(block)
                block = stream.decompress(stream.unconsumed_tail, BLOCK)
        place += 8 + size
