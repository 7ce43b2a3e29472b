"""Convolutions: their precision on processors, and with the batch normalisation behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
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


def convolve_and_normalise(x: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """Apply a convolution and a batch normalisation in evaluation mode, with one map less.

    The normalisation is then a factor and a summand for each channel: of the weights just as well
    as of the map. No hook of the two layers is called.

    Args:
        x: `(B, C, h, w)`.
        convolution: Of C channels to C'.
        norm: Of C' channels, with running statistics.

    Returns:
        `(B, C', h', w')`.
    """
    assert norm.running_mean is not None, "normalisations of this project keep statistics"
    assert norm.running_var is not None, "normalisations of this project keep statistics"
    factor = norm.weight * (norm.running_var + norm.eps).rsqrt()  # (C',)
    bias = -norm.running_mean if convolution.bias is None else convolution.bias - norm.running_mean
    weight = convolution.weight * factor.view(-1, 1, 1, 1)
    result: Tensor = convolution._conv_forward(x, weight, norm.bias + bias * factor)
    return result
