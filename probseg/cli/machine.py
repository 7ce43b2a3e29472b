"""What this machine can do: accelerators, processes on its cores, bfloat16."""

from __future__ import annotations

import os
import sys
import time
from functools import cache

import torch
from jsonargparse import Namespace
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator
from lightning.pytorch.utilities import rank_zero_only
from torch.nn.functional import conv2d

from probseg.data.cache import available_cores
from probseg.errors import UsageError
from probseg.texts import tell

# environment variable that allows more processes than cores, with the value 1
FORCE = "PROBSEG_MANY_PROCESSES"
BFLOAT16 = ("bf16", "bf16-mixed", "bf16-true")  # Lightning's names of bfloat16

ACCELERATORS = {"cuda": CUDAAccelerator, "mps": MPSAccelerator, "tpu": XLAAccelerator}


def check_accelerator(accelerator: object) -> None:
    """Refuse `trainer.accelerator` if PyTorch finds none; names not known are left to Lightning."""
    names = ("cuda", "mps") if accelerator == "gpu" else (str(accelerator),)
    kinds = [ACCELERATORS[name] for name in names if name in ACCELERATORS]
    if kinds and not any(kind.is_available() for kind in kinds):
        raise UsageError(
            f"--trainer.accelerator {accelerator}: PyTorch {torch.__version__} finds no such "
            "device on this machine; choose cpu or auto, or install its driver and a build of "
            "PyTorch for it"
        )


def check_processes(trainer: Namespace) -> None:
    """Refuse more processes on the CPU than it has cores: each takes memory for all of a network.

    `devices` is a number, as text too, "auto", or a list. With `PROBSEG_MANY_PROCESSES=1` any
    number passes.
    """
    devices = trainer.devices
    if not on_cpu(trainer.accelerator) or devices == "auto":
        return
    processes, cores = int(devices) if str(devices).isdecimal() else 0, available_cores()
    fault = None
    if processes < 1:
        fault = f"--trainer.devices must be a number of at least 1 on the CPU, got {devices}"
    elif processes > 1 and trainer.get("sync_batchnorm"):
        fault = "--trainer.sync_batchnorm: PyTorch has it for GPUs alone; leave it out on the CPU"
    elif processes > cores and os.environ.get(FORCE) != "1":
        fault = (
            f"--trainer.devices must be at most {cores}, one process for each core of this "
            f"machine, got {processes}; choose fewer, or set {FORCE}=1"
        )
    if fault is not None:
        raise UsageError(fault)


def choose_cpu_precision(trainer: Namespace, *, trains: bool) -> None:
    """Replace bfloat16 by float32 on a CPU, with a notice on stderr.

    A training keeps bfloat16 where it is faster. Evaluations never do: their results are to be
    those of other machines, and of the predictor. The trainer's arguments are changed in place;
    they stay as they are on an accelerator.
    """
    if trainer.get("precision") not in BFLOAT16 or not on_cpu(trainer.get("accelerator")):
        return
    if trains:
        gain = bfloat16_gain()
        precision = trainer["precision"] if gain >= 1 else "32-true"
        notice = (
            f"on this processor a convolution in bfloat16 is {gain:.2g} times as fast as in "
            f"float32; the training uses {precision}"
        )
    else:
        precision = "32-true"
        notice = "on a CPU, evaluations are in float32, as the published ones"
    trainer["precision"] = precision
    rank_zero_only(tell)(f"probseg: {notice}\n", sys.stderr)


@cache
def bfloat16_gain() -> float:
    """Return the time of a convolution and its gradient in float32 over that in bfloat16.

    Processors without instructions for bfloat16 emulate it, and are up to ten times slower.
    """
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        maps = torch.zeros(4, 32, 48, 48, dtype=dtype).to(memory_format=torch.channels_last)
        weight = torch.zeros(32, 32, 3, 3, dtype=dtype, requires_grad=True)
        times = []
        for _ in range(4):  # the first one warms up
            begin = time.perf_counter()
            result = conv2d(maps, weight, padding=1)
            torch.autograd.grad(result, weight, torch.ones_like(result))
            times.append(time.perf_counter() - begin)
        seconds[dtype] = min(times[1:])
    return seconds[torch.float32] / seconds[torch.bfloat16]


def on_cpu(accelerator: object) -> bool:
    """Return whether a trainer with this argument will run on the CPU."""
    if accelerator in (None, "auto"):
        return not any(kind.is_available() for kind in ACCELERATORS.values())
    return accelerator == "cpu"
