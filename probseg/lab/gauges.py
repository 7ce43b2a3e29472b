"""Gauges of single calls: multiply-adds, seconds and peak memory."""

from __future__ import annotations

import ctypes
import gc
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

Call = Callable[[], object]

MIB = 2**20
# convention of `count_multiply_adds`
MULTIPLY_ADDS = (
    "1 multiply-add = 2 FLOPs; convolutions, matrix products and attention kernels only, as they "
    "are executed; normalisation, activations, softmax and resizing not counted"
)

_CLEAR_REFS = Path("/proc/self/clear_refs")


def count_multiply_adds(call: Call) -> float:
    """Return the multiply-adds of a call by the convention `MULTIPLY_ADDS`."""
    formulas = {  # of shapes, that PyTorch lacks; the first one in older versions
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: (
            2 * math.prod(q[:3]) * k[-2] * (q[-1] + v[-1])
        ),
        torch.ops.aten.baddbmm_: lambda total, left, right, *_, **__: (
            2 * math.prod(left) * right[-1]
        ),
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with counter:
        call()
    return counter.get_total_flops() / 2


def timed(call: Call, device: str) -> float:
    """Return the wall seconds of a call; on CUDA those between two events around it."""
    if torch.device(device).type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000
    waits = torch.device(device).type != "cpu"  # such a device computes while Python goes on
    if waits:
        torch.accelerator.synchronize()
    before = time.perf_counter()
    call()
    if waits:
        torch.accelerator.synchronize()
    return time.perf_counter() - before


def timed_with_peak(call: Call, device: str) -> tuple[float, float | None]:
    """Return the seconds of a call and its peak additional memory in MiB.

    On Linux that is the high-water mark of the resident memory, which the kernel can reset; None
    where there is no such thing. On CUDA it is what PyTorch's allocator counts.
    """
    gc.collect()
    if torch.device(device).type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        seconds = timed(call, device)
        return seconds, (torch.cuda.max_memory_allocated() - before) / MIB
    try:
        # What was freed may still be resident, and would be used again without being counted.
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR_REFS.write_text("5")  # resets the high-water mark
    except (AttributeError, OSError, TypeError):  # not Linux, another C library, or not allowed
        return timed(call, device), None
    held = _resident("VmRSS")
    seconds = timed(call, device)
    return seconds, max(0.0, (_resident("VmHWM") - held) / MIB)


def _resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    line = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if line is None:
        raise OSError(f"/proc/self/status has no field {field}")
    return int(line[1]) * 1024
