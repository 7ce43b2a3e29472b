"""Reading pickles of strangers: data only, nothing of the file's choosing is ever called."""

from __future__ import annotations

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

    Allowed are None, booleans, numbers, strings, bytes, lists, tuples, dicts, sets, and numpy's
    arrays and scalars of booleans, whole and floating point numbers. A pickle is a program that may
    name any function to be called; here each of the few names that such data needs stands for a
    function of this module that checks what it is given, and any other name is refused.

    Args:
        path: The file.

    Returns:
        What was pickled; arrays are of a subclass of `numpy.ndarray`.

    Raises:
        DataError: If the file is missing or damaged, or holds anything else.
    """
    if not path.is_file():
        msg = f"{path}: no such file; unpack the archive again"
        raise DataError(msg)
    try:
        with path.open("rb") as file:
            loaded: object = _Unpickler(file).load()
    except _RefusedError as error:
        msg = (
            f"{path}: {error}; a pickle may only hold plain data and arrays of numbers, and this "
            "one may be malicious: delete it and get the archive from its authors"
        )
        raise DataError(msg) from error
    except Exception as error:  # damaged pickles raise a dozen different kinds
        msg = f"{path}: cannot be read as a pickle of data ({error!r}); unpack the archive again"
        raise DataError(msg) from error
    return loaded


class _RefusedError(pickle.UnpicklingError):
    """The pickle asks for something that is not data."""


class _Call(NamedTuple):
    """A function that a pickle can call and not change: functions and classes have attributes."""

    function: Callable[..., object]

    def __call__(self, *arguments: object) -> object:
        return self.function(*arguments)


class _Dtype:
    """A dtype of plain numbers, while the pickle is read."""

    def __init__(self, code: str) -> None:
        self.numpy = np.dtype(code)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        order, *parts = state[1:5]
        if any(part is not None for part in parts):
            msg = "holds an array of records"
            raise _RefusedError(msg)
        self.numpy = self.numpy.newbyteorder(">" if order == ">" else "<")


class _Array(np.ndarray[Any, Any]):
    """An array whose state is checked before numpy takes it over."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if not (isinstance(dtype, _Dtype) and isinstance(content, bytes)):
            msg = "holds an array of something else than numbers"
            raise _RefusedError(msg)
        super().__setstate__((1, shape, dtype.numpy, fortran, content))


def _dtype(code: str, *_: object) -> _Dtype:
    if not (isinstance(code, str) and re.fullmatch(r"b1|[iu][1248]|f[248]", code)):
        msg = f"holds an array of the dtype {code!r}"
        raise _RefusedError(msg)
    return _Dtype(code)


def _numbers(content: bytes | bytearray, dtype: _Dtype) -> npt.NDArray[Any]:
    return np.frombuffer(content, dtype.numpy).copy()


_ARRAY = object()
"""Stands for the class of arrays, which is named and never called."""

_NUMPY: dict[tuple[str, str], Callable[..., object]] = {
    ("multiarray", "_reconstruct"): lambda *_: _Array(0),
    ("multiarray", "scalar"): lambda dtype, content: _numbers(content, dtype)[0],
    ("numeric", "_frombuffer"): lambda content, dtype, shape, order: _numbers(
        content, dtype
    ).reshape(shape, order=order),
}
_BUILTINS: dict[str, Callable[..., object]] = {
    "bytes": lambda: b"",  # the only ones that old protocols write in this way
    "bytearray": lambda content=b"": bytearray(bytes(memoryview(content))),
    "set": set,
    "frozenset": frozenset,
    "complex": complex,
}
_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): _Call(_dtype),
    ("_codecs", "encode"): _Call(lambda text, _: text.encode("latin1")),
    **{(f"numpy.{c}.{m}", n): _Call(f) for (m, n), f in _NUMPY.items() for c in ("core", "_core")},
    **{(b, n): _Call(f) for n, f in _BUILTINS.items() for b in ("builtins", "__builtin__")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in its base
        if (module, name) not in _ALLOWED:
            msg = f"asks for {module}.{name}"
            raise _RefusedError(msg)
        return _ALLOWED[module, name]

    def persistent_load(self, pid: object) -> Any:  # noqa: ANN401 - as in its base
        msg = f"asks for the object {pid!r} outside the file"
        raise _RefusedError(msg)
