"""MATLAB files and pickles of strangers: plain data and arrays of numbers, of bounded size."""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.io import loadmat

from probseg.errors import DataError

# bytes that all variables of a file may unpack to; label maps of photographs have few MB
MAX_BYTES = 32 * 10**6
HEADER = 128  # bytes before the first element of a file of version 5
# matrices that a file may have, also in cells and structs; label maps have some twenty
MAX_MATRICES = 1000
# types of elements; scipy looks others up behind the end of an array
TYPES = frozenset({*range(1, 8), 9, *range(12, 19)})
# types of the elements that hold others; the second are compressed by zlib
MATRIX, COMPRESSED = 14, 15
# classes up to the first are cells, structs and objects, whose elements are matrices
LAST_OF_CELLS, SPARSE = 3, 5
COMPLEX = 1 << 11  # flag of matrices with imaginary parts


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


def load_data(path: Path) -> object:
    """Read a pickle that holds data and nothing else.

    Allowed are None, booleans, numbers, strings, bytes, lists, tuples, dicts, and NumPy's arrays
    and scalars of booleans, integers and floating point numbers. A pickle is a program that may
    name any function to be called; here each of the few names of such data stands for a function of
    this module that checks its arguments, and any other name is refused.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; unpack the archive again")
    try:
        loaded: object = _Unpickler(path.read_bytes()).load()
    except _RefusedError as error:
        raise DataError(
            f"{path}: {error}; a pickle may only hold plain data and arrays of numbers, and this "
            "one may be malicious: delete it and get the archive from its authors"
        ) from error
    except MemoryError:  # says nothing about the file
        raise
    except Exception as error:  # damaged pickles raise a dozen different kinds
        raise DataError(
            f"{path}: cannot be read as a pickle of data ({error!r}); unpack the archive again"
        ) from error
    return loaded


class _RefusedError(pickle.UnpicklingError):
    """The pickle asks for something other than data."""


class _Dtype:
    """A dtype of plain numbers, whose pickled state may change its byte order only.

    NumPy's own dtypes take over flags from their state, by which numbers become pointers.
    """

    def __init__(self, code: object, *_: object) -> None:
        if not (isinstance(code, str) and re.fullmatch(r"b1|[iu][1248]|f[248]", code)):
            raise _RefusedError(
                f"holds an array of the dtype {code if isinstance(code, str) else type(code)}"
            )
        self.numpy = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.numpy = self.numpy.newbyteorder(">" if state[1] == ">" else "<")


class _Budget:
    """Bytes that a pickle may still make: it can ask for those that it has again and again."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, content: bytes | bytearray) -> bytes | bytearray:
        """Return bytes that are about to be copied."""
        self.left -= len(content)
        if self.left < 0:
            raise _RefusedError("makes more bytes than it has")
        return content


class _Array(np.ndarray[Any, Any]):
    """An array that checks its pickled state before NumPy takes it over."""

    budget = _Budget(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if not (isinstance(dtype, _Dtype) and isinstance(content, bytes)):
            raise _RefusedError("holds an array of something other than numbers")
        counted = all(isinstance(size, int) and size >= 0 for size in shape)
        if not counted or math.prod(shape) * dtype.numpy.itemsize != len(content):
            raise _RefusedError(f"holds an array of shape {shape!r:.100} with {len(content)} bytes")
        self.budget.take(content)
        super().__setstate__((1, shape, dtype.numpy, fortran, content))


class _Call(NamedTuple):
    """A function that a pickle can call but not modify, unlike plain functions and classes."""

    function: Callable[..., object]

    def __call__(self, *arguments: object) -> object:
        return self.function(*arguments)


def _allowed(budget: _Budget) -> dict[str, object]:
    """Return what the few names of data stand for."""

    def array(*_: object) -> _Array:
        made = _Array(0)
        made.budget = budget
        return made

    def numbers(content: bytes | bytearray, dtype: _Dtype) -> npt.NDArray[Any]:
        return np.frombuffer(budget.take(content), dtype.numpy).copy()

    arrays: dict[str, Callable[..., object]] = {
        "multiarray._reconstruct": array,
        "multiarray.scalar": lambda dtype, content: numbers(content, dtype)[0],
        "numeric._frombuffer": lambda content, dtype, shape, order: numbers(content, dtype).reshape(
            shape, order=order
        ),
    }
    return {
        "numpy.ndarray": None,  # named, never called
        "numpy.dtype": _Call(_Dtype),
        # bytes of old protocols
        "_codecs.encode": _Call(lambda text, _: budget.take(text.encode("latin1"))),
        "__builtin__.bytes": _Call(lambda: b""),
        **{f"numpy.{core}.{n}": _Call(f) for n, f in arrays.items() for core in ("core", "_core")},
    }


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))  # which reads no more than there is
        self.allowed = _allowed(_Budget(2 * len(content)))  # text, and the numbers of it

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in its base
        full = f"{module}.{name}"
        if "." in name or full not in self.allowed:
            raise _RefusedError(f"asks for {full}")
        return self.allowed[full]

    def persistent_load(self, pid: object) -> Any:  # noqa: ANN401 - as in its base
        raise _RefusedError("asks for an object outside the file")
