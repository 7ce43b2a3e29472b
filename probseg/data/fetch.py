"""Fetching a data set: download its archives, check them, unpack them, put the files in place."""

from __future__ import annotations

import filecmp
import http.client
import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import probseg
from probseg.data.archives import unpack
from probseg.data.base import PublishedDataset
from probseg.data.published import MEGABYTE, Archive
from probseg.errors import ChecksumError, DataError, DownloadError, UsageError
from probseg.kinds import find
from probseg.paths import BLOCK, Progress, digest, draft_of, silent, write_text

SLACK = 4  # an archive that unpacks to this many times its known size is refused
ATTEMPTS = 5  # attempts after one that failed, all of them without a new byte, before giving up
TIMEOUT = 60.0  # seconds that a server may be silent

OTHER_ADDRESS = "give another address, or a file that you downloaded yourself, with --source"
OTHER_DISK = "choose a folder on another disk with --root"


def fetch(
    dataset: type[PublishedDataset],
    root: Path | None = None,
    *,
    address: str | None = None,
    sha256: str | None = None,
    force: bool = False,
    progress: Progress = silent,
    say: Callable[[str], None] = print,
) -> Path:
    """Fetch the archives of a data set, unpack them and return the folder.

    An archive and its checksum `<archive>.sha256` are stored next to the folder of the data set.
    Its files appear in the folder after the whole archive was unpacked: an interrupted command can
    be repeated, and resumes where it stopped. `address` is that of the archive, or a file; one that
    ends with `/`, or a folder, has all archives under their own names.
    """
    source = dataset.source
    folder = source.folder(root).resolve()
    archives = _locate(dataset, address, sha256)
    if not force and not source.missing(folder):
        say(f"{dataset.name} is in {folder} already; to fetch it again, add --force")
        return folder
    for archive, place in archives:
        if not force and not source.missing(folder, archive):
            say(f"{archive.file}: its files are in {folder} already")
            continue
        local = Path(place).is_file()
        file = Path(place) if local else folder.parent / place.rpartition("/")[2].partition("?")[0]
        on_disk = local or (file.is_file() and not force)
        needed = archive.unpacked + (0 if on_disk else archive.size)
        require_space(folder.parent, needed, f"{file.name}, unpacked,")
        check = partial(_verify, archive, folder.parent / f"{file.name}.sha256", place, say)
        check(file) if on_disk else download(place, file, check, progress=progress)
        draft = draft_of(folder)
        try:
            if file.suffix == ".txt":
                draft.mkdir(parents=True)
                shutil.copyfile(file, draft / archive.holds[0])
            else:
                unpack(file, draft, SLACK * archive.unpacked + MEGABYTE, progress)
            # The topmost folder that has something for all patterns.
            folders = [draft, *(path for path in draft.rglob("*") if path.is_dir())]
            folders.sort(key=lambda path: (len(path.parts), path))
            content = next((f for f in folders if all(any(f.glob(x)) for x in archive.holds)), None)
            if content is None:
                names = ", ".join(sorted(path.name for path in draft.iterdir())[:5])
                raise DataError(
                    f"{file}: expected an archive with {', '.join(archive.holds)}, got one with "
                    f"{names or 'nothing'}; give the archive of this data set with --source"
                )
            if source.convert is not None:
                find(source.convert)(content)
            _move_into(content, folder, force)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        rest = "" if local else f"; {file} is no longer needed"
        say(f"{dataset.name}: unpacked {file.name} into {folder}{rest}")
    return folder


def _locate(
    dataset: type[PublishedDataset], address: str | None, sha256: str | None
) -> list[tuple[Archive, str]]:
    """Return the archives, each with its address or file."""
    source = dataset.source
    several = len(source.archives) > 1
    is_folder = address is not None and (address.endswith("/") or Path(address).is_dir())
    fault, places = "", []
    if sha256 is not None and several:
        fault = f"--sha256: {dataset.name} has {len(source.archives)} archives, and this is one sum"
    elif address is not None and several and not is_folder:
        fault = (
            f"--source {address}: the data set has several archives; give the address of the "
            "folder that has them all, with / at its end"
        )
    for archive in source.archives:
        place = archive.url if address is None else address
        if place is None:
            fault = fault or (
                f"{dataset.name} cannot be fetched: {source.way}. Download it with a browser, and "
                f"repeat this command with --source and the file, or unpack it into "
                f"{source.folder()}"
            )
            break
        if is_folder and archive.url is None:
            fault = fault or f"--source {address}: is a folder; give the archive itself"
        elif is_folder:
            place = f"{place.rstrip('/')}/{archive.file}"
        if not (Path(place).is_file() or place.startswith(("http://", "https://"))):
            fault = fault or (
                f"--source {place}: is neither an http(s) address nor a file that exists"
                + (f"; {dataset.name} needs a file for each of its archives" if several else "")
            )
        places.append((archive._replace(sha256=sha256 or archive.sha256), place))
    if fault:
        raise UsageError(fault)
    return places


def _verify(
    archive: Archive, record: Path, place: str, say: Callable[[str], None], path: Path
) -> None:
    """Compare a checksum with that of the publisher, or of the first download in `record`."""
    sha256, kind, expected = digest(path), "sha256", archive.sha256
    if expected is None and archive.md5 is not None:
        kind, expected = "md5", archive.md5
    known = "as expected"
    hint = "delete it if it is yours, and fetch it again or give another address with --source"
    if expected is None:
        known = f"not verified, as the publisher states no sum: it is noted in {record} for the "
        known += "next download"
        if record.is_file():
            expected = record.read_text(encoding="utf-8").partition(" ")[0]
            known = "as in an earlier download; the publisher states no sum to compare it with"
            hint = f"{record} has the sum of an earlier download. If the new file is right, delete "
            hint += "that one and repeat the command"
    value = digest(path, kind) if kind == "md5" else sha256
    if expected is not None and value != expected.lower():
        raise ChecksumError(
            f"{place}: {kind} is {value}, expected {expected}; the file is damaged or was "
            f"replaced: {hint}"
        )
    name = record.name.removesuffix(".sha256")
    write_text(record, f"{sha256}  {name}\n")
    say(f"{name}: sha256 {sha256}, {known}")


def _move_into(source: Path, root: Path, force: bool) -> None:
    """Move all files of a folder into another one on the same disk, or none if one would be lost.

    A missing folder appears with all of them at once. With `force`, files of other content are
    replaced.
    """
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.replace(root)
        except OSError:
            if not root.exists():  # or else another process has just made it
                raise
        else:
            return
    names = sorted(p.relative_to(source) for p in source.rglob("*") if p.is_file())
    differ = [
        name
        for name in names
        if (root / name).exists()
        and not ((root / name).is_file() and filecmp.cmp(source / name, root / name, shallow=False))
    ]
    if differ and not force:
        raise DataError(
            f"{root}: {len(differ)} files that are there differ from the files of the archive, "
            f"e.g. {differ[0]}; nothing was changed: move them away, or replace them with --force"
        )
    for name in names:
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            shutil.rmtree(place)
        (source / name).replace(place)


class _Origin(NamedTuple):
    """Where the bytes of a part come from; stored next to it."""

    url: str
    validator: str | None  # the server's mark of this version of the file: ETag or Last-Modified
    size: int | None  # of the whole file, where it is known


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
    the file is fetched from its beginning. The target appears when it is complete and `check`,
    which is called with the part, has not raised a `ChecksumError`; then the part is removed.
    `wait` is in seconds before another attempt, doubled after each one without a new byte.
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
                raise DownloadError(
                    f"{url}: {error}; gave up after {ATTEMPTS} more attempts. Check the "
                    "connection and repeat the command, which continues the download, or "
                    f"{OTHER_ADDRESS}"
                ) from error
            time.sleep(wait * 2 ** (failures - 1))
    try:
        check(part)
    except ChecksumError:
        _forget(part)
        raise
    part.replace(target)
    _state(part).unlink(missing_ok=True)


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Raise a `DownloadError` unless the disk of a folder, which may be missing, has room."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{folder}: {purpose} needs {needed / 1e6:.1f} MB, but only {free / 1e6:.1f} MB are "
            f"free; make room, or {OTHER_DISK}"
        )


def _receive(url: str, part: Path, progress: Progress) -> None:
    """Append the missing bytes to a part, or fetch it from its beginning."""
    try:
        known: _Origin | None = _Origin(**json.loads(_state(part).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        known = None
    if known is not None and (known.url != url or _size(part) > (known.size or -1)):
        known = None  # which must not be continued
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
    with _open(urllib.request.Request(url, headers=headers), part) as response:
        tag, length = response.headers.get("ETag"), response.headers.get("Content-Length", "")
        weak = tag is None or tag.startswith("W/")  # which may not be sent back as If-Range
        validator = response.headers.get("Last-Modified") if weak else tag
        size = int(length) if length.isdecimal() else None
        if response.status == 206 and known is not None:
            span, _, total = response.headers.get("Content-Range", "").partition("/")
            same_bytes = span.startswith(f"bytes {start}-") and total == str(known.size)
            if not (same_bytes and validator in (None, known.validator)):
                _forget(part)
                raise _InterruptedTransferError(
                    "the file has changed on the server since the download began"
                )
            size = known.size
        elif response.status == 200:
            start = 0
        else:
            raise DownloadError(
                f"{url}: HTTP {response.status} instead of the file; {OTHER_ADDRESS}"
            )
        if size is not None:
            require_space(part.parent, size - start, f"the download of {url}")
        done = _store(response, part, start, _Origin(url, validator, size), progress)
    if size is not None and done != size:
        raise _InterruptedTransferError(f"the connection broke after {done} of {size} bytes")


def _open(request: urllib.request.Request, part: Path) -> http.client.HTTPResponse:
    """Open an address; the part is forgotten if the server's file is shorter."""
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        msg = f"HTTP {error.code} {error.reason}"
        if error.code == 416:
            _forget(part)
        if error.code in (408, 416, 429) or error.code >= 500:
            raise _InterruptedTransferError(msg) from error
        raise DownloadError(
            f"{request.full_url}: {msg}; the file has moved or is not public: {OTHER_ADDRESS}"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _InterruptedTransferError(f"no connection ({error})") from error
    return response


def _store(
    response: http.client.HTTPResponse, part: Path, start: int, origin: _Origin, progress: Progress
) -> int:
    """Append an answer to the first bytes of a part; return the number of bytes it has then."""
    done = start
    try:
        with part.open("ab") as file:
            if sys.platform != "win32":  # where nobody else can replace an open file
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if start and file.tell() != start:
                raise _InterruptedTransferError("another process has worked on the download")
            if not start:
                file.truncate(0)
                _state(part).write_text(json.dumps(origin._asdict()), encoding="utf-8")
            while True:
                try:
                    block = response.read1(BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    raise _InterruptedTransferError(f"the connection broke ({error!r})") from error
                if not block:
                    return done
                file.write(block)
                done += len(block)
                progress(part.stem, done, origin.size)
    except BlockingIOError as error:
        raise DownloadError(
            f"{part}: another process is downloading this file; wait until it has finished"
        ) from error
    except OSError as error:
        raise DownloadError(
            f"{part}: cannot be written ({error}); make room, or {OTHER_DISK}"
        ) from error


def _state(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _forget(part: Path) -> None:
    for path in (_state(part), part):  # a part without its state is never continued
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
