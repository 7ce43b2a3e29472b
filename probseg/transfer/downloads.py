"""Downloads that resume after an interruption."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from probseg.errors import ChecksumError, DownloadError
from probseg.transfer.disk import require_space
from probseg.transfer.network import (
    ChangedFileError,
    InterruptedTransferError,
    Progress,
    WayOut,
    next_block,
    opened,
    silent,
)

ATTEMPTS = 5
"""Attempts after one that failed, all of them without a new byte, before giving up."""


class _Part(NamedTuple):
    """Origin of the bytes of a part.

    Args:
        url: Address of the file.
        validator: The server's mark of this version of the file: ETag or Last-Modified.
        size: Bytes of the whole file, where they are known.
    """

    url: str
    validator: str | None
    size: int | None


def download(
    url: str,
    target: Path,
    check: Callable[[Path], None],
    way_out: WayOut,
    *,
    progress: Progress = silent,
    wait: float = 1.0,
) -> None:
    """Fetch a file, and resume at the end of `<target>.part`, which an earlier call left.

    A part is continued only if the server still has the same version of the file (ETag,
    Last-Modified and length, RFC 9110 section 14); otherwise, and where the server sends no ranges,
    the file is fetched from its beginning. The target appears when it is complete and checked.

    Args:
        url: Address, `http` or `https`.
        target: The file to write; its folder is made if need be.
        check: Called with the complete part; it raises `ChecksumError` for a wrong file.
        way_out: Ends of the error messages.
        progress: Called with the bytes that have arrived.
        wait: Seconds before another attempt; doubled after each one without a new byte.

    Raises:
        DownloadError: If the server does not have the file, goes on breaking the connection, or
            the disk is full.
        ChecksumError: From `check`; the part is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    most, failures = _size(part), 0
    while True:
        try:
            _receive(url, part, way_out, progress)
            break
        except InterruptedTransferError as error:
            if isinstance(error, ChangedFileError):
                _forget(part)
            failures = 1 if _size(part) > most else failures + 1
            most = max(most, _size(part))
            if failures > ATTEMPTS:
                msg = (
                    f"{url}: {error}; given up after {ATTEMPTS} more attempts. Check the "
                    "connection and repeat the command, which continues the download, or "
                    f"{way_out.address}"
                )
                raise DownloadError(msg) from error
            time.sleep(wait * 2 ** (failures - 1))
    try:
        check(part)
    except ChecksumError:
        _forget(part)
        raise
    part.replace(target)
    _state(part).unlink(missing_ok=True)


def _receive(url: str, part: Path, way_out: WayOut, progress: Progress) -> None:
    """Append the missing bytes to a part, or fetch it from its beginning."""
    known = _read_state(part, url)
    start = _size(part) if known is not None else 0
    if known is not None and start == known.size:
        return
    with opened(url, _range(start, known), way_out) as response:
        if response.status == 206:
            _check_range(response, start, known)
        elif response.status == 200:
            start = 0
        else:
            msg = f"{url}: HTTP {response.status} instead of the file; {way_out.address}"
            raise DownloadError(msg)
        size = known.size if start and known is not None else _length(response)
        if size is not None:
            require_space(part.parent, size - start, f"the download of {url}", way_out)
        origin = _Part(url, _validator(response), size)
        done = _store(response, part, start, origin, way_out, progress)
    if size is not None and done != size:
        msg = f"the connection broke after {done} of {size} bytes"
        raise InterruptedTransferError(msg)


def _store(
    response: http.client.HTTPResponse,
    part: Path,
    start: int,
    origin: _Part,
    way_out: WayOut,
    progress: Progress,
) -> int:
    """Append an answer to the first bytes of a part; return the number of bytes it has then."""
    done = start
    try:
        with part.open("ab") as file:
            _lock(file, part)
            if start and file.tell() != start:
                msg = "another process has worked on the download"
                raise InterruptedTransferError(msg)
            if not start:
                file.truncate(0)
                _state(part).write_text(json.dumps(origin._asdict()), encoding="utf-8")
            while block := next_block(response):
                file.write(block)
                done += len(block)
                progress(part.stem, done, origin.size)
    except DownloadError:
        raise
    except OSError as error:
        msg = f"{part}: cannot be written ({error}); make room, or {way_out.disk}"
        raise DownloadError(msg) from error
    return done


def _range(start: int, known: _Part | None) -> dict[str, str]:
    """Return the headers that ask for the bytes from `start` on."""
    if not start or known is None:
        return {}
    condition = {} if known.validator is None else {"If-Range": known.validator}
    return {"Range": f"bytes={start}-", **condition}


def _check_range(response: http.client.HTTPResponse, start: int, known: _Part | None) -> None:
    """Raise unless the server continues the same version of the file at the right byte."""
    span, _, total = response.headers.get("Content-Range", "").partition("/")
    same = (
        known is not None
        and span.startswith(f"bytes {start}-")
        and total == str(known.size)
        and _validator(response) in (None, known.validator)
    )
    if not same:
        msg = "the file has changed on the server since the download began"
        raise ChangedFileError(msg)


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
    """Return the origin of a part, or None if it must not be continued."""
    try:
        known = _Part(**json.loads(_state(part).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    fits = known.url == url and known.size is not None and _size(part) <= known.size
    return known if fits else None


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
