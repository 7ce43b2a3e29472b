"""Reading pickles of strangers: data only, nothing of the file's choosing is ever called."""

from __future__ import annotations

import math
import pickle
import pickletools
import re
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.errors import DataError

MAX_KEY = 100
"""Most parts of a key or of a member of a set, those of tuples in tuples included."""


def load_data(path: Path) -> object:
    """Read a pickle that holds data and nothing else.

    Allowed are None, booleans, numbers, strings, bytes, lists, tuples, dicts, sets, and numpy's
    arrays and scalars of booleans, whole and floating point numbers. A pickle is a program that may
    name any function to be called; here each of the few names that such data needs stands for a
    function of this module that checks what it is given, and any other name is refused. The program
    is looked through before it runs: it may not number its objects beyond its own length, as there
    is memory for every number, nor have keys of more than `MAX_KEY` parts: tuples that hold others
    twice double the time that a key takes, without getting long.

    Args:
        path: The file.

    Returns:
        What was pickled; arrays are of a subclass of `numpy.ndarray`.

    Raises:
        DataError: If the file is missing or damaged, or holds anything else.
        MemoryError: If there is too little memory for what it holds.
    """
    if not path.is_file():
        msg = f"{path}: no such file; unpack the archive again"
        raise DataError(msg)
    try:
        content = path.read_bytes()
        _look_through(content)
        loaded: object = _Unpickler(BytesIO(content)).load()
    except _RefusedError as error:
        msg = (
            f"{path}: {error}; a pickle may only hold plain data and arrays of numbers, and this "
            "one may be malicious: delete it and get the archive from its authors"
        )
        raise DataError(msg) from error
    except MemoryError:  # says nothing about the file
        raise
    except Exception as error:  # damaged pickles raise a dozen different kinds
        msg = f"{path}: cannot be read as a pickle of data ({error!r}); unpack the archive again"
        raise DataError(msg) from error
    return loaded


class _RefusedError(pickle.UnpicklingError):
    """The pickle asks for something that is not data."""


_TO_MARK = {op.name for op in pickletools.opcodes if pickletools.markobject in op.stack_before}
_TAKEN = {
    op.name: [entry.name for entry in op.stack_before].index("mark")
    if op.name in _TO_MARK
    else len(op.stack_before)
    for op in pickletools.opcodes
}
"""Entries of the stack that an operation takes, below the mark if it takes all above it."""

_GIVEN = {op.name: bool(op.stack_after) for op in pickletools.opcodes}
_FILLED = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}  # and left there
_HASHED = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"}


def _look_through(content: bytes) -> None:
    """Refuse a program that would take far more memory or time than its length, without running it.

    The stack and the memo are followed with numbers in the place of objects: the parts that hashing
    an object looks at, each as often as it is looked at. Lists, dicts and arrays have no hash.
    """
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    program: Iterable[tuple[pickletools.OpcodeInfo, Any, object]] = pickletools.genops(content)
    for opcode, argument, _ in program:
        name = opcode.name
        if name in ("PUT", "BINPUT", "LONG_BINPUT"):
            if argument > len(content):
                msg = f"is {len(content)} bytes long and numbers an object {argument}"
                raise _RefusedError(msg)
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "POP" and marks and marks[-1] == len(stack):
            marks.pop()
        else:
            top = marks.pop() if name in _TO_MARK else len(stack)
            kept = top - _TAKEN[name] + (name in _FILLED)
            if kept < 0:
                msg = f"{name} finds too little on the stack"
                raise pickle.UnpicklingError(msg)
            parts = stack[kept:]
            del stack[kept:]
            if name in ("SETITEM", "SETITEMS", "DICT"):
                _check_keys(parts[::2])
            elif name in ("ADDITEMS", "FROZENSET"):
                _check_keys(parts)
            if _GIVEN[name] and name not in _FILLED:
                stack.append(1 + sum(parts) if name in _HASHED else 1)


def _check_keys(parts: Iterable[int]) -> None:
    if max(parts, default=0) > MAX_KEY:
        msg = f"has a key of more than {MAX_KEY} parts"
        raise _RefusedError(msg)


def _set_of(kind: type[set[object]] | type[frozenset[object]], members: object) -> object:
    """Make a set of a list, as old protocols do, of what is simple or a tuple of what is."""
    if not isinstance(members, list):
        msg = "holds a set that is not made of a list"
        raise _RefusedError(msg)
    keys = [member if isinstance(member, tuple) else (member,) for member in members]
    _check_keys(map(len, keys))
    if any(isinstance(part, tuple | frozenset) for key in keys for part in key):
        msg = "holds a set of sets, or of tuples in tuples"
        raise _RefusedError(msg)
    return kind(members)


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
        counted = isinstance(shape, tuple) and all(isinstance(size, int) for size in shape)
        if not counted or math.prod(shape) * dtype.numpy.itemsize != len(content):
            msg = f"holds an array whose {len(content)} bytes are not those of its shape"
            raise _RefusedError(msg)
        super().__setstate__((1, shape, dtype.numpy, fortran, content))


def _dtype(code: str, *_: object) -> _Dtype:
    if not (isinstance(code, str) and re.fullmatch(r"b1|[iu][1248]|f[248]", code)):
        told = repr(code) if isinstance(code, str) else type(code).__name__
        msg = f"holds an array of the dtype {told}"
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
    "set": partial(_set_of, set),
    "frozenset": partial(_set_of, frozenset),
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
        msg = "asks for an object outside the file"
        raise _RefusedError(msg)
