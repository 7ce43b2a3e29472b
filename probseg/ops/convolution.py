"""A convolution and the batch normalisation behind it as one, for evaluation."""

from __future__ import annotations

from torch import Tensor, nn


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
