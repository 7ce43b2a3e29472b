"""Convolutions that have taken up the batch normalisation behind them."""

import pytest
import torch
from torch import nn

from probseg.ops.convolution import convolve_and_normalise


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
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
