"""A warning about threads that spin while another process needs the CPU."""

from __future__ import annotations

import os
import time
import warnings
from functools import cache

import torch

REGIONS = 200
"""Small parallel regions that are timed; on an idle processor they take 2 milliseconds in all."""

SLOW = 0.04
"""Seconds above which they count as slow."""


@cache
def warn_of_spinning() -> None:
    """Warn, once in a process, if parallel regions are slow because OpenMP's threads spin.

    A thread that spins takes its core from the thread that it waits for: beside one busy process,
    a click takes ten times as long. Threads that sleep cost 3 to 12 % on an idle machine. OpenMP
    reads the choice when torch is loaded, which is before a library can make it.
    """
    chosen = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys()
    if chosen or torch.get_num_threads() == 1 or _seconds() < SLOW:
        return
    warnings.warn(
        f"{torch.get_num_threads()} threads of PyTorch wait for each other by spinning, and other "
        "processes use the processor: clicks take several times as long as they need to. Set "
        "OMP_WAIT_POLICY=PASSIVE in the environment before Python starts, or call "
        "torch.set_num_threads(1)",
        stacklevel=3,
    )


def _seconds() -> float:
    """Return the time of the regions, at most a little more than `SLOW`."""
    values = torch.zeros(1 << 17)  # PyTorch divides among threads from 32,768 elements on
    values.add_(1)
    began = time.perf_counter()
    for _ in range(REGIONS):
        values.add_(1)
        if time.perf_counter() - began > SLOW:
            break
    return time.perf_counter() - began
