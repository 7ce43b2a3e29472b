"""Processes in which hostile files are read: what they touch and what they take is seen."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probseg.errors import user_error

MEGABYTE = 1 << 20
SAFETY = 3000
"""Megabytes of addresses after which a process gets no more, so that a test harms nobody."""

SECONDS = 300

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ADDRESSES = ("socket.connect", "socket.sendto", "socket.getaddrinfo", "urllib.Request")
PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.startfile")
HARMLESS = ("/sbin/ldconfig",)  # by which `ctypes.util.find_library` finds libraries

ENTRIES = {
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
}
"""Events that change an entry of a folder, whatever a link there leads to: the arguments with its
path, and with the descriptor of the folder that the path begins in."""

CONTENTS = ("os.truncate", "os.chmod", "sqlite3.connect")
"""Events that change what a path leads to."""


class Seen(NamedTuple):
    """How a process has ended.

    Args:
        status: Of the command; 2 if the action raised an error of the user; -1 if it died.
        text: What it wrote to stdout and stderr.
        peak: Megabytes of memory that it took above those at the start.
        outside: Programs, addresses, and changes of files outside of the allowed folders.
    """

    status: int
    text: str
    peak: float
    outside: list[str]


def confined(action: Callable[[], object], allowed: Sequence[Path] | None = None) -> Seen:
    """Run an action in a child of this process.

    Args:
        action: Returns the status, or raises.
        allowed: Where files may be written, besides caches of libraries; by default in all of the
            folder for temporary files. What libraries write in C is found in the home alone.
    """
    with tempfile.TemporaryDirectory(prefix="confined_") as folder:
        allowed = [Path(tempfile.gettempdir())] if allowed is None else allowed
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(_run(action, Path(folder), allowed)))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            content = pipe.read()
        _, status = os.waitpid(child, 0)
        return pickle.loads(content) if content else Seen(-1, f"died: {status}", 0, [])


def _run(action: Callable[[], object], place: Path, allowed: Sequence[Path]) -> Seen:
    home, caches = place / "home", place / "caches"
    for folder in (home, caches):
        folder.mkdir()
    own = dict.fromkeys(("MPLCONFIGDIR", "PROBSEG_CACHE", "TMPDIR"), str(caches))
    os.environ |= {"HOME": str(home), **own}
    tempfile.tempdir, sys.dont_write_bytecode = None, True
    outside: list[str] = []
    folders = [os.path.realpath(folder) for folder in (caches, *allowed)]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        places = _changed(event, arguments)
        program = event in PROGRAMS and arguments[0] not in HARMLESS
        if event in ADDRESSES or program or not all(_is_in(path, folders) for path in places):
            outside.append(f"{event} {arguments!r:.300}")

    sys.addaudithook(hook)
    signal.alarm(SECONDS)
    before = _memory("VmRSS")
    limit = (_memory("VmSize") + SAFETY) * MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (int(limit), resource.RLIM_INFINITY))
    status, text = 0, io.StringIO()
    with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
        try:
            ended = action()
            status = ended if isinstance(ended, int) else 0
        except Exception as error:
            explained = user_error(error)
            status = 1 if explained is None else 2
            text.write(traceback.format_exc() if explained is None else str(explained))
    events = [*outside, *(f"in the home: {path}" for path in home.rglob("*"))]
    return Seen(status, text.getvalue(), _memory("VmHWM") - before, events)


def _changed(event: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    """Yield the true paths that an event changes."""
    if event in CONTENTS or (event == "open" and _writes(*arguments)):
        path = arguments[0]
        if not isinstance(path, int) and path not in ("", ":memory:"):  # of SQLite
            yield os.path.realpath(os.fsdecode(path))
    for number, folder in ENTRIES.get(event, ()):
        begin = "." if arguments[folder] == -1 else f"/proc/self/fd/{arguments[folder]}"
        path = Path(begin, os.fsdecode(arguments[number]))
        yield f"{os.path.realpath(path.parent)}/{path.name}"


def _writes(_: object, mode: str | None, flags: int | None) -> bool:
    return bool(set(mode or "") & set("wax+")) or bool((flags or 0) & WRITES)


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return path == os.devnull or any(Path(path).is_relative_to(folder) for folder in folders)


def _memory(key: str) -> float:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024
