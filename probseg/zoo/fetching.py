"""Models from elsewhere: copied from a mirror into the cache.

A mirror is a zoo at an address or in a folder, and so is the cache: ``index.json`` and one folder
per model. The index of the cache lists what is complete; it is written last.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

import probseg
from probseg.errors import ChecksumError, DownloadError, UsageError, ZooError
from probseg.zoo.index import INDEX, Entry, File, parse_index, read_index, write_index
from probseg.zoo.store import check_files

TIMEOUT = 30.0
"""Seconds that a server may be silent."""

BLOCK = 1 << 16

LONGEST_INDEX = 1 << 24
"""More bytes than the index of any zoo has."""


def offline() -> bool:
    """Say whether ``PROBSEG_OFFLINE`` or ``HF_HUB_OFFLINE`` forbids to use the network."""
    values = (os.environ.get(name, "") for name in ("PROBSEG_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value.lower() in ("1", "on", "yes", "true") for value in values)


def mirrors() -> list[str]:
    """Return the addresses and folders in ``PROBSEG_ZOO``, which commas separate.

    Raises:
        UsageError: If one is of another kind.
    """
    named = [part.strip().rstrip("/") for part in os.environ.get("PROBSEG_ZOO", "").split(",")]
    for mirror in filter(None, named):
        if not _is_remote(mirror) and not Path(mirror).is_dir():
            msg = (
                f"PROBSEG_ZOO: {mirror!r} is neither an http(s) address nor a folder that exists; "
                "give the address or folder of a zoo, that is, of index.json, or several with "
                "commas between them"
            )
            raise UsageError(msg)
    return [mirror for mirror in named if mirror]


def mirror_index(mirror: str) -> dict[str, Entry]:
    """Return the models of a mirror by name.

    Raises:
        DownloadError: If it cannot be reached, has no index, or must not be asked offline.
        ZooError: If the index is damaged or of another schema.
    """
    address = f"{mirror}/{INDEX}"
    with _opened(address) as source:
        content = _next(source, LONGEST_INDEX, address)
    return parse_index(content, address)


def cache_index(cache: Path) -> dict[str, Entry]:
    """Return the models in the cache by name; none if there is no cache.

    Raises:
        ZooError: If its index is damaged or of another schema.
    """
    if not (cache / INDEX).is_file():
        return {}
    try:
        return read_index(cache)
    except ZooError as error:
        msg = f"{error}. This one is in the cache: the folder {cache} may also be deleted"
        raise ZooError(msg) from error


def download(entry: Entry, mirror: str, cache: Path) -> Path:
    """Copy the files of a model from a mirror into the cache.

    What the cache has of this model already, with the same checksums, is left as it is. Of several
    processes one copies and the others wait. What is interrupted leaves nothing that is taken for
    a model.

    Args:
        entry: Its line in the mirror's index.
        mirror: Address or folder.
        cache: Folder of the zoo that is the cache; made if need be.

    Returns:
        The model's folder in the cache.

    Raises:
        DownloadError: If a file cannot be fetched or stored.
        ChecksumError: If a file is not what the index says.
    """
    draft = cache / f".{entry.name}.part"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f".{entry.name}.lock", entry.name):
            if _has(cache, entry):
                return cache / entry.name
            shutil.rmtree(draft, ignore_errors=True)  # that of a process that was killed
            draft.mkdir()
            try:
                _copy(entry, mirror, draft)
                return _install(draft, entry, cache)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except DownloadError:
        raise
    except OSError as error:
        msg = (
            f"{cache}: {entry.name} cannot be stored ({error}); make room, or set PROBSEG_CACHE to "
            "a folder that can be written"
        )
        raise DownloadError(msg) from error


def _copy(entry: Entry, mirror: str, draft: Path) -> None:
    free = shutil.disk_usage(draft).free
    if free < entry.size:
        msg = (
            f"{draft.parent}: {entry.name} needs {entry.size / 1e6:.1f} MB, but only "
            f"{free / 1e6:.1f} MB are free; make room, or set PROBSEG_CACHE to a folder on another "
            "disk"
        )
        raise DownloadError(msg)
    sys.stderr.write(
        f"probseg: fetching {entry.name} ({entry.size / 1e6:.1f} MB) from {mirror} into "
        f"{draft.parent}\n"
    )
    for name, wanted in entry.files.items():
        address = f"{mirror}/{entry.name}/{name}"
        with _opened(address) as source, (draft / name).open("wb") as target:
            found = _receive(source, target, wanted.bytes, address)
        if found.bytes < wanted.bytes:
            msg = (
                f"{address}: ended after {found.bytes} of {wanted.bytes} bytes; the connection "
                "broke, or the mirror has another file: repeat the command"
            )
            raise DownloadError(msg)
        if found != wanted:
            msg = (
                f"{address}: is not the file that {mirror}/{INDEX} lists, with {wanted.bytes} "
                f"bytes and sha256 {wanted.sha256}; nothing of it is kept. The mirror is damaged, "
                "or is changing just now: repeat the command later, or set PROBSEG_ZOO to another"
            )
            raise ChecksumError(msg)


def _receive(source: BinaryIO, target: BinaryIO, most: int, address: str) -> File:
    """Write what comes, but little beyond what is expected; return what it was."""
    digest, size = hashlib.sha256(), 0
    while size <= most and (block := _next(source, BLOCK, address)):
        digest.update(block)
        size += len(block)
        target.write(block)
    return File(digest.hexdigest(), size)


def _install(draft: Path, entry: Entry, cache: Path) -> Path:
    """Put complete files in their place; the index never lists a model with files of another."""
    folder = cache / entry.name
    _list(cache, entry.name, None)
    if folder.exists():
        shutil.rmtree(folder)
    draft.rename(folder)
    _list(cache, entry.name, entry)
    return folder


def _list(cache: Path, name: str, entry: Entry | None) -> None:
    """Change or remove a model in the index of the cache."""
    with _locked(cache / f".{INDEX}.lock", INDEX):
        entries = cache_index(cache)
        entries.pop(name, None)
        write_index(entries if entry is None else {**entries, name: entry}, cache)


def _has(cache: Path, entry: Entry) -> bool:
    """Say whether a model is in the cache, with the files of this entry."""
    kept = cache_index(cache).get(entry.name)
    if kept is None or kept.files != entry.files:
        return False
    try:
        check_files(cache / entry.name, entry, "it is fetched again")
    except (FileNotFoundError, ChecksumError) as error:
        sys.stderr.write(f"probseg: {error}\n")
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Wait until no other process holds a lock, which the system gives back when one ends."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        sys.stderr.write(f"probseg: another process is fetching {what}; waiting for it\n")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _opened(address: str) -> Iterator[BinaryIO]:
    """Open an address or a file of a mirror; what goes wrong is a DownloadError."""
    if not _is_remote(address):
        try:
            file = Path(address).open("rb")  # noqa: SIM115 (closed below)
        except OSError as error:
            msg = f"{address}: {error.strerror}; is PROBSEG_ZOO the folder of a whole zoo?"
            raise DownloadError(msg) from error
        with file:
            yield file
        return
    if offline():
        msg = (
            f"{address}: not fetched, because PROBSEG_OFFLINE or HF_HUB_OFFLINE is set; unset it, "
            "or give the folder of a zoo as PROBSEG_ZOO"
        )
        raise DownloadError(msg)
    agent = {"User-Agent": f"probseg/{probseg.__version__}"}
    request = urllib.request.Request(address, headers=agent)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        msg = (
            f"{address}: HTTP {error.code} {error.reason}; is PROBSEG_ZOO the address of a whole "
            "zoo, that is, of index.json and the folders of its models?"
        )
        raise DownloadError(msg) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _broken(address, error) from error
    with response:
        yield response


def _next(source: BinaryIO, most: int, address: str) -> bytes:
    try:
        return source.read(most)
    except (OSError, http.client.HTTPException) as error:
        raise _broken(address, error) from error


def _broken(address: str, error: Exception) -> DownloadError:
    return DownloadError(
        f"{address}: no connection, or it broke ({error}); check the network and PROBSEG_ZOO, and "
        "repeat the command. Models that are shipped or in the cache need no network"
    )


def _is_remote(address: str) -> bool:
    return address.startswith(("http://", "https://"))
