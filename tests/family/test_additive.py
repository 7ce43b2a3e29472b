"""Additive attention against its formula written out."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from probseg.family.kernels import AdditiveScores, additive_edges
from probseg.ops import BackendError, Block, assign, attend
from probseg.ops.backends.interface import EVERYTHING
from support.ops_cases import draw, tiles_of
from support.rows import each


def dense(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """All logits, (B, G, N, M)."""
    hidden = torch.tanh(queries[:, :, :, None] + keys[:, :, None])
    return torch.einsum("bgnmh,gh->bgnm", hidden, weights)


def problem(b: int, g: int, n: int, m: int, h: int, seed: int = 0) -> list[Tensor]:
    """Projected queries and keys, and the weights of the hidden units."""
    shapes = ((b, g, n, h), (b, g, m, h), (g, h))
    return [draw(*shape, seed=seed + i).requires_grad_() for i, shape in enumerate(shapes)]


@given(st.tuples(*(st.integers(1, 4),) * 5), st.integers(0, 99))
def test_blocks_are_scores(sizes, seed):
    with torch.no_grad():
        tensors = problem(*sizes, seed=seed)
        scores, wanted = AdditiveScores(*tensors), dense(*tensors)
        assert scores.shape == sizes[:4]
        torch.testing.assert_close(scores.block(EVERYTHING), wanted)
        looped = sum(
            tensors[2][0, h] * math.tanh(tensors[0][0, 0, 0, h] + tensors[1][0, 0, -1, h])
            for h in range(sizes[4])
        )
        torch.testing.assert_close(wanted[0, 0, 0, -1], looped)
        last = [slice(size // 2, None) for size in sizes[:4]]
        torch.testing.assert_close(scores.block(Block(*last)), wanted[tuple(last)])
        rows, columns = (torch.arange(size).flip(0) for size in sizes[2:4])
        picked = scores.block(Block(slice(None), slice(0, 1), rows, columns))
        torch.testing.assert_close(picked, wanted[:, :1].flip(-1, -2))


@pytest.mark.parametrize("backend", ["reference", "chunked", "auto"])
@each("tile", [1, 100, 2**20])
def test_both_primitives_take_it_like_a_tensor(backend, tile):
    tensors = problem(3, 2, 5, 4, 3)
    payloads = draw(3, 2, 4, 2, seed=7), draw(3, 2, 5, 2, seed=8)
    zeros = torch.zeros(3, 2, 5, 1).double(), torch.zeros(3, 2, 4, 1).double()
    for primitive, payload in zip((attend, assign), payloads, strict=True):
        found = []
        for term in (AdditiveScores(*tensors), dense(*tensors)):
            with tiles_of(tile):
                outputs: Any = primitive(*zeros, payload, log_prior=term, backend=backend)
                upstream = [draw(*output.shape, seed=9) for output in outputs]
                found.append((outputs, torch.autograd.grad(outputs, tensors, upstream)))
        torch.testing.assert_close(found[0], found[1])
        assert found[0][1][2].abs().min() > 1e-4


def test_the_expectation_is_softmax_attention():
    tensors = problem(2, 2, 5, 4, 3)
    values = draw(2, 2, 4, 3, seed=5).requires_grad_()
    mask = torch.zeros(5, 4, dtype=torch.float64)
    mask[2, 1:], mask[4] = -math.inf, -math.inf
    found = additive_edges(*tensors, log_mask=mask).expect(values)
    wanted = (dense(*tensors) + mask)[:, :, :4].softmax(-1) @ values
    torch.testing.assert_close(found[:, :, :4], wanted)
    assert (found[:, :, 4] == 0).all()
    weights = additive_edges(*tensors).log_probability(slice(1, 3))
    torch.testing.assert_close(weights, dense(*tensors).log_softmax(-1)[:, :, 1:3])


def test_gradients():
    tensors = problem(2, 2, 4, 3, 3)
    values = draw(2, 2, 3, 2, seed=5).requires_grad_()
    assert gradcheck(lambda q, k, w, v: additive_edges(q, k, w).expect(v), (*tensors, values))


class Largest(TorchDispatchMode):
    """Keeps the size of the largest result."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_memory_does_not_hold_all_pairs():
    count, hidden = 2048, 4
    tensors = [
        draw(*shape, dtype=torch.float32).requires_grad_()
        for shape in ((1, 1, count, hidden), (1, 1, count, hidden), (1, hidden))
    ]
    with Largest() as largest:
        output = additive_edges(*tensors).expect(draw(1, 1, count, 2, dtype=torch.float32))
        output.square().sum().backward()
    assert largest.numbers <= 2**20
    assert all(tensor.grad.isfinite().all() for tensor in tensors)


def test_half_precision_is_computed_in_single():
    tensors = [tensor.detach() for tensor in problem(1, 2, 4, 3, 5)]
    values = draw(1, 2, 3, 2, seed=5)
    half = additive_edges(*(tensor.bfloat16() for tensor in tensors))
    found = half.expect(values.bfloat16())
    assert found.dtype == torch.bfloat16
    rounded = additive_edges(*(tensor.bfloat16().float() for tensor in tensors))
    exact = rounded.expect(values.bfloat16().float())
    torch.testing.assert_close(found.float(), exact, rtol=8e-3, atol=1e-3)


def test_wrong_arguments_are_named():
    x = torch.zeros(1, 2, 4, 3)
    with pytest.raises(ValueError, match="weights"):
        additive_edges(x, x, torch.zeros(3))
    with pytest.raises(ValueError, match="keys"):
        additive_edges(x, x[..., :2], torch.zeros(2, 3))
    scores = AdditiveScores(x, x, torch.zeros(2, 3))
    with pytest.raises(BackendError, match="cannot serve this call"):
        attend(x, x, x, log_prior=scores, backend="sdpa")
