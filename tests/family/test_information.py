"""Entropy of a posterior over edges, and what an approximation loses."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probseg.family.hard import posterior_divergence, posterior_entropy, sample_edges
from probseg.family.kernels import additive_edges
from probseg.family.low_rank import BasesEdges
from probseg.lab.gauges import timed_with_peak
from probseg.ops.edges import SoftmaxEdges
from probseg.ops.priors import WindowPrior
from support.ops_cases import draw


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


def test_a_query_that_sees_nothing_knows_nothing_of_interest():
    log_prior = torch.zeros(3, 4, dtype=torch.float64)
    log_prior[1] = -math.inf
    queries = draw(1, 1, 3, 2).requires_grad_()
    edges = SoftmaxEdges(queries, draw(1, 1, 4, 2), log_prior)
    found = posterior_entropy(edges)
    assert found[0, 0, 1] == 0
    found.sum().backward()
    assert queries.grad.isfinite().all()


def test_gradients(monkeypatch):
    monkeypatch.setattr("probseg.ops.edges.TILE", 12)  # several blocks of rows
    tokens, bases = draw(1, 2, 5, 3).requires_grad_(), draw(1, 2, 2, 3, seed=1).requires_grad_()

    def lost(tokens, bases):
        return posterior_divergence(BasesEdges(tokens, bases), SoftmaxEdges(tokens, tokens))

    assert torch.autograd.gradcheck(lost, (tokens, bases))
    assert torch.autograd.gradcheck(
        lambda t: posterior_entropy(SoftmaxEdges(t, t, scale=0.5)), (tokens,)
    )


def test_blocks_change_nothing(monkeypatch):
    edges = SoftmaxEdges(draw(2, 2, 7, 3), draw(2, 2, 5, 3, seed=1))
    whole = posterior_entropy(edges)
    monkeypatch.setattr("probseg.ops.edges.TILE", 1)
    torch.testing.assert_close(posterior_entropy(edges), whole, rtol=0, atol=1e-14)


def test_memory_is_linear():
    """With 8,192 tokens, all pairs would take 256 MiB of float32 for each of several tables."""
    tokens = torch.randn(1, 1, 8192, 8)
    with torch.no_grad():
        _, peak = timed_with_peak(lambda: posterior_entropy(SoftmaxEdges(tokens, tokens)), "cpu")
    assert peak is None or peak < 64


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


def test_wrong_pairs_are_named():
    one, other = (SoftmaxEdges(draw(1, 1, n, 3), draw(1, 1, n, 3)) for n in (4, 5))
    with pytest.raises(ValueError, match=r"the same edges.*got \(1, 1, 4, 4\) and \(1, 1, 5, 5\)"):
        posterior_divergence(one, other)
