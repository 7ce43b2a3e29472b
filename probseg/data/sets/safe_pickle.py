"""Pickles from untrusted sources: plain data and arrays of numbers alone."""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.errors import DataError


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
