"""Convolutions that have taken up the batch normalisation behind them."""

import torch
from torch import nn

from probseg.ops.convolution import convolve_and_normalise, depthwise_in_float32
from support.rows import each


@each("bias", [True, False])
@each("groups", [1, 2])
def test_both_layers_as_one(bias, groups):
    torch.manual_seed(0)
    convolution = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=groups, bias=bias)
    norm = nn.BatchNorm2d(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm(3 * torch.randn(2, 6, 4, 4) + 1)  # moves the statistics
    norm.eval()
    x = torch.randn(2, 4, 7, 5)
    found = convolve_and_normalise(x, convolution, norm)
    torch.testing.assert_close(found, norm(convolution(x)), rtol=1e-4, atol=1e-5)


def test_convolutions_in_groups_keep_float32_under_autocast():
    torch.manual_seed(0)
    depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
    network = nn.Sequential(nn.Conv2d(3, 4, 1), depthwise, nn.Conv2d(4, 2, 1))
    x = torch.randn(2, 3, 8, 8)
    dtypes = []
    for layer in network:
        layer.register_forward_hook(lambda _, given, made: dtypes.append(made.dtype))
    with torch.autocast("cpu", torch.bfloat16), depthwise_in_float32():
        network(x)
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]
    with depthwise_in_float32():
        torch.testing.assert_close(depthwise(network[0](x)), network[:2](x), rtol=0, atol=0)
