"""The "flex" backend against "reference".

Without CUDA, the kernel is replaced by the uncompiled function, which is the same mathematics with
all logits written out, in float64 too.
"""

from dataclasses import dataclass
from math import inf

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn.attention import flex_attention as pytorch

from probseg.ops import assign, attend
from probseg.ops.attention import BackendError
from probseg.ops.backends import flex, reference
from probseg.ops.backends.interface import Block, PairwisePrior, Terms
from probseg.ops.numerics import working_dtype
from probseg.ops.priors import DistancePrior
from support.ops_cases import draw
from support.rows import pairwise

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.skipif(
        not hasattr(pytorch, "AuxRequest"), reason="this PyTorch's FlexAttention gives no evidence"
    ),
]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="compiles for CUDA only")

Sizes = tuple[int, int, int, int, int, int]  # (B, G, N, M, D, V)
Leaves = dict[str, Tensor]


def make_leaves(kind: str, sizes: Sizes) -> tuple[Leaves, set[str]]:
    """Tensors of which a prior is made, and the names of those that need gradients.

    Query 1 sees no key by "pair", no query sees key 2 by "unit", and each hides some more.
    """
    batch, heads, n, m, _, _ = sizes
    unit = draw(batch, 1, 1, m, seed=4)
    pair = draw(1, heads, n, m, seed=5)
    if n > 1 and m > 2:
        unit[..., 2] = -inf
        pair[:, :, 1] = -inf
        pair[:, 0, 0, 1] = -inf
    leaves = {
        "none": {},
        "unit": {"unit": unit},
        "row": {"pair": draw(batch, 1, n, 1, seed=5)},
        "constant": {"unit": draw(1, 1, 1, 1, seed=5)},
        "unit and pair": {"unit": unit, "pair": pair},
        "distance": {"length": torch.tensor(1.3).double()},
        "distances": {"length": 1 + draw(heads, seed=6).square()},
        "distances and unit": {"length": 1 + draw(heads, seed=6).square(), "unit": unit},
    }[kind]
    differentiable = set(leaves)
    if "length" in leaves:
        leaves |= {"at_query": draw(n, 2, seed=7), "at_key": draw(m, 2, seed=8)}
    return leaves, differentiable


def make_terms(leaves: Leaves) -> Terms:
    terms: Terms = tuple(leaves[name] for name in ("unit", "pair") if name in leaves)
    if "length" not in leaves:
        return terms
    return (DistancePrior(leaves["at_query"], leaves["at_key"], leaves["length"]), *terms)


def evaluate(
    backend,
    primitive: str,
    kind: str,
    sizes: Sizes,
    *,
    dtype: torch.dtype = torch.float64,
    rounded: torch.dtype = torch.float64,
    device: str = "cpu",
    scale: float = 0.7,
) -> dict[str, Tensor]:
    """Both results of a primitive, and the gradients of a sum over all that is finite in them."""
    batch, heads, n, m, d, v = sizes
    units = {
        "queries": draw(batch, heads, n, d, seed=1),
        "keys": draw(batch, heads, m, d, seed=2),
        "payload": draw(batch, heads, m if primitive == "attend" else n, v, seed=3),
    }
    units = {name: unit.to(rounded).to(device, dtype) for name, unit in units.items()}
    leaves, differentiable = make_leaves(kind, sizes)
    leaves = {name: leaf.to(device, working_dtype(dtype)) for name, leaf in leaves.items()}
    inputs = {**units, **{name: leaves[name] for name in sorted(differentiable)}}
    for tensor in inputs.values():
        tensor.requires_grad_()
    average, log_sum = getattr(backend, primitive)(*units.values(), make_terms(leaves), scale)
    assert average.dtype == dtype
    assert log_sum.dtype == working_dtype(dtype)
    finite = log_sum.masked_fill(log_sum == -inf, 0.0)
    total = (average * draw(*average.shape, seed=9).to(average)).sum()
    total = total + (finite * draw(*finite.shape, seed=10).to(finite)).sum()
    gradients = torch.autograd.grad(total, list(inputs.values()))
    named = {f"gradient of {name}": g for name, g in zip(inputs, gradients, strict=True)}
    return {"average": average.detach(), "log sum": log_sum.detach(), **named}


@pytest.fixture
def uncompiled(monkeypatch):
    """The kernel as plain PyTorch, whose gradients on the CPU are right, but barred by a check."""
    monkeypatch.setattr(pytorch, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "_compiled", lambda: pytorch.flex_attention)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("kind", "primitive", "tokens", "scale"),
    [
        ("none", "attend", (5, 7), 0.7),
        ("none", "assign", (5, 7), -1.0),
        ("row", "assign", (5, 7), 0.7),
        ("constant", "assign", (5, 7), 0.7),
        ("unit and pair", "attend", (5, 7), 0.7),
        ("unit and pair", "assign", (5, 7), 0.5),
        ("unit and pair", "attend", (1, 4), 0.7),
        ("unit and pair", "assign", (4, 1), 0.7),
        ("unit and pair", "assign", (1, 1), 0.7),
        ("distance", "attend", (5, 7), 0.7),
        ("distances and unit", "attend", (5, 7), 0.7),
        ("distances and unit", "assign", (5, 7), 0.7),
    ],
)
def test_equals_reference(kind, primitive, tokens, scale):
    sizes = (2, 3, *tokens, 4, 6)
    expected = evaluate(reference, primitive, kind, sizes, scale=scale)
    found = evaluate(flex, primitive, kind, sizes, scale=scale)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("primitive", [attend, assign])
def test_the_cpu_is_refused(primitive):
    units = draw(1, 1, 3, 2)
    message = f"'flex' cannot serve this call of {primitive.__name__}.* no gradients on cpu"
    with pytest.raises(BackendError, match=message):
        primitive(units, units, units, backend="flex")


@dataclass(frozen=True, eq=False)
class BlocksOnly(PairwisePrior):
    tokens: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return 1, 1, self.tokens, self.tokens

    def block(self, block: Block) -> Tensor:
        return torch.zeros(1, 1, self.tokens, self.tokens)[block]


def test_refusals_on_cuda():
    with FakeTensorMode():  # of which no data is needed, nor a device
        units = torch.empty(1, 1, 3, 2, device="cuda")
        positions = torch.empty(3, 2, device="cuda")
        near = DistancePrior(positions, positions, torch.empty((), device="cuda"))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        one = units.to(dtype)
        assert flex.refuse(one, one, one, (near,)) is None
    reason = flex.refuse(units, units, units, (near, BlocksOnly(3)))
    assert reason == "BlocksOnly has no score of single pairs"
    exact = units.double()
    assert "float64" in flex.refuse(exact, exact, exact, ())
    for queries, keys in ((units[:, :, :0], units), (units, units[:, :, :0]), (units[:0],) * 2):
        assert "empty" in flex.refuse(queries, keys, keys, ())


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found.double().cpu() - expected).norm() / expected.norm()).item()


def check_kernel(primitive, kind, sizes, dtype, *, logarithms, rest):
    """Compare the kernel with the exact result for the same rounded arguments."""
    found = evaluate(flex, primitive, kind, sizes, dtype=dtype, rounded=dtype, device="cuda")
    expected = evaluate(reference, primitive, kind, sizes, rounded=dtype)
    log_sum = found.pop("log sum").double().cpu()
    torch.testing.assert_close(log_sum, expected.pop("log sum"), rtol=0.0, atol=logarithms)
    errors = {name: relative_error(found[name], expected[name]) for name in expected}
    assert max(errors.values()) < rest, errors


# Sizes: a tile and its rest; fewer queries than the kernel for short ones takes, and fewer
# channels than any kernel takes; a single token.
KERNEL_SIZES = [(2, 2, 200, 150, 32, 48), (1, 3, 40, 300, 3, 1), (1, 1, 1, 1, 16, 16)]


@needs_cuda
@pytest.mark.parametrize(
    ("kind", "sizes", "primitive"),
    pairwise(
        ["none", "constant", "unit and pair", "distances and unit"],
        KERNEL_SIZES,
        ["attend", "assign"],
    ),
)
def test_kernel_in_single_precision(primitive, kind, sizes):
    check_kernel(primitive, kind, sizes, torch.float32, logarithms=1e-4, rest=1e-4)


@needs_cuda
@pytest.mark.parametrize("primitive", ["attend", "assign"])
@pytest.mark.parametrize("kind", ["none", "unit and pair", "distances and unit"])
def test_kernel_in_half_precision(primitive, kind):
    """Weights and gradients are rounded to 8 bits, but the logits and their sums are not."""
    check_kernel(primitive, kind, KERNEL_SIZES[0], torch.bfloat16, logarithms=1e-3, rest=5e-2)
