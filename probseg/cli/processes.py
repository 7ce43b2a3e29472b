"""How many processes a command may start on this machine."""

from __future__ import annotations

import os
from typing import Any

from probseg.cli.precision import on_cpu
from probseg.errors import UsageError

FORCE = "PROBSEG_MANY_PROCESSES"
"""Environment variable that allows more processes than cores, with the value 1."""


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
