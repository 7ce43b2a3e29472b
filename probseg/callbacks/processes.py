"""Objects collected from all processes of a run."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def from_all_processes(own: T) -> list[T]:
    """Return the values of all processes, each of which must call this, in the order of ranks.

    Args:
        own: Value of this process, which can be pickled.
    """
    if not dist.is_initialized():
        return [own]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, own)
    return values
