"""Numeric precision of the operations."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

# Asked once: older compilers of PyTorch cannot trace the question.
_AUTOCAST_DEVICES = frozenset(
    name for name in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(name)
)


HALF = (torch.float16, torch.bfloat16)
"""Half precision."""


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for exp, log and squared distances: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype for products of tokens: on CUDA, half precision is kept."""
    half = tensor.dtype in HALF
    return tensor.dtype if half and tensor.device.type == "cuda" else working_dtype(tensor.dtype)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off, which would turn float32 products into half-precision ones."""
    if device.type not in _AUTOCAST_DEVICES:
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
