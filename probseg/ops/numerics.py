"""In which precision the operations compute."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for exp, log and squared distances: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off, which would turn float32 products into half-precision ones."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
