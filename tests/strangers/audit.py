"""Watches a child process: `watch(["predict", ...] or ["-c", CODE], allowed=[tmp_path])`.

Assert `.outside == []`: files written, addresses, programs and databases outside of `allowed`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ADDRESSES = ("socket.connect", "socket.sendto", "socket.getaddrinfo", "urllib.Request")
PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.startfile")
HARMLESS = ("/sbin/ldconfig",)  # by which `ctypes.util.find_library` finds libraries
CHANGED = {  # events, and which of their arguments are paths that they change
    **dict.fromkeys(("os.rename", "shutil.move"), (0, 1)),
    **dict.fromkeys(("os.link", "os.symlink"), (1,)),
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"), (0,)),
    "sqlite3.connect": (0,),
}


class Watched(NamedTuple):
    """What a process did: its status and texts, what it touched, and its peak memory in bytes."""

    status: int
    output: str
    errors: str
    outside: list[str]
    memory: int


def watch(
    arguments: Sequence[str],
    allowed: Sequence[Path],
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Watched:
    """Run code or a command of probseg, and return what it did outside of `allowed` folders.

    Home and caches are in a folder of their own, where nothing must be written, either, except for
    caches of libraries (`MPLCONFIGDIR`, `PROBSEG_CACHE`). Files that libraries write in C are not
    seen on the way, but found there. Text written by ATTACH of SQLite is no event of Python.
    """
    with tempfile.TemporaryDirectory(prefix="watched_") as folder:
        place = Path(folder)
        home, caches, report = place / "home", place / "caches", place / "events"
        home.mkdir()
        caches.mkdir()
        own = {"MPLCONFIGDIR": str(caches), "PROBSEG_CACHE": str(caches), "TMPDIR": str(caches)}
        settings = {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", **own, **(env or {})}
        places = json.dumps([str(path) for path in (report, *allowed, caches)])
        done = subprocess.run(
            [sys.executable, __file__, places, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env={**os.environ, **settings},
            cwd=cwd,
        )
        *events, memory = report.read_text("utf-8").splitlines()
        events += [f"in the home: {path}" for path in home.rglob("*")]
        return Watched(done.returncode, done.stdout, done.stderr, events, int(memory))


def _listen(report: Path, allowed: Sequence[str]) -> None:
    """Write events of this process into a file, one line each."""
    folders = [os.path.realpath(folder) for folder in allowed]
    folders.append(os.path.realpath(report))
    file = report.open("w", encoding="utf-8")

    def is_allowed(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike) or path in ("", ":memory:"):
            return True  # a descriptor, or a database in memory
        real = os.path.realpath(os.fsdecode(path))
        return real == os.devnull or any(Path(real).is_relative_to(folder) for folder in folders)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            changes = bool(set(mode or "") & set("wax+")) or bool((flags or 0) & WRITES)
            paths = [path] if changes else []
        else:
            paths = [arguments[i] for i in CHANGED.get(event, ()) if i < len(arguments)]
        starts = event in PROGRAMS and arguments[0] not in HARMLESS
        if event in ADDRESSES or starts or not all(map(is_allowed, paths)):
            file.write(f"{event} {arguments!r:.300}".replace("\n", " ") + "\n")
            file.flush()

    sys.addaudithook(hook)


def _run(arguments: Sequence[str]) -> None:
    """Run `-c CODE ...` as Python does, or the command line of probseg."""
    sys.path[0] = ""  # as for both, and not this file's folder
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<watched>", "exec"), {"__name__": "__main__"})
    else:
        from probseg.cli import main

        raise SystemExit(main(list(arguments)))


if __name__ == "__main__":
    report, *allowed = json.loads(sys.argv[1])
    _listen(Path(report), allowed)
    try:
        _run(sys.argv[2:])
    finally:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # bytes of Linux's KiB
        with Path(report).open("a", encoding="utf-8") as file:
            file.write(f"{peak}\n")
