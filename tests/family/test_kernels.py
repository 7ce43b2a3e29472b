"""Additive attention, its decoder and kernel regression against their formulas written out."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck

from probseg.family.kernels import (
    AdditiveScores,
    BahdanauDecoderStep,
    additive_edges,
    nadaraya_watson,
)
from probseg.ops import Block, assign, attend
from probseg.ops.backends.interface import EVERYTHING
from support.ops_cases import draw, tiles_of
from support.refusals import refused
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


@each("shape", [None, (), (2, 1), (2, 2, 1)])
def test_gradients(shape):
    values = draw(2, 2, 3, 2, seed=5).requires_grad_()
    queries, keys, weights = problem(2, 2, 4, 3, 3)
    if shape is None:
        inputs = queries, keys, weights, values
        assert gradcheck(lambda q, k, w, v: additive_edges(q, k, w).expect(v), inputs)
        return
    width = (draw(*shape, seed=3).abs() + 0.5).requires_grad_()
    inputs = queries, keys, values, width
    assert gradcheck(lambda q, k, v, w: nadaraya_watson(q, k, v, bandwidth_inverse=w), inputs)


def test_wrong_arguments_are_named():
    x = torch.zeros(1, 2, 4, 3)
    scores = AdditiveScores(x, x, torch.zeros(2, 3))
    step, state, encoded, inputs = problem_bahdanau()
    padding = torch.zeros(2, 6, dtype=torch.bool)

    def width(value):
        return lambda: nadaraya_watson(x, x, x, bandwidth_inverse=value)

    for call, *named in (
        (lambda: additive_edges(x, x, torch.zeros(3)), "weights"),
        (lambda: additive_edges(x, x[..., :2], torch.zeros(2, 3)), "keys"),
        (lambda: attend(x, x, x, log_prior=scores, backend="sdpa"), "cannot serve this call"),
        (lambda: step(state[:, :4], encoded, inputs), "`state`"),
        (lambda: step(state, encoded[:, 0], inputs), "`encoder_states`"),
        (lambda: step(state, encoded[..., :3], inputs), "`encoder_states`"),
        (lambda: step(state, encoded, state), "`inputs`"),
        (lambda: step(state, encoded, inputs, padding), "`padding`"),
        (width(0.0), "bandwidth_inverse", "above 0, got 0.0"),
        (width(math.inf), "must be finite"),
        (width(torch.ones(4)), "shared by the keys", (4,), "gaussian_edges"),
    ):
        refused(ValueError, call, *named)


def problem_bahdanau() -> tuple[BahdanauDecoderStep, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    step = BahdanauDecoderStep(3, 5, 4, hidden_channels=6).double()
    return step, draw(2, 5), draw(2, 7, 4, seed=1), draw(2, 3, seed=2)


def test_it_follows_its_equations():
    step, state, encoded, inputs = problem_bahdanau()
    step.requires_grad_(False)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 4:] = True
    found = step(state, encoded, inputs, padding)
    for b, length in enumerate((7, 4)):
        scores = [
            float(
                step.score[0]
                @ torch.tanh(step.query.weight @ state[b] + step.key.weight @ encoded[b, t])
            )
            for t in range(length)
        ]
        total = sum(math.exp(score) for score in scores)
        weights = [math.exp(score) / total for score in scores]
        context = sum(weight * encoded[b, t] for t, weight in enumerate(weights))
        wanted = torch.tensor(weights + [0.0] * (7 - length), dtype=torch.float64)
        torch.testing.assert_close(found.weights[b], wanted)
        torch.testing.assert_close(found.context[b], context)
        torch.testing.assert_close(
            found.state[b], recurrent(step.cell, inputs[b], context, state[b])
        )


def recurrent(cell: nn.GRUCell, inputs: Tensor, context: Tensor, state: Tensor) -> Tensor:
    """A gated recurrent unit, as in PyTorch's documentation."""
    x = torch.cat([inputs, context])
    of_input = (cell.weight_ih @ x + cell.bias_ih).chunk(3)
    of_state = (cell.weight_hh @ state + cell.bias_hh).chunk(3)
    reset, update = (torch.sigmoid(of_input[i] + of_state[i]) for i in range(2))
    new = torch.tanh(of_input[2] + reset * of_state[2])
    return (1 - update) * new + update * state


def test_a_sequence_of_padding_alone_has_no_context():
    step, state, encoded, inputs = problem_bahdanau()
    padding = torch.tensor([[True] * 7, [False] * 7])
    found = step(state, encoded, inputs, padding)
    assert (found.context[0] == 0).all()
    assert (found.weights[0] == 0).all()
    torch.testing.assert_close(found.weights[1].sum(), torch.tensor(1.0).double())
    sum(part.sum() for part in found).backward()
    for parameter in step.parameters():
        assert parameter.grad.isfinite().all()


def looped(queries: Tensor, keys: Tensor, values: Tensor, width: Tensor) -> Tensor:
    """`sum_j K(w (q - k_j)) v_j / sum_l K(w (q - k_l))`, for w (B, G, 1)."""
    outputs = torch.zeros(*queries.shape[:-1], values.shape[-1], dtype=torch.float64)
    for b, g, i in torch.cartesian_prod(*map(torch.arange, queries.shape[:3])).reshape(-1, 3):
        kernels = [
            math.exp(-0.5 * sum(((queries[b, g, i] - key) * width[b, g, 0]) ** 2))
            for key in keys[b, g]
        ]
        for kernel, value in zip(kernels, values[b, g], strict=True):
            outputs[b, g, i] += kernel / sum(kernels) * value
    return outputs


@given(
    st.tuples(*(st.integers(1, 4),) * 4),
    st.sampled_from(["float", "number", "heads", "items"]),
    st.integers(0, 99),
)
def test_it_is_the_weighted_mean(sizes, kind, seed):
    n, m, d, v = sizes
    shape = {"float": (), "number": (1,), "heads": (2, 1), "items": (2, 2, 1)}[kind]
    width = draw(*shape, seed=seed + 3).abs() + 0.2
    queries, keys, values = (
        draw(2, 2, *size, seed=seed + i) for i, size in enumerate(((n, d), (m, d), (m, v)))
    )
    given_width = float(width) if kind == "float" else width
    found = nadaraya_watson(queries, keys, values, bandwidth_inverse=given_width)
    torch.testing.assert_close(found, looped(queries, keys, values, width.expand(2, 2, 1)))
