"""Convolutions under autocast: their precision on processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.functional import conv2d
from torch.overrides import TorchFunctionMode

from probseg.ops.numerics import full_precision


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
