"""The backends on CUDA, in single and half precision, against the reference in float64."""

from math import inf

import pytest
import torch
from torch import Tensor

from probseg.attention import ATTENTIONS
from probseg.ops import DistancePrior, KeyAdaptation, assign, attend, probabilistic_attention
from probseg.ops.attention import BACKENDS
from support.network_cases import attention_layer
from support.rows import each, pairwise

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}
SIZES = [(2, 3, 16, 16, 8, 8), (1, 2, 48, 33, 16, 4), (1, 1, 200, 130, 64, 65)]
KINDS = ["none", "unit", "mask", "unit and mask", "distance"]


def make_prior(kind: str, n: int, m: int, generator: torch.Generator) -> tuple:
    """Terms of a prior in float32; query 1 sees little, key 2 is hidden from all."""
    unit = torch.randn(m, generator=generator)
    unit[2] = -inf
    mask = torch.zeros(n, m).masked_fill(torch.rand(n, m, generator=generator) > 0.7, -inf)
    mask[1, 3:] = -inf
    mask[:, 0] = 0.0
    positions = torch.randn(n, 2, generator=generator), torch.randn(m, 2, generator=generator)
    return {
        "none": (),
        "unit": (unit,),
        "mask": (mask,),
        "unit and mask": (unit, mask),
        "distance": (DistancePrior(*positions, torch.tensor(1.5)),),
    }[kind]


def moved(term: Tensor | DistancePrior, place: torch.device | torch.dtype) -> object:
    if isinstance(term, Tensor):
        return term.to(place)
    return term.with_tensors({name: value.to(place) for name, value in term.tensors.items()})


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    """Compare by norm, -inf by place."""
    found, hidden = found.cpu().double(), wanted == -inf
    assert torch.equal(found == -inf, hidden)
    difference = (found - wanted).masked_fill(hidden, 0.0).norm()
    assert difference < tolerance * (1.0 + wanted.masked_fill(hidden, 0.0).norm())


@pytest.mark.parametrize(
    ("primitive", "sizes", "kind", "dtype", "backend"),
    pairwise(
        [attend, assign],
        SIZES,
        KINDS,
        TOLERANCE,
        [name for name in BACKENDS if name != "reference"],
    ),
)
def test_results_and_gradients(primitive, sizes, kind, dtype, backend):
    b, g, n, m, d, v = sizes
    generator = torch.Generator().manual_seed(0)
    count = m if primitive is attend else n
    shapes = ((b, g, n, d), (b, g, m, d), (b, g, count, v))
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    terms = make_prior(kind, n, m, generator)
    if backend == "sdpa" and kind == "distance":
        pytest.skip("the fused kernels cannot compute the pairs")

    def evaluate(name: str, device: str, precision: torch.dtype, place: torch.dtype) -> list:
        leaves = [x.to(device, precision).requires_grad_() for x in drawn]
        prior = tuple(moved(moved(term, device), place) for term in terms)
        outputs = primitive(*leaves, log_prior=prior or None, scale=d**-0.5, backend=name)
        loss = sum(x.masked_fill(x == -inf, 0.0).double().square().sum() for x in outputs)
        return [*outputs, *torch.autograd.grad(loss, leaves)]

    found = evaluate(backend, "cuda", dtype, torch.float32)
    wanted = evaluate("reference", "cpu", torch.float64, torch.float64)
    for ours, reference in zip(found, wanted, strict=True):
        close(ours, reference.detach(), TOLERANCE[dtype])


@pytest.mark.parametrize("backend", ["auto", "chunked", "sdpa"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_key_adaptation(dtype, backend):
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(1, 2, 100, 16, generator=generator).to(dtype) for _ in range(3)]
    options = {"key_adaptation": KeyAdaptation(2, 0.1), "log_prior": "uniform"}
    on_device = [x.cuda() for x in drawn]
    found = probabilistic_attention(*on_device, **options, backend=backend)
    wanted = probabilistic_attention(*(x.double() for x in drawn), **options, backend="reference")
    close(found.values, wanted.values, TOLERANCE[dtype])
    close(found.keys, wanted.keys, TOLERANCE[dtype])


@pytest.mark.parametrize("name", [*ATTENTIONS, "emau", "non-local"])
@each("training", [True, False])
def test_layers_do_on_the_device_what_they_do_without(name, training):
    def derived(device: str, dtype: torch.dtype) -> dict[str, Tensor]:
        # Hard attention draws on its device: its training is compared by the expectation.
        layer = attention_layer("standard" if name == "hard" and training else name, 16)
        layer = layer.to(device, dtype).train(training)
        x = torch.randn(2, 16, 6, 7, generator=torch.Generator().manual_seed(1))
        x = x.to(device, dtype).requires_grad_()
        output = layer(x)
        output.square().sum().backward()
        named = {f"of {key}": p.grad for key, p in layer.named_parameters() if p.grad is not None}
        buffers = {key: value for key, value in layer.named_buffers() if value.is_floating_point()}
        return {"output": output.detach(), "input": x.grad, **named, **buffers}

    found, wanted = derived("cuda", torch.float32), derived("cpu", torch.float64)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        close(found[key], value, 2e-3)


@pytest.mark.parametrize("name", [*ATTENTIONS, "emau", "non-local"])
def test_layers_under_autocast_on_the_device(name):
    layer = attention_layer(name, 16).cuda()
    x = torch.randn(2, 16, 6, 7, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = layer(x)
    assert output.isfinite().all()
    output.float().square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
