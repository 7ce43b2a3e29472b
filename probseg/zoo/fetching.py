"""Models from elsewhere: copied from a mirror into the cache.

A mirror is a zoo at an address or in a folder, and so is the cache: ``index.json`` and one folder
per model. The index of the cache lists what is complete; it is written last.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

from probseg.errors import ChecksumError, DownloadError, UsageError, ZooError
from probseg.transfer import WayOut, download, is_remote, locked, offline, read, require_space
from probseg.zoo.index import INDEX, Entry, File, parse_index, read_index, write_index
from probseg.zoo.store import check_files, file_of

LONGEST_INDEX = 1 << 24
"""More bytes than the index of any zoo has."""

WAY_OUT = WayOut(
    address="set PROBSEG_ZOO to the address or folder of a whole zoo, that is, of index.json and "
    "the folders of its models",
    disk="set PROBSEG_CACHE to a folder on another disk",
)


def mirrors() -> list[str]:
    """Return the addresses and folders in ``PROBSEG_ZOO``, which commas separate.

    Raises:
        UsageError: If one is of another kind.
    """
    named = [part.strip().rstrip("/") for part in os.environ.get("PROBSEG_ZOO", "").split(",")]
    for mirror in filter(None, named):
        if not is_remote(mirror) and not Path(mirror).is_dir():
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
    if is_remote(mirror) and offline():
        msg = (
            f"{address}: not fetched, because PROBSEG_OFFLINE or HF_HUB_OFFLINE is set; unset it, "
            "or give the folder of a zoo as PROBSEG_ZOO"
        )
        raise DownloadError(msg)
    return parse_index(read(address, LONGEST_INDEX, WAY_OUT), address)


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


def fetch_model(entry: Entry, mirror: str, cache: Path) -> Path:
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
        with locked(cache / f".{entry.name}.lock", entry.name):
            if _has(cache, entry):
                return cache / entry.name
            shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
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
    require_space(draft, entry.size, entry.name, WAY_OUT)
    sys.stderr.write(
        f"probseg: fetching {entry.name} ({entry.size / 1e6:.1f} MB) from {mirror} into "
        f"{draft.parent}\n"
    )
    for name, wanted in entry.files.items():
        address = f"{mirror}/{entry.name}/{name}"
        check = partial(_check, wanted=wanted, address=address)
        if is_remote(mirror):
            download(address, draft / name, check, WAY_OUT)
        else:
            (draft / name).write_bytes(read(address, wanted.bytes + 1, WAY_OUT))
            check(draft / name)


def _check(path: Path, wanted: File, address: str) -> None:
    """Raise unless a file is the one of the index."""
    if file_of(path) != wanted:
        msg = (
            f"{address}: is not the file that the mirror's {INDEX} lists, with {wanted.bytes} "
            f"bytes and sha256 {wanted.sha256}; nothing of it is kept. The mirror is damaged, or "
            "is changing just now: repeat the command later, or set PROBSEG_ZOO to another"
        )
        raise ChecksumError(msg)


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
    with locked(cache / f".{INDEX}.lock", INDEX):
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
