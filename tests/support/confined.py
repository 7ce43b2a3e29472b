"""Processes in which hostile files are read: what they ask for and what they take is seen."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from probseg.errors import user_error

MEGABYTE = 1 << 20
SAFETY = 3000
"""Megabytes of addresses after which a process gets no more, so that a test harms nobody."""

SECONDS = 100

STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")


class Seen(NamedTuple):
    """How a process has ended.

    Args:
        status: Of the command; 2 if the action raised an error of the user; -1 if it died.
        text: What it wrote to stderr.
        peak: Megabytes of memory that it took above those at the start.
        started: Programs and connections that were asked for.
    """

    status: int
    text: str
    peak: float
    started: list[str]


def confined(action: Callable[[], object]) -> Seen:
    """Run an action in a child of this process, which returns the status or raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(_run(action)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(content) if content else Seen(-1, f"died: {status}", 0, [])


def _run(action: Callable[[], object]) -> Seen:
    started: list[str] = []
    sys.addaudithook(lambda name, _: started.append(name) if name in STARTS else None)
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
    return Seen(status, text.getvalue(), _memory("VmHWM") - before, started)


def _memory(key: str) -> float:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024
