"""Paths in a checkout and in a wheel, atomic replacement, locks, and what transfers share."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TextIO

from probseg.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent


def _shipped(room: str) -> Path:
    """Return the folder `room` inside the wheel, or next to the package in a checkout."""
    inside = _PACKAGE / "assets" / room
    return inside if inside.is_dir() else _PACKAGE.parent / room


def configs_dir() -> Path:
    """Folder of the YAML configurations that ship with probseg."""
    return _shipped("configs")


def zoo_dir() -> Path:
    """Folder of the zoo: `index.json` and one folder per model."""
    return _shipped("zoo")


def data_dir() -> Path:
    """Folder that holds the data sets: `$PROBSEG_DATA`, or `./data` where that is not set."""
    return Path(os.environ.get("PROBSEG_DATA") or "data")


def cache_dir() -> Path:
    """Folder for files that can be rebuilt: `$PROBSEG_CACHE`, or `~/.cache/probseg`."""
    chosen = os.environ.get("PROBSEG_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "probseg"


def find_data(root: Path | str) -> Path:
    """Return a data folder: the path itself if it exists, else the one below `data_dir`."""
    path = Path(root)
    below = data_dir() / path
    return below if below.exists() and not path.exists() else path


# checkpoints beside a run's folder `checkpoints`: the mean with its start, and that start
MEAN, FIRST_WEIGHTS = "mean.ckpt", "start.ckpt"


def run_of(checkpoint: Path) -> Path:
    """Return the folder of the run that has a checkpoint, whose name may have folders in it."""
    if checkpoint.name in (MEAN, FIRST_WEIGHTS):
        return checkpoint.parent
    places = (place for place in checkpoint.parents if place.name == "checkpoints")
    return next(places, checkpoint.parent).parent


def is_path(name: str) -> bool:
    """Return whether the name of a model is a path: it has a slash, or Windows' backslash."""
    return "/" in name or os.sep in name


def no_folder(path: Path) -> str | None:
    """Explain why a path is not a folder; None if it is one."""
    if path.is_dir():
        return None
    return "is a file, expected a folder" if path.exists() else "no such folder"


def no_file(path: Path) -> str | None:
    """Explain why a path is not a file; None if it is one."""
    if path.is_file():
        return None
    return "is a folder, expected a file" if path.exists() else "no such file"


LEADS_OUT = "links to a file outside of the folder; copy the file into it"
FOLLOW = f"{LEADS_OUT}, or set PROBSEG_FOLLOW_LINKS=1 if you made the link"


def leads_out(path: Path, folder: Path) -> bool:
    """Return whether a path is, or goes through, a link out of the folder that it was found in.

    This is the one rule for links in folders that others made: what they lead to is not read, not
    listed and not written. The folder itself may be a link. Files of `images/` and `masks/` may lie
    in the folder that holds these.
    """
    if not path.is_relative_to(folder):
        return True
    inner = path.relative_to(folder)
    places = [folder / inner, *(folder / place for place in inner.parents)][:-1]
    if ".." not in inner.parts and not any(place.is_symlink() for place in places):
        return False
    homes = [folder, folder.parent] if folder.name in ("images", "masks") else [folder]
    real = Path(os.path.realpath(path))
    return not any(real.is_relative_to(os.path.realpath(home)) for home in homes)


def follows(path: Path) -> bool:
    """Return whether the person trusts links that are read: all of them, or those to their data.

    The first is said by `PROBSEG_FOLLOW_LINKS=1`, the second by `PROBSEG_DATA`.
    """
    if os.environ.get("PROBSEG_FOLLOW_LINKS") == "1":
        return True
    data = os.environ.get("PROBSEG_DATA")
    return bool(data) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(str(data)))


def walk(
    place: Path, root: Path, trusts: Callable[[Path], bool] = follows
) -> tuple[list[Path], list[Path]]:
    """Return a folder, which may be missing, and those in it; and links out of `root` among them.

    Hidden folders are left out, links lead into those that are trusted, and no folder comes twice.
    """
    folders, refused, seen, waiting = [], [], set(), [place]
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(folder)
        if folder != place and leads_out(folder, root) and not trusts(folder):
            refused.append(folder)
        elif real not in seen:
            seen.add(real)
            folders.append(folder)
            with suppress(OSError), os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.is_dir()]
                names = sorted((name for name in names if name[0] != "."), reverse=True)
                waiting += [folder / name for name in names]
    return folders, refused


def modified(folders: Iterable[Path]) -> dict[Path, int]:
    """Return when files were added to folders or removed, in nanoseconds; 0 for missing ones."""
    return {path: path.stat().st_mtime_ns if path.is_dir() else 0 for path in folders}


def touched(path: Path, since: int) -> bool:
    """Say whether a file was written, replaced or renamed after a time in nanoseconds.

    Copies that keep the time of the last change are noticed too, except on Windows.
    """
    try:
        status = path.stat()
    except OSError:
        return False
    return max(status.st_mtime_ns, status.st_ctime_ns) > since


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file or folder so that a process killed meanwhile leaves the old one or the new one.

    Yields where to write: beside the path, whose place it takes at the end of the block. After an
    error nothing of it is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = draft_of(path)
    remove(unfinished)  # a link to somewhere else
    try:
        yield unfinished
        if unfinished.is_dir() and path.is_dir():
            old = draft_of(path.with_name(f"{path.name}.old"))
            path.rename(old)
            try:
                unfinished.rename(path)
            except OSError:
                old.rename(path)
                raise
            remove(old)
        else:
            unfinished.replace(path)
    except OSError as error:
        if error.filename is None:  # the system does not name the file of a failed write
            error.filename = str(path)
        raise
    finally:
        remove(unfinished)


def remove(path: Path) -> None:
    """Remove a file, a folder or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def draft_of(path: Path) -> Path:
    """Return where this process writes what is to take the place of a file or folder."""
    machine = f"{zlib.crc32(socket.gethostname().encode()):x}"
    _sweep(path.parent, machine, os.getpid())
    return path.with_name(f".{path.name}.{machine}-{os.getpid()}.part")


@cache
def _sweep(folder: Path, machine: str, process: int) -> None:
    """Remove what killed processes left unfinished in a folder, once in each process.

    Whether a process of another machine is alive is not known: its file is left for an hour.
    """
    for part in folder.glob(".*.part") if sys.platform != "win32" else ():
        owner, _, number = part.name.split(".")[-2].partition("-")
        if number.isdecimal() and owner != machine:
            if time.time() - part.lstat().st_mtime > 3600:
                remove(part)
        elif number.isdecimal():
            try:
                os.kill(int(number), 0)
            except ProcessLookupError:
                remove(part)
            except (PermissionError, OverflowError):  # of another user, or no number of a process
                pass


LOCK = ".probseg.lock"  # file in a folder that a command works in, with the command's name
PATIENCE = 5.0  # seconds in which the readers of a killed training end, which hold its lock


# seconds of waiting for another process after which that is said, and after which it ends
HEARTBEAT, LONGEST_WAIT = 30.0, 600.0


@contextmanager
def alone_in(folder: Path, command: str) -> Iterator[None]:
    """Keep other commands of probseg out of a folder, which is there; see `LOCK`."""
    from filelock import FileLock, Timeout

    lock, place = FileLock(folder / LOCK, thread_local=False), folder / LOCK
    if leads_out(place, folder):
        raise UsageError(f"{place}: a link leads out of {folder}; remove the link")
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout as error:
        owner = place.read_text(encoding="utf-8").strip() or "another command of probseg"
        raise UsageError(
            f"{folder}: {owner} is at work in this folder; wait for its end, stop it, or choose "
            "another folder"
        ) from error
    except NotImplementedError:  # on some network file systems
        yield
        return
    try:
        since = time.strftime("%Y-%m-%d %H:%M")
        text = (
            f"`probseg {command}`, process {os.getpid()} on {socket.gethostname()}, since {since}"
        )
        place.write_text(text, encoding="utf-8")
        yield
    finally:
        lock.release()


@contextmanager
def rewriting(path: Path) -> Iterator[TextIO]:
    """Open a file for text in UTF-8 so that it appears whole, see `replacing`."""
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Write a text file so that it appears whole."""
    with rewriting(path) as file:
        file.write(text)


# called with the name of a task, the bytes or items done, and their total (None: unknown)
Progress = Callable[[str, int, int | None], None]
BLOCK = 1 << 16  # bytes read at once


def silent(what: str, done: int, total: int | None) -> None:
    """Report no progress."""


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file in hexadecimal; `algorithm` is `sha256` or `md5`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def offline() -> bool:
    """Return whether `PROBSEG_OFFLINE` or `HF_HUB_OFFLINE` forbids to use the network."""
    values = (os.environ.get(name, "") for name in ("PROBSEG_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value.lower() in ("1", "on", "yes", "true") for value in values)
