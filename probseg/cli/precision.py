"""Half precision that a processor cannot do itself."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator
from lightning.pytorch.utilities import rank_zero_only

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux says what a processor can do."""

BFLOAT16 = ("bf16", "bf16-mixed", "bf16-true")
"""What Lightning calls bfloat16."""

INSTRUCTIONS = {"flags": {"avx512_bf16", "amx_bf16"}, "Features": {"bf16"}}
"""Those that multiply bfloat16, by the name of the line that lists them: of x86, and of ARM."""


def without_slow_bfloat16(trainer: Namespace) -> None:
    """Put float32 in the place of bfloat16 if it would be emulated, and say so.

    Args:
        trainer: The trainer's arguments, which are changed in place. They stay as they are on an
            accelerator, and where it is unknown what the processor can do.
    """
    asked = trainer.get("precision")
    if asked not in BFLOAT16 or not _on_cpu(trainer.get("accelerator")):
        return
    if multiplies_bfloat16() is not False:
        return
    trainer["precision"] = "32-true"
    _tell(
        f"probseg: --trainer.precision {asked} is many times slower than float32 on this "
        "processor, which has no instructions for bfloat16; 32-true is taken instead. For "
        f"{asked}, use an accelerator, e.g. --trainer.accelerator gpu\n"
    )


def multiplies_bfloat16() -> bool | None:
    """Say whether the processor has instructions for bfloat16; None where nobody knows."""
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


def _on_cpu(accelerator: object) -> bool:
    """Say whether a trainer with this argument will run on the CPU."""
    if accelerator in (None, "auto"):
        others = (XLAAccelerator, MPSAccelerator, CUDAAccelerator)
        return not any(other.is_available() for other in others)
    return accelerator == "cpu"


@rank_zero_only
def _tell(text: str) -> None:
    sys.stderr.write(text)
