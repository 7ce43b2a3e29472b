"""Networks whose batch normalisations are part of their convolutions."""

from typing import Any

import pytest
import torch
from torch import nn

from probseg.backbones import TimmBackbone
from probseg.heads.base import conv_norm_relu
from probseg.ops.folding import fold_batch_norms
from probseg.ops.numerics import depthwise_in_float32


def trained(network: nn.Module) -> nn.Module:
    """Return it as after a training, in evaluation mode and float64."""
    torch.manual_seed(0)
    for norm in normalisations(network):
        nn.init.normal_(norm.running_mean, 0, 0.1)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0, 0.1)
    return network.eval().double()


def normalisations(network: nn.Module) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def compare(network: nn.Module, left: int) -> None:
    """Fold a network: equal answers, so many normalisations left, and the network as before."""
    x = torch.rand(2, 3, 64, 48, dtype=torch.float64)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    fast = fold_batch_norms(network, lambda run: run(x[:1, :, :32, :32]))
    with torch.no_grad():
        found, expected = fast(x), network(x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert len(normalisations(fast)) == left
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


# Residual blocks, timm's normalisation with activation, normalisations in front of convolutions,
# branches that add up before it, and a map of a convolution that is a result itself.
@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("resnet18", 0),
        ("tf_efficientnet_lite0", 0),
        ("resnetv2_18", 8),
        ("repvgg_a0", 17),
        ("ghostnet_100", 1),
    ],
)
def test_answers_are_equal(name, left):
    compare(trained(TimmBackbone(name)), left)


class _Branching(nn.Module):
    """Keeps a normalisation whose convolution has another reader, is hooked, or called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.shared, self.norms = nn.Conv2d(4, 4, 1), nn.ModuleList(nn.BatchNorm2d(4) for _ in "ab")
        self.twice, self.again = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.hooked = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.hooked[0].register_forward_hook(lambda module, inputs, made: made + 1)
        self.last = conv_norm_relu(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x.clamp_min(0) + self.norm(x)
        x = self.norms[0](self.shared(x)) + self.norms[1](self.shared(x))
        x = self.again(self.again(self.twice(x)))
        return self.last(self.hooked(x))


def test_what_has_another_reader_stays():
    compare(trained(_Branching()), 5)


def test_layers_in_training_mode_stay():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    assert (
        len(normalisations(fold_batch_norms(network, lambda run: run(torch.rand(2, 3, 8, 8))))) == 1
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_networks_without_normalisation_or_with_compiled_parts_are_not_copied(compiled):
    norm = nn.BatchNorm2d(4) if compiled else nn.GroupNorm(2, 4)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), norm)
    if compiled:
        network[0].compile(backend="eager")
    assert fold_batch_norms(network, lambda run: pytest.fail("needs no run")) is network


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
