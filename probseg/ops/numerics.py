"""Numeric precision of the operations, also under autocast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.overrides import TorchFunctionMode

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


def depthwise_in_float32() -> AbstractContextManager[object]:
    """Keep convolutions in groups in float32 under autocast on processors.

    The gradient of a depthwise convolution takes 2 to 3 times as long in bfloat16 as in float32
    (PyTorch 2.14, AVX512-BF16), while dense ones take half of the time.
    """
    return _GroupsInFloat32() if torch.is_autocast_enabled("cpu") else nullcontext()


class _GroupsInFloat32(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call a function of PyTorch, `conv2d` on a processor with groups without autocast."""
        keywords = kwargs or {}
        if func is conv2d and args[0].device.type == "cpu":
            groups = args[6] if len(args) > 6 else keywords.get("groups", 1)
            if groups > 1:
                with full_precision(args[0].device):
                    return func(args[0].float(), *args[1:], **keywords)
        return func(*args, **keywords)
