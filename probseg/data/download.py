"""Downloads that go on where they were interrupted, and checksums."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import probseg
from probseg.errors import ChecksumError, DownloadError

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how many bytes are done, and of how many (None: unknown)."""

ATTEMPTS = 5
"""Attempts after one that failed, all of them without a new byte, before giving up."""

TIMEOUT = 60.0
"""Seconds that a server may be silent."""

BLOCK = 1 << 16


class _Part(NamedTuple):
    """What the bytes of a part belong to.

    Args:
        url: Where they are from.
        validator: The server's mark of this version of the file: ETag or Last-Modified.
        size: Bytes of the whole file, where the server said so.
    """

    url: str
    validator: str | None
    size: int | None


class _InterruptedError(Exception):
    """The connection broke, or the server asks to come back: another attempt may do."""


def silent(what: str, done: int, total: int | None) -> None:
    """Progress that nobody watches."""


def download(
    url: str,
    target: Path,
    check: Callable[[Path], None],
    *,
    progress: Progress = silent,
    wait: float = 1.0,
) -> None:
    """Fetch a file; what an earlier call left in ``<target>.part`` is not fetched again.

    A part is continued only if the server still has the same version of the file (ETag,
    Last-Modified and length, RFC 9110 section 14); otherwise, and where the server sends no ranges,
    the file is fetched from its beginning. The target appears when it is complete and checked.

    Args:
        url: Address, ``http`` or ``https``.
        target: The file to write; its folder is made if need be.
        check: Called with the complete part; what it raises as `ChecksumError` removes the part.
        progress: Told of the bytes that have arrived.
        wait: Seconds before another attempt; doubled each time that nothing new arrives.

    Raises:
        DownloadError: If the server does not have the file, goes on breaking the connection, or
            the disk is full.
        ChecksumError: From ``check``.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    most, failures = _size(part), 0
    while True:
        try:
            _receive(url, part, progress)
            break
        except _InterruptedError as error:
            failures = 1 if _size(part) > most else failures + 1
            most = max(most, _size(part))
            if failures > ATTEMPTS:
                msg = (
                    f"{url}: {error}; given up after {ATTEMPTS} more attempts. Check the "
                    "connection and repeat the command, which goes on from here, or give another "
                    "address with --source"
                )
                raise DownloadError(msg) from error
            time.sleep(wait * 2 ** (failures - 1))
    try:
        check(part)
    except ChecksumError:
        part.unlink()
        raise
    finally:
        _state(part).unlink(missing_ok=True)
    part.replace(target)


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Raise a `DownloadError` unless the disk of a folder has room.

    Args:
        folder: The folder, or one that will be made.
        needed: Bytes.
        purpose: What for, in words.
    """
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        msg = (
            f"{folder}: {purpose} needs {needed / 1e6:.0f} MB, but only {free / 1e6:.0f} MB are "
            "free; make room, or choose a folder on another disk with --root"
        )
        raise DownloadError(msg)


def digest(path: Path, algorithm: str) -> str:
    """Return the checksum of a file in hexadecimal; ``algorithm`` is ``sha256`` or ``md5``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _receive(url: str, part: Path, progress: Progress) -> None:
    """Append to a part what it lacks, or begin it anew."""
    known = _read_state(part, url)
    start = _size(part) if known is not None else 0
    if known is not None and known.size is not None and start == known.size:
        return
    with _opened(url, _headers(start, known), part) as response:
        if response.status == 206:
            _check_range(response, start, known, part)
        elif response.status == 200:
            start = 0
        else:
            msg = f"{url}: HTTP {response.status} instead of the file; give another with --source"
            raise DownloadError(msg)
        size = known.size if start and known is not None else _length(response)
        if size is not None:
            require_space(part.parent, size - start, f"the download of {url}")
        done = _store(url, response, part, start, size, progress)
    if size is not None and done != size:
        msg = f"the connection broke after {done} of {size} bytes"
        raise _InterruptedError(msg)


def _store(
    url: str,
    response: http.client.HTTPResponse,
    part: Path,
    start: int,
    size: int | None,
    progress: Progress,
) -> int:
    """Append an answer to the first bytes of a part; return the number of bytes it has then."""
    done = start
    try:
        with part.open("ab") as file:
            _lock(file, part)
            if start and file.tell() != start:
                msg = "another process has worked on the download"
                raise _InterruptedError(msg)
            if not start:
                _state(part).unlink(missing_ok=True)
                file.truncate(0)
                _write_state(part, _Part(url, _validator(response), size))
            while block := _next_block(response):
                file.write(block)
                done += len(block)
                progress(part.stem, done, size)
    except DownloadError:
        raise
    except OSError as error:
        msg = f"{part}: cannot be written ({error}); make room, or choose another disk with --root"
        raise DownloadError(msg) from error
    return done


def _headers(start: int, known: _Part | None) -> dict[str, str]:
    headers = {
        "User-Agent": f"probseg/{probseg.__version__}",
        "Accept-Encoding": "identity",  # ranges of a compressed transfer would be of no use
    }
    if start and known is not None:
        headers["Range"] = f"bytes={start}-"
        if known.validator is not None:
            headers["If-Range"] = known.validator
    return headers


@contextlib.contextmanager
def _opened(url: str, headers: dict[str, str], part: Path) -> Iterator[http.client.HTTPResponse]:
    """Open an address; sort what goes wrong into worth and not worth another attempt."""
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is longer than the file is now
            _forget(part)
        if error.code in (408, 416, 429) or error.code >= 500:
            msg = f"the server answers HTTP {error.code} {error.reason}"
            raise _InterruptedError(msg) from error
        msg = (
            f"{url}: HTTP {error.code} {error.reason}; the file has moved or is not public: give "
            "another address, or a file that you downloaded yourself, with --source"
        )
        raise DownloadError(msg) from error
    except (OSError, http.client.HTTPException) as error:
        msg = f"no connection ({error})"
        raise _InterruptedError(msg) from error
    with response:
        yield response


def _next_block(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        msg = f"the connection broke ({error!r})"
        raise _InterruptedError(msg) from error


def _check_range(
    response: http.client.HTTPResponse, start: int, known: _Part | None, part: Path
) -> None:
    """Begin anew unless the server goes on with the same version of the file, at the right byte."""
    span, _, total = response.headers.get("Content-Range", "").partition("/")
    same = (
        known is not None
        and span.startswith(f"bytes {start}-")
        and total == str(known.size)
        and _validator(response) in (None, known.validator)
    )
    if not same:
        _forget(part)
        msg = "the file has changed on the server since the download began"
        raise _InterruptedError(msg)


def _validator(response: http.client.HTTPResponse) -> str | None:
    """Return the strongest mark of a version that may be sent back as If-Range."""
    tag = response.headers.get("ETag")
    if tag is not None and not tag.startswith("W/"):
        return str(tag)
    return response.headers.get("Last-Modified")


def _length(response: http.client.HTTPResponse) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _state(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _read_state(part: Path, url: str) -> _Part | None:
    """Return what a part belongs to, or None if it must not be continued."""
    try:
        known = _Part(**json.loads(_state(part).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    fits = known.url == url and known.size is not None and _size(part) <= known.size
    return known if fits else None


def _write_state(part: Path, known: _Part) -> None:
    _state(part).write_text(json.dumps(known._asdict()), encoding="utf-8")


def _forget(part: Path) -> None:
    for path in (_state(part), part):  # a part without its state is never continued
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _lock(file: IO[bytes], part: Path) -> None:
    """Refuse to write to a part that another process writes to."""
    if sys.platform == "win32":
        return  # there, nobody else can replace an open file
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        msg = f"{part}: another process is downloading this file; wait until it has finished"
        raise DownloadError(msg) from error
