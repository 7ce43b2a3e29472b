"""How many processes a command may start on this machine."""

from __future__ import annotations

import os
from typing import Any

import torch
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator

from probseg.cli.precision import on_cpu
from probseg.errors import UsageError

FORCE = "PROBSEG_MANY_PROCESSES"
"""Environment variable that allows more processes than cores, with the value 1."""


def check_accelerator(accelerator: object) -> None:
    """Refuse an accelerator that PyTorch does not find on this machine.

    Args:
        accelerator: `trainer.accelerator`; names that are not known are left to Lightning.

    Raises:
        UsageError: If there is none.
    """
    known = {"cuda": CUDAAccelerator, "mps": MPSAccelerator, "tpu": XLAAccelerator}
    asked = ("cuda", "mps") if accelerator == "gpu" else (str(accelerator),)
    kinds = [known[name] for name in asked if name in known]
    if kinds and not any(kind.is_available() for kind in kinds):
        msg = (
            f"--trainer.accelerator {accelerator}: PyTorch {torch.__version__} finds no such "
            "device on this machine; choose cpu or auto, or install its driver and a build of "
            "PyTorch for it"
        )
        raise UsageError(msg)


def check_processes(accelerator: object, devices: Any) -> None:  # noqa: ANN401 (as Lightning has it)
    """Refuse more processes on the CPU than it has cores: each takes memory for all of a network.

    Args:
        accelerator: `trainer.accelerator`.
        devices: `trainer.devices`; a number, as text too, "auto", or a list.

    Raises:
        UsageError: If there would be more, and `PROBSEG_MANY_PROCESSES` is not 1; or none.
    """
    if not on_cpu(accelerator):
        return
    is_number = str(devices).removeprefix("-").isdecimal()
    if not is_number and devices != "auto":
        msg = f"--trainer.devices must be a number of processes on the CPU, got {devices}"
        raise UsageError(msg)
    wanted = int(devices) if is_number else 1
    cores = os.cpu_count() or 1
    if wanted < 1:
        msg = f"--trainer.devices must be at least 1 on the CPU, got {wanted}"
        raise UsageError(msg)
    if wanted <= cores or os.environ.get(FORCE) == "1":
        return
    msg = (
        f"--trainer.devices must be at most {cores}, one process for each core of this machine, "
        f"got {wanted}; choose fewer, or set {FORCE}=1"
    )
    raise UsageError(msg)
