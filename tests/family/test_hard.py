"""Hard attention, entropy and divergence against exact sums over all edges."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.family.hard import (
    Edges,
    most_probable_edges,
    posterior_divergence,
    posterior_entropy,
    sample_edges,
    score_function_loss,
    straight_through,
    take_values,
)
from probseg.family.kernels import additive_edges
from probseg.family.low_rank import BasesEdges
from probseg.lab.gauges import timed_with_peak
from probseg.ops.edges import EdgePosterior, SoftmaxEdges
from probseg.ops.priors import WindowPrior
from support.ops_cases import draw
from support.refusals import refused

SAMPLES = 20_000


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def posterior_of(kind: str, queries: Tensor, keys: Tensor) -> EdgePosterior:
    return (SoftmaxEdges if kind == "softmax" else BasesEdges)(queries, keys, None, 0.7)


def dense(kind: str, queries: Tensor, keys: Tensor) -> Tensor:
    """All probabilities, (B, G, N, M)."""
    z = torch.einsum("bgnd,bgmd->bgnm", 0.7 * queries, keys).softmax(-1)
    if kind == "softmax":
        return z
    return torch.einsum("bgik,bgjk->bgij", z, z / z.sum(-2, keepdim=True))


def hoeffding(largest: float, means: int) -> float:
    """The error that one of some means of samples in `[-largest, largest]` has once in 1e6."""
    return largest * math.sqrt(2 * math.log(2e6 * means) / SAMPLES)


@pytest.mark.parametrize("kind", ["softmax", "bases"])
def test_each_key_is_drawn_as_often_as_is_probable(kind):
    queries, keys = draw(1, 2, 4, 3), 2 * draw(1, 2, 4, 3, seed=1)
    many = (tensor.expand(SAMPLES, -1, -1, -1) for tensor in (queries, keys))
    indices = sample_edges(posterior_of(kind, *many), seeded()).indices  # (samples, 2, 4)
    frequencies = torch.nn.functional.one_hot(indices, 4).double().mean(0)
    assert (frequencies - dense(kind, queries, keys)[0]).abs().max() < hoeffding(0.5, 32)


@pytest.mark.parametrize("kind", ["softmax", "bases"])
@pytest.mark.parametrize("tile", [1, 18, 2**20])
def test_log_probabilities_and_their_gradients(monkeypatch, kind, tile):
    monkeypatch.setattr("probseg.ops.edges.TILE", tile)
    queries, keys = (draw(1, 2, 4, 2, seed=i).requires_grad_() for i in range(2))
    indices = sample_edges(posterior_of(kind, queries, keys), seeded(3)).indices

    def drawn(queries: Tensor, keys: Tensor) -> Tensor:
        edges = sample_edges(posterior_of(kind, queries, keys), seeded(3))
        assert torch.equal(edges.indices, indices)
        return edges.log_probability

    written_out = dense(kind, queries, keys).log().gather(-1, indices[..., None])[..., 0]
    torch.testing.assert_close(drawn(queries, keys), written_out)
    assert gradcheck(drawn, (queries, keys))
    with torch.no_grad():
        torch.testing.assert_close(drawn(queries, keys), written_out)


def test_the_score_function_of_a_cost_that_edges_share():
    """The cost of an item depends on all its edges at once, and on the values themselves."""
    scores = draw(2, 3).requires_grad_()
    values = torch.tensor([[1.0], [0.5], [-0.2]], dtype=torch.float64, requires_grad=True)
    many = SoftmaxEdges(
        torch.eye(2).double().expand(SAMPLES, 1, 2, 2), scores.mT.expand(SAMPLES, 1, 3, 2)
    )
    edges = sample_edges(many, seeded())
    taken = take_values(values.expand(SAMPLES, 1, 3, 1), edges.indices)  # (samples, 1, 2, 1)
    cost = taken.prod(-2).square()  # (samples, 1, 1)
    mean = torch.full((SAMPLES, 1, 1), 0.1, dtype=torch.float64)
    loss = cost.sum() + score_function_loss(cost, edges.log_probability, mean)
    estimates = torch.autograd.grad(loss / SAMPLES, (scores, values))
    p, squares = scores.softmax(-1), values[:, 0].square()
    expected = sum(p[0, i] * p[1, j] * squares[i] * squares[j] for i in range(3) for j in range(3))
    wanted = torch.autograd.grad(expected, (scores, values))
    # The cost and its derivatives by the values are at most 1 and 4.
    for estimate, exact, largest in zip(estimates, wanted, (1, 4), strict=True):
        assert (estimate - exact).abs().max() < hoeffding(largest, 9)
        assert exact.abs().max() > hoeffding(largest, 9)


@pytest.mark.parametrize("kind", ["softmax", "bases"])
def test_straight_through_takes_a_value_and_the_gradient_of_the_mean(kind):
    leaves = [draw(2, 2, 5, 3, seed=i).requires_grad_() for i in range(3)]
    queries, keys, values = leaves
    posterior = posterior_of(kind, queries, keys)
    edges = sample_edges(posterior, seeded())
    output = straight_through(posterior, values, edges)
    assert torch.equal(output, take_values(values, edges.indices))
    upstream = draw(2, 2, 5, 3, seed=9)
    found = torch.autograd.grad(output, leaves, upstream)
    wanted = torch.autograd.grad(posterior.expect(values), leaves, upstream)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    exact = torch.autograd.grad(dense(kind, queries, keys) @ values, leaves, upstream)
    torch.testing.assert_close(found, exact)


def test_at_temperature_zero_a_sample_is_the_most_probable_edge():
    queries, keys = draw(2, 2, 30, 3), draw(2, 2, 8, 3, seed=1)
    likely = most_probable_edges(SoftmaxEdges(queries, keys))
    assert torch.equal(likely.indices, (queries @ keys.mT).argmax(-1))
    cold = sample_edges(SoftmaxEdges(queries, keys, scale=1e9), seeded())
    assert torch.equal(cold.indices, likely.indices)
    assert cold.log_probability.abs().max() < 1e-12
    warm = sample_edges(SoftmaxEdges(queries, keys), seeded())
    assert not torch.equal(warm.indices, likely.indices)


def test_a_query_that_sees_nothing_has_no_edge():
    mask = torch.zeros(4, 3, dtype=torch.float64)
    mask[1], mask[2, :2] = -math.inf, -math.inf
    queries, keys = (draw(2, 1, n, 2, seed=n).requires_grad_() for n in (4, 3))
    values = draw(2, 1, 3, 2, seed=5).requires_grad_()
    posterior = SoftmaxEdges(queries, keys, mask)
    for edges in (sample_edges(posterior, seeded()), most_probable_edges(posterior)):
        assert (edges.indices[:, :, 1] == -1).all()
        assert (edges.indices[:, :, 2] == 2).all()
        assert (edges.log_probability[:, :, 1] == -math.inf).all()
        assert (edges.log_probability[:, :, 2] == 0).all()
        output = straight_through(posterior, values, edges)
        assert (output[:, :, 1] == 0).all()
        cost = torch.ones(2, 1, 4, dtype=torch.float64)
        loss = score_function_loss(cost, edges.log_probability) + output.sum()
        gradients = torch.autograd.grad(loss, (queries, keys, values))
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (gradients[0][:, :, 1] == 0).all()


def test_half_precision_and_empty_lines():
    x = draw(1, 2, 6, 4, dtype=torch.bfloat16)
    edges = sample_edges(SoftmaxEdges(x, x), seeded())
    assert edges.log_probability.dtype == torch.float32
    assert edges.indices.dtype == torch.int64
    output = straight_through(SoftmaxEdges(x, x), x, edges)
    assert output.dtype == torch.bfloat16
    empty = sample_edges(SoftmaxEdges(x[:, :, :0], x), seeded())
    assert empty.indices.shape == empty.log_probability.shape == (1, 2, 0)


def test_wrong_arguments_are_named():
    edges = Edges(torch.zeros(2, 1, 4, dtype=torch.int64), torch.zeros(2, 1, 4))
    one, other = (SoftmaxEdges(draw(1, 1, n, 3), draw(1, 1, n, 3)) for n in (4, 5))
    loss, log_p = score_function_loss, edges.log_probability
    for call, *named in (
        (lambda: loss(torch.zeros(2), log_p), "`cost`"),
        (lambda: loss(torch.zeros(2, 1, 1), log_p, torch.zeros(2, 1, 4)), "`cost - baseline`"),
        (lambda: posterior_divergence(one, other), (1, 1, 4, 4), (1, 1, 5, 5)),
    ):
        refused(ValueError, call, *named)


def entropy(p: Tensor) -> Tensor:
    return -sum(
        torch.where(p[..., j] > 0, p[..., j] * p[..., j].clamp_min(1e-300).log(), 0.0)
        for j in range(p.shape[-1])
    )


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**16))
def test_entropy_is_that_of_the_softmax(n, m, seed):
    queries, keys = draw(2, 2, n, 3, seed=seed), draw(2, 2, m, 3, seed=1)
    edges = SoftmaxEdges(queries, keys, draw(n, m, seed=2), scale=2.0)
    p = torch.softmax(2.0 * queries @ keys.mT + draw(n, m, seed=2), -1)
    found = posterior_entropy(edges)
    torch.testing.assert_close(found, entropy(p))
    assert (found >= -1e-12).all()
    assert (found <= math.log(m) + 1e-12).all()


@given(st.integers(1, 7), st.integers(0, 2**16))
def test_divergence_is_that_of_two_tables(n, seed):
    tokens, keys, bases = draw(1, 2, n, 3, seed=seed), draw(1, 2, n, 3, seed=1), draw(1, 2, 3, 3)
    exact, cheap = SoftmaxEdges(tokens, keys), BasesEdges(tokens, bases)
    p, q = (edges.log_probability(slice(None)).exp() for edges in (exact, cheap))
    expected = (q * (q.log() - p.log())).sum(-1)
    found = posterior_divergence(cheap, exact)
    torch.testing.assert_close(found, expected)
    assert (found >= -1e-12).all()
    torch.testing.assert_close(posterior_divergence(exact, exact), torch.zeros_like(found))


def test_what_local_attention_loses():
    """Inside the window its posterior is the exact one, renormalised: it loses -log of its mass."""
    tokens = draw(1, 2, 20, 3)
    exact = SoftmaxEdges(tokens, tokens)
    local = SoftmaxEdges(tokens, tokens, WindowPrior.on_map(4, 5, 1))
    seen = local.log_probability(slice(None)) > -math.inf
    mass = torch.where(seen, exact.log_probability(slice(None)).exp(), 0.0).sum(-1)
    torch.testing.assert_close(posterior_divergence(local, exact), -mass.log())
    assert (posterior_divergence(exact, local) == math.inf).any()


def test_gradients(monkeypatch):
    monkeypatch.setattr("probseg.ops.edges.TILE", 12)  # several blocks of rows
    tokens, bases = draw(1, 2, 5, 3).requires_grad_(), draw(1, 2, 2, 3, seed=1).requires_grad_()

    def lost(tokens, bases):
        return posterior_divergence(BasesEdges(tokens, bases), SoftmaxEdges(tokens, tokens))

    assert torch.autograd.gradcheck(lost, (tokens, bases))
    assert torch.autograd.gradcheck(
        lambda t: posterior_entropy(SoftmaxEdges(t, t, scale=0.5)), (tokens,)
    )


def additive(count: int) -> SoftmaxEdges:
    tokens = torch.randn(1, 1, count, 64, requires_grad=True)
    return additive_edges(tokens, tokens, torch.randn(1, 64))


def through_bases(count: int) -> BasesEdges:
    tokens = torch.randn(1, 1, count, 8, requires_grad=True)
    return BasesEdges(tokens, torch.randn(1, 1, 64, 8))


@pytest.mark.parametrize(
    ("edges", "known"),
    [
        (additive, posterior_entropy),
        (through_bases, posterior_entropy),
        (through_bases, lambda edges: sample_edges(edges).log_probability),
    ],
)
def test_memory_does_not_grow_with_what_a_pair_needs(edges, known):
    """With 1024 tokens and 64 hidden units or bases, a table of them takes 256 MiB.

    One and its gradient would take 512 MiB.
    """
    known(edges(8)).sum().backward()  # loads what is loaded once
    posterior = edges(1024)
    _, peak = timed_with_peak(lambda: known(posterior).sum().backward(), "cpu")
    assert peak is None or peak < 400
