"""Layers that are compiled give the same, in one graph where they can."""

import copy

import pytest
import torch
from torch import Tensor, nn

from probseg.attention import ATTENTIONS
from support.network_cases import attention_layer

BROKEN = ("additive", "local")
"""Layers with a prior that needs the loop over tiles, which is left out of the graph."""

QUICK = ("emau", "hopfield")
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in (*ATTENTIONS, "emau", "non-local")
]


def features() -> Tensor:
    return torch.randn(2, 8, 4, 5, generator=torch.Generator().manual_seed(1))


def compiled(name: str, layer: nn.Module) -> nn.Module:
    torch.compiler.reset()
    return torch.compile(layer, backend="aot_eager", fullgraph=name not in BROKEN)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_layers_learn_the_same(name):
    layer = attention_layer(name, 8)
    other = copy.deepcopy(layer)  # a moving average changes the layer

    def derived(called: nn.Module, module: nn.Module) -> dict[str, Tensor]:
        torch.manual_seed(2)  # of hard attention
        x = features().requires_grad_()
        output = called(x)
        output.square().sum().backward()
        gradients = {f"of {key}": p.grad for key, p in module.named_parameters()}
        return {"output": output, "input": x.grad, **gradients, **dict(module.named_buffers())}

    found, wanted = derived(compiled(name, layer), layer), derived(other, other)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert found["input"].abs().max() > 0
