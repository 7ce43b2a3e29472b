"""float32 in place of bfloat16 on CPUs without instructions for it."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator
from lightning.pytorch.utilities import rank_zero_only

CPUINFO = Path("/proc/cpuinfo")
"""File in which Linux lists the CPU's instructions."""

BFLOAT16 = ("bf16", "bf16-mixed", "bf16-true")
"""Lightning's names of bfloat16."""

INSTRUCTIONS = {"flags": {"avx512_bf16", "amx_bf16"}, "Features": {"bf16"}}
"""Instructions that multiply bfloat16, by the name of the line that lists them (x86, ARM)."""


def without_slow_bfloat16(trainer: Namespace) -> None:
    """Replace bfloat16 by float32 if it would be emulated, with a notice on stderr.

    Args:
        trainer: The trainer's arguments, which are changed in place. They stay as they are on an
            accelerator, and where it is unknown what the processor can do.
    """
    asked = trainer.get("precision")
    if asked not in BFLOAT16 or not on_cpu(trainer.get("accelerator")):
        return
    if multiplies_bfloat16() is not False:
        return
    trainer["precision"] = "32-true"
    rank_zero_only(sys.stderr.write)(
        f"probseg: --trainer.precision {asked} is many times slower than float32 on this "
        "processor, which has no instructions for bfloat16; 32-true is taken instead. For "
        f"{asked}, use an accelerator, e.g. --trainer.accelerator gpu\n"
    )


def multiplies_bfloat16() -> bool | None:
    """Return whether the processor has instructions for bfloat16; None if that is unknown."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, listed = line.partition(":")
        wanted = INSTRUCTIONS.get(name.strip())
        if wanted is not None:
            return not wanted.isdisjoint(listed.split())
    return None


def on_cpu(accelerator: object) -> bool:
    """Return whether a trainer with this argument will run on the CPU."""
    if accelerator in (None, "auto"):
        others = (XLAAccelerator, MPSAccelerator, CUDAAccelerator)
        return not any(other.is_available() for other in others)
    return accelerator == "cpu"
