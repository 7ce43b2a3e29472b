"""Downloads of archives that resume after an interruption."""

from __future__ import annotations

import contextlib
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
from probseg.transfer import BLOCK, Progress, silent

ATTEMPTS = 5
"""Attempts after one that failed, all of them without a new byte, before giving up."""

TIMEOUT = 60.0
"""Seconds that a server may be silent."""

OTHER_ADDRESS = "give another address, or a file that you downloaded yourself, with --source"
OTHER_DISK = "choose a folder on another disk with --root"


class _Origin(NamedTuple):
    """Origin of the bytes of a part, kept next to it.

    Args:
        url: Address of the file.
        validator: The server's mark of this version of the file: ETag or Last-Modified.
        size: Bytes of the whole file, where they are known.
    """

    url: str
    validator: str | None
    size: int | None


class _InterruptedTransferError(Exception):
    """The connection broke, or the server is busy: another attempt may succeed."""


def download(
    url: str,
    target: Path,
    check: Callable[[Path], None],
    *,
    progress: Progress = silent,
    wait: float = 1.0,
) -> None:
    """Fetch a file, and resume at the end of `<target>.part`, which an earlier call left.

    A part is continued only if the server still has the same version of the file (ETag,
    Last-Modified and length, RFC 9110 section 14); otherwise, and where the server sends no ranges,
    the file is fetched from its beginning. The target appears when it is complete and checked.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    most, failures = _size(part), 0
    while True:
        try:
            _receive(url, part, progress)
            break
        except _InterruptedTransferError as error:
            failures = 1 if _size(part) > most else failures + 1
            most = max(most, _size(part))
            if failures > ATTEMPTS:
                msg = (
                    f"{url}: {error}; given up after {ATTEMPTS} more attempts. Check the "
                    "connection and repeat the command, which continues the download, or "
                    f"{OTHER_ADDRESS}"
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


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Raise a `DownloadError` unless the disk of a folder has room."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        msg = (
            f"{folder}: {purpose} needs {needed / 1e6:.1f} MB, but only {free / 1e6:.1f} MB are "
            f"free; make room, or {OTHER_DISK}"
        )
        raise DownloadError(msg)


def _receive(url: str, part: Path, progress: Progress) -> None:
    """Append the missing bytes to a part, or fetch it from its beginning."""
    known = _read_state(part, url)
    start = _size(part) if known is not None else 0
    if known is not None and start == known.size:
        return
    headers = {
        "User-Agent": f"probseg/{probseg.__version__}",
        "Accept-Encoding": "identity",  # ranges of a compressed transfer would be of no use
    }
    if known is not None and start:
        headers["Range"] = f"bytes={start}-"
        headers |= {} if known.validator is None else {"If-Range": known.validator}
    with _opened(urllib.request.Request(url, headers=headers), part) as response:
        validator, size = _validator(response), _length(response)
        if response.status == 206 and known is not None:
            span, _, total = response.headers.get("Content-Range", "").partition("/")
            same_bytes = span.startswith(f"bytes {start}-") and total == str(known.size)
            if not (same_bytes and validator in (None, known.validator)):
                _forget(part)
                msg = "the file has changed on the server since the download began"
                raise _InterruptedTransferError(msg)
            size = known.size
        elif response.status == 200:
            start = 0
        else:
            msg = f"{url}: HTTP {response.status} instead of the file; {OTHER_ADDRESS}"
            raise DownloadError(msg)
        if size is not None:
            require_space(part.parent, size - start, f"the download of {url}")
        done = _store(response, part, start, _Origin(url, validator, size), progress)
    if size is not None and done != size:
        msg = f"the connection broke after {done} of {size} bytes"
        raise _InterruptedTransferError(msg)


@contextlib.contextmanager
def _opened(request: urllib.request.Request, part: Path) -> Iterator[http.client.HTTPResponse]:
    """Open an address; the part is forgotten if the server's file is shorter."""
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        msg = f"HTTP {error.code} {error.reason}"
        if error.code == 416:
            _forget(part)
        if error.code in (408, 416, 429) or error.code >= 500:
            raise _InterruptedTransferError(msg) from error
        msg = f"{request.full_url}: {msg}; the file has moved or is not public: {OTHER_ADDRESS}"
        raise DownloadError(msg) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        msg = f"no connection ({error})"
        raise _InterruptedTransferError(msg) from error
    with response:
        yield response


def _store(
    response: http.client.HTTPResponse, part: Path, start: int, origin: _Origin, progress: Progress
) -> int:
    """Append an answer to the first bytes of a part; return the number of bytes it has then."""
    done = start
    try:
        with part.open("ab") as file:
            _lock(file, part)
            if start and file.tell() != start:
                msg = "another process has worked on the download"
                raise _InterruptedTransferError(msg)
            if not start:
                file.truncate(0)
                _state(part).write_text(json.dumps(origin._asdict()), encoding="utf-8")
            while block := _next_block(response):
                file.write(block)
                done += len(block)
                progress(part.stem, done, origin.size)
    except DownloadError:
        raise
    except OSError as error:
        msg = f"{part}: cannot be written ({error}); make room, or {OTHER_DISK}"
        raise DownloadError(msg) from error
    return done


def _next_block(response: http.client.HTTPResponse) -> bytes:
    """Return the next bytes of an answer, none at its end."""
    try:
        return response.read1(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        msg = f"the connection broke ({error!r})"
        raise _InterruptedTransferError(msg) from error


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


def _read_state(part: Path, url: str) -> _Origin | None:
    """Return the origin of a part, or None if it must not be continued."""
    try:
        known = _Origin(**json.loads(_state(part).read_text(encoding="utf-8")))
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
