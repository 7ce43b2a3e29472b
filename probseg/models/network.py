"""Base class of the networks of all tasks."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from probseg.kinds import TaskName


class Network(nn.Module):
    """Base of the networks of all tasks.

    Attributes:
        task: Name of the task, one of `probseg.kinds.TASKS`.
    """

    task: ClassVar[TaskName]
