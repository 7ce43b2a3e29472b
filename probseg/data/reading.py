"""Reading all files of a data set once, to list their objects."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from probseg.data.cache import cached
from probseg.errors import DataError
from probseg.paths import Progress, silent
from probseg.texts import printable

BATCH = 4096
"""Items that are queued at once."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def available_cores() -> int:
    """Return the number of cores that this process may use, which a container may limit."""
    allowed = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def in_threads(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    what: str,
    progress: Progress = silent,
) -> Iterator[_Result]:
    """Apply a function that reads files to all items; the results are in their order."""
    with ThreadPoolExecutor(min(8, available_cores())) as pool:
        for start in range(0, len(items), BATCH):
            results = pool.map(function, items[start : start + BATCH])
            for number, result in enumerate(results, start=start + 1):
                progress(what, number, len(items))
                yield result


NAMED = 10
"""Maximum number of unusable files that one error names."""


class _Failure(NamedTuple):
    """Why an item cannot be used; an exception would hold all that its function had read."""

    message: str


def digest_of(files: Iterable[Path], root: Path) -> str:
    """Summarise names, sizes and times of change of files, as the key of what is kept of them."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            status = file.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
        except FileNotFoundError:
            state = "missing"
        name = os.fsencode(os.path.relpath(file, root))
        digest.update(b"%b\0%b\0" % (name, state.encode()))
    return digest.hexdigest()


def read_all(
    function: Callable[[_Item], _Result], items: Sequence[_Item], what: str
) -> Iterator[_Result]:
    """Apply a function that reads files to all items, in threads, with progress on a terminal.

    What cannot be read is only raised when all have been read, so that one message names several.
    """

    def tried(item: _Item) -> _Result | _Failure:
        try:
            return function(item)
        except DataError as error:
            return _Failure(str(error))

    named: list[str] = []
    count = 0
    for result in in_threads(tried, items, f"reading {what}", _terminal()):
        if isinstance(result, _Failure):
            count += 1
            if len(named) < NAMED:
                named.append(result.message)
        else:
            yield result
    if count:
        lines = [f"{count} entries of {what} cannot be used:", *named] if count > 1 else named
        if count > len(named):
            lines.append(f"and {count - len(named)} more")
        raise DataError("\n".join(lines))


def index_objects(
    name: str,
    root: Path,
    count: Callable[[_Item], npt.NDArray[np.int64]],
    items: Sequence[_Item],
    files: Iterable[Path],
    **options: float | str,
) -> list[tuple[_Item, int, int]]:
    """List the objects of all label maps as (item, number, pixels), reread if a file has changed.

    `count` reads the map of an item and returns the pixels of each object by its number, shape
    `(N,)`. `files` are all that it looks at; on `options`, too, the numbers of pixels depend.
    """

    def build() -> dict[str, npt.NDArray[np.int64]]:
        rows = array("q")
        for i, areas in enumerate(read_all(count, items, name)):
            for number in np.flatnonzero(areas).tolist():
                rows.extend((i, number, int(areas[number])))
        return {"rows": np.array(rows, dtype=np.int64).reshape(-1, 3)}

    index = cached(name, [], {"files": digest_of(files, root), **options}, build, root)
    return [(items[i], number, area) for i, number, area in index["rows"].tolist()]


def plain_name(name: str) -> bool:
    """Whether a listed name can only be a file directly in the folder."""
    fits = 0 < len(name.encode()) < 256 and name.isprintable()
    return fits and bool(name.strip(". ")) and not set(name) & set("/\\:")


def _terminal() -> Progress:
    """Progress as a line on stderr if that is a terminal, written twice a second."""
    if not sys.stderr.isatty():
        return silent
    last = time.monotonic()

    def show(what: str, done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.5 or done == total:
            last = now
            end = "\n" if done == total else ""
            sys.stderr.write(f"\r{printable(what)}: {done} of {total}{end}")
            sys.stderr.flush()

    return show
