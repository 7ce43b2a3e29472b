"""Convolutions under autocast."""

import torch
from torch import nn

from probseg.ops.numerics import depthwise_in_float32


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
