"""float32 in place of bfloat16 on CPUs that are slower with it."""

from __future__ import annotations

import sys
import time
from functools import cache

import torch
from jsonargparse import Namespace
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator
from lightning.pytorch.utilities import rank_zero_only
from torch.nn.functional import conv2d

from probseg.texts import tell

BFLOAT16 = ("bf16", "bf16-mixed", "bf16-true")
"""Lightning's names of bfloat16."""


def without_slow_bfloat16(trainer: Namespace) -> None:
    """Replace bfloat16 by float32 where it is slower, with a notice on stderr.

    Args:
        trainer: The trainer's arguments, which are changed in place. They stay as they are on an
            accelerator.
    """
    asked = trainer.get("precision")
    if asked not in BFLOAT16 or not on_cpu(trainer.get("accelerator")):
        return
    gain = bfloat16_gain()
    if gain < 1:
        trainer["precision"] = "32-true"
    rank_zero_only(tell)(
        f"probseg: on this processor a convolution in bfloat16 is {gain:.2g} times as fast as in "
        f"float32; the training uses {trainer['precision']}\n",
        sys.stderr,
    )


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
        others = (XLAAccelerator, MPSAccelerator, CUDAAccelerator)
        return not any(other.is_available() for other in others)
    return accelerator == "cpu"
