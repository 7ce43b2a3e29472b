"""Files that are read once: arrays made of them are stored next to them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from probseg.errors import DataError
from probseg.paths import (
    HEARTBEAT,
    LEADS_OUT,
    LONGEST_WAIT,
    Progress,
    cache_dir,
    leads_out,
    silent,
)
from probseg.texts import printable

_logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

FOLDER = ".probseg"  # name of the cache folder next to the data
VERSION = 1  # format of the caches: caches of another format are rebuilt

SAMPLE_BYTES = 4096
SAMPLES = 16  # number and bytes of the samples of a file that its checksum covers


def cached(
    name: str,
    sources: Sequence[Path],
    options: Mapping[str, str | int | float],
    build: Callable[[], Mapping[str, npt.NDArray[Any]]],
    beside: Path,
) -> Arrays:
    """Return arrays that are built once, and mapped into memory from then on.

    They are kept in `$PROBSEG_CACHE` if that is set; else in the folder `.probseg` inside
    `beside` or, where that cannot be written, in `~/.cache/probseg`. They are found again as
    long as name, options and format are the same, and so are time of change and, of files, size of
    all sources. Of several processes that need them at once, one builds and the others wait for it;
    after `LONGEST_WAIT`, and on file systems without locks, each builds, and one result is kept. A
    build that is killed leaves nothing that is taken for a result. Files that are cut off or
    damaged are noticed by their sizes and by checksums of samples of their content, and rebuilt
    with a warning in the log.

    A folder among the sources changes when files in it come or go, not with what is in them. The
    arrays are read-only; processes share their memory, also if they get them by pickling.
    """
    paths = [os.path.relpath(source, beside) for source in sources]  # data may be moved as a whole
    key = hashlib.sha256(json.dumps([name, paths, dict(options)], sort_keys=True).encode())
    states = [source.stat() for source in sources]
    # Folders of one content have sizes that depend on the disk.
    changes = [[0 if stat.S_ISDIR(s.st_mode) else s.st_size, s.st_mtime_ns] for s in states]
    key_values = {"version": VERSION, "sources": changes}
    # Where it may be, the preferred place first.
    places = [] if os.environ.get("PROBSEG_CACHE") else [beside / FOLDER]
    with contextlib.suppress(RuntimeError):  # a user without a home, as in some containers
        places.append(cache_dir() / hashlib.sha256(os.fsencode(beside.resolve())).hexdigest()[:16])
    headers = [place / f"{name}-{key.hexdigest()[:16]}.json" for place in places]
    for header in headers:
        if (stored := _read(header, key_values)[0]) is not None:
            return stored
    built: Mapping[str, npt.NDArray[Any]] | None = None
    reasons = []
    for header in headers:
        with contextlib.ExitStack() as stack:
            try:
                alone = stack.enter_context(_locked(header))
            except OSError as error:
                reasons.append(f"{header.parent}: {error.strerror or error}")
                continue
            stored, damage = _read(header, key_values)  # by the process that held the lock before
            if stored is not None:
                return stored
            if damage is not None:
                _logger.warning("%s; it is rebuilt", damage)
            if built is None:
                built = build()
            try:
                _write(header, key_values, built, alone)
            except OSError as error:
                reasons.append(f"{header.parent}: {error.strerror or error}")
                continue
            stored, damage = _read(header, key_values)
            if stored is not None:
                return stored
            reasons.append(f"{header.parent}: what was written cannot be read again ({damage})")
    raise DataError(
        f"the index {name!r} of {beside} cannot be written ({'; '.join(reasons)}); free some "
        "space, or set PROBSEG_CACHE to a folder that can be written"
    )


# what reading a damaged or strange file raises
DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError)


@contextlib.contextmanager
def _locked(header: Path) -> Iterator[bool]:
    """Wait until no other process works on a cache; false if that takes too long, or without locks.

    The system releases the lock when the process ends.
    """
    file = header.with_suffix(".lock")
    if leads_out(file, header.parent.parent):  # the folder may be of others; it is written to
        raise OSError(LEADS_OUT)
    header.parent.mkdir(parents=True, exist_ok=True)
    file.touch()  # raises where nothing can be written
    lock, waited = FileLock(file), 0.0
    while waited < LONGEST_WAIT and not lock.is_locked:
        try:
            lock.acquire(timeout=HEARTBEAT)
        except Timeout:
            waited += HEARTBEAT
            _logger.warning("another process has worked on %s for %.0f s", header, waited)
        except (OSError, NotImplementedError):  # some network file systems
            break
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            lock.release()


def _read(header: Path, key_values: Mapping[str, Any]) -> tuple[Arrays | None, str | None]:
    """Map the arrays that a header names, if it has the key; else say what is damaged, if any."""
    if leads_out(header, header.parent.parent) or not header.is_file():
        return None, None
    try:
        stated = json.loads(header.read_text(encoding="utf-8"))
        if {entry: stated[entry] for entry in key_values} != key_values:
            return None, None
        if not stated["files"]:
            return None, f"{header} names no files"
        arrays = {}
        for name, state in stated["files"].items():
            path = header.parent / stated["folder"] / f"{name}.npy"
            if leads_out(path, header.parent) or (path.exists() and not path.is_file()):
                return None, f"{path} is not a file of the folder"
            if _state(path) != state:
                return None, f"{path} is damaged"
            arrays[name] = _mapped(path)
    except (FileNotFoundError, NotADirectoryError):
        return None, f"files that {header} names are missing" if header.is_file() else None
    except DAMAGED as error:
        return None, f"{header} cannot be read ({error!r})"
    return arrays, None


class _Mapped(np.ndarray[Any, Any]):
    """A whole mapped file: copied or sent to another process, it is the same file again.

    Parts of it and results of computing with it have no path, and are copied like any array.
    """

    path: Path | None = None

    def __deepcopy__(self, memo: dict[int, Any] | None, /) -> _Mapped:
        return super().__deepcopy__(memo) if self.path is None else self

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> str | tuple[Any, ...]:
        return super().__reduce_ex__(protocol) if self.path is None else (_mapped, (self.path,))


def _mapped(path: Path) -> npt.NDArray[Any]:
    # Parts of `numpy.memmap` are made several times as slowly.
    array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)).view(_Mapped)
    array.path = path
    return array


def _write(
    header: Path, key_values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], alone: bool
) -> None:
    """Write arrays into a new folder, and then the header that names it.

    Without a lock another process may have done so meanwhile: then nothing is left of this one.
    """
    if alone:  # what a killed process left, or the header no longer names
        header.unlink(missing_ok=True)
        for old in header.parent.glob(f"{header.stem}-*"):
            shutil.rmtree(old, ignore_errors=True)  # such as files that others have open
    folder = Path(tempfile.mkdtemp(prefix=f"{header.stem}-", dir=header.parent))
    try:
        folder.chmod(0o755)  # others may read what one has built
        files = {}
        for name, array in arrays.items():
            path = folder / f"{name}.npy"
            with path.open("wb") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
                _to_disk(file)
            files[name] = _state(path)
        draft = folder / "header.json"
        with draft.open("wb") as file:
            entries = {**key_values, "folder": folder.name, "files": files}
            file.write(json.dumps(entries).encode())
            _to_disk(file)
        if not alone and _read(header, key_values)[0] is not None:
            shutil.rmtree(folder, ignore_errors=True)
            return
        draft.replace(header)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _state(path: Path) -> list[int]:
    """Size of a file, and a checksum of its beginning, its end and samples between them."""
    size = path.stat().st_size
    last = max(0, size - SAMPLE_BYTES)
    checksum = 0
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(number * last // (SAMPLES - 1))
            checksum = zlib.crc32(file.read(SAMPLE_BYTES), checksum)
    return [size, checksum]


BATCH = 4096  # items that are queued at once

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


NAMED = 10  # maximum number of unusable files that one error names


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
