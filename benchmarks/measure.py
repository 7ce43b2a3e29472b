"""What the benchmarks share: turns, provenance and CSV files."""

from __future__ import annotations

import csv
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from probseg.lab.gauges import Call, timed

Row = dict[str, str | int | float | None]

RESULTS = Path(__file__).parent / "results"


def provenance(device: str) -> Row:
    """Say on what and with what a row was measured."""
    return {"machine": _machine(device), "torch": torch.__version__, "commit": _commit()}


def interleave(
    calls: Mapping[str, Call], device: str, *, budget: float, minimum: int, maximum: int = 200
) -> dict[str, list[float]]:
    """Time several calls in turns (A B A B ...), so that a busy machine slows all of them alike.

    At least `minimum` turns are taken, and no further one starts after `budget` seconds. Returns
    the seconds of each turn by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    stop = time.perf_counter() + budget
    for turn in range(maximum):
        if turn >= minimum and time.perf_counter() >= stop:
            break
        for name, call in calls.items():
            seconds[name].append(timed(call, device))
    return seconds


def append_row(path: Path, row: Row) -> None:
    """Add a row to a CSV file, which is created with a header; None becomes an empty field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file; one that does not exist has no rows."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())
        model = found[1] if found else model
    return f"{model}, {os.cpu_count()} cores"


def _commit() -> str:
    """Return the short commit, with "+" if anything but the results differs from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changes = _git("status", "--porcelain", "--", ":/", ":(top,exclude)benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+" if changes else commit


def _git(*arguments: str) -> str:
    # Without optional locks nobody who works in the tree at the same time is disturbed.
    command = ["git", "--no-optional-locks", *arguments]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
