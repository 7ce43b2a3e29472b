"""Posteriors over edges, against their equations written out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probseg.family.hard import posterior_divergence, posterior_entropy, sample_edges
from probseg.family.low_rank import BasesEdges
from probseg.ops import FactoredPosition, probabilistic_attention
from probseg.ops.edges import EdgePosterior, SoftmaxEdges, gaussian_edges
from probseg.ops.priors import WindowPrior
from support.ops_cases import draw
from support.refusals import refused
from support.rows import each, pairwise

ALL = slice(None)


def softmax_rows(logits: Tensor) -> Tensor:
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**16))
def test_softmax_edges_are_the_posterior_of_one_edge(n, m, seed):
    queries, keys, values = draw(2, 3, n, 4, seed=seed), draw(2, 3, m, 4, seed=1), draw(2, 3, m, 5)
    log_prior = draw(n, m, seed=2)
    edges = SoftmaxEdges(queries, keys, log_prior, scale=0.7)
    # Bayes' rule, edge by edge: the prior times the exponential of the edge potential.
    joint = torch.zeros(2, 3, n, m, dtype=torch.float64)
    for i in range(n):
        for j in range(m):
            potential = 0.7 * (queries[:, :, i] * keys[:, :, j]).sum(-1)
            joint[:, :, i, j] = log_prior[i, j].exp() * potential.exp()
    expected = joint / joint.sum(-1, keepdim=True)
    assert edges.shape == (2, 3, n, m)
    torch.testing.assert_close(edges.log_probability(ALL).exp(), expected)
    torch.testing.assert_close(edges.expect(values), expected @ values)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**16))
def test_edges_through_bases(n, k, seed):
    tokens, bases, values = draw(2, 3, n, 4, seed=seed), draw(2, 3, k, 4, seed=1), draw(2, 3, n, 5)
    log_prior = draw(2, 3, k, seed=2)
    edges = BasesEdges(tokens, bases, log_prior, scale=1.3)
    z = softmax_rows(1.3 * tokens @ bases.mT + log_prior[:, :, None])  # (B, G, N, K)
    expected = torch.einsum("bgik,bgjk->bgij", z, z / z.sum(-2, keepdim=True))
    torch.testing.assert_close(expected.sum(-1), torch.ones(2, 3, n, dtype=torch.float64))
    assert edges.shape == (2, 3, n, n)
    torch.testing.assert_close(edges.log_probability(ALL).exp(), expected)
    torch.testing.assert_close(edges.expect(values), expected @ values)


@pytest.mark.parametrize("kind", [SoftmaxEdges, BasesEdges])
def test_some_rows_are_a_part_of_all(kind):
    edges = kind(draw(1, 2, 7, 3), draw(1, 2, 7, 3, seed=1), draw(7, seed=2), 0.5)
    whole = edges.log_probability(ALL)
    for rows in (slice(0, 3), slice(3, 7), slice(6, 7)):
        torch.testing.assert_close(edges.log_probability(rows), whole[:, :, rows])


def test_a_query_that_sees_nothing():
    log_prior = torch.zeros(3, 4, dtype=torch.float64)
    log_prior[1] = -math.inf
    edges = SoftmaxEdges(draw(1, 1, 3, 2).requires_grad_(), draw(1, 1, 4, 2), log_prior)
    log_p = edges.log_probability(ALL)
    assert (log_p[:, :, 1] == -math.inf).all()
    assert (edges.expect(draw(1, 1, 4, 2))[:, :, 1] == 0).all()
    log_p[:, :, [0, 2]].sum().backward()
    assert edges.queries.grad.isfinite().all()


def hidden_units(kind: str) -> Tensor:
    """A log prior (N, K) of 4 tokens and 3 units: one is hidden from all or from some tokens."""
    log_prior = draw(4, 3, seed=5)
    log_prior[:, 1] = -math.inf if kind == "from all" else log_prior[:, 1]
    log_prior[[0, 2], 2] = -math.inf
    return log_prior


def entropy_of(edges: EdgePosterior) -> Tensor:
    return posterior_entropy(edges)


def divergence_of(edges: EdgePosterior) -> Tensor:
    exact = SoftmaxEdges(draw(1, 2, 4, 2, seed=6), draw(1, 2, edges.shape[-1], 2, seed=7))
    return posterior_divergence(edges, exact)


def log_probability_of_samples(edges: EdgePosterior) -> Tensor:
    return sample_edges(edges, torch.Generator().manual_seed(0)).log_probability


@pytest.mark.parametrize(
    ("known", "hidden", "kind"),
    pairwise(
        [entropy_of, divergence_of, log_probability_of_samples],
        ["from all", "from some"],
        [SoftmaxEdges, BasesEdges],
    ),
)
def test_hidden_units_have_finite_gradients(kind, hidden, known):
    tokens, units = draw(1, 2, 4, 2).requires_grad_(), draw(1, 2, 3, 2, seed=1).requires_grad_()
    log_prior = hidden_units(hidden).requires_grad_()
    known(kind(tokens, units, log_prior)).sum().backward()
    for tensor in (tokens, units, log_prior):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.any()
    assert (log_prior.grad[log_prior.isinf()] == 0).all()
    mask = torch.where(log_prior.isinf(), -math.inf, 0.0).double()
    assert torch.autograd.gradcheck(lambda t, u: known(kind(t, u, mask)), (tokens, units))


@pytest.mark.parametrize("kind", [SoftmaxEdges, BasesEdges])
def test_values_have_no_more_digits_than_queries(kind):
    queries, keys = draw(1, 1, 4, 2).float(), draw(1, 1, 4, 2, seed=1).float()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):  # as autocast mixes them
        assert kind(queries, keys).expect(draw(1, 1, 4, 3).to(dtype)).dtype == dtype
    refused(TypeError, lambda: kind(queries, keys).expect(draw(1, 1, 4, 3)), "values")
    with pytest.raises(TypeError, match=r"float32 and torch\.bfloat16; convert one"):
        kind(queries.bfloat16(), keys.bfloat16()).expect(draw(1, 1, 4, 3).float())


@each("log_prior", ["magnitude", "key_magnitude", "uniform", draw(6, seed=9)])
@each("precision", [0.5, draw(2, 2, 1).exp(), draw(2, 2, 6).exp()])
def test_gaussian_edges_are_those_of_probabilistic_attention(log_prior, precision):
    queries, keys, values = draw(2, 2, 5, 4), draw(2, 2, 6, 4, seed=1), draw(2, 2, 6, 3, seed=2)
    mask = torch.where(draw(5, 6, seed=3) > -1, 0.0, -math.inf)
    options = {"query_precision": precision, "log_prior": log_prior, "log_mask": mask}
    expected = probabilistic_attention(queries, keys, values, **options)
    edges = gaussian_edges(queries, keys, **options)
    torch.testing.assert_close(edges.expect(values), expected.values)
    # And with both Gaussian normalisers written out.
    alpha = torch.as_tensor(precision, dtype=torch.float64).expand(2, 2, 6)
    log_pi = alpha / 2 * keys.square().sum(-1) if "magnitude" in str(log_prior) else 0.0
    log_pi = log_prior if isinstance(log_prior, Tensor) else log_pi
    squares = (queries[..., None, :] - keys[..., None, :, :]).square().sum(-1)
    joint = -alpha[..., None, :] / 2 * squares + 2 * alpha[..., None, :].log()
    joint = joint + (log_pi[..., None, :] if isinstance(log_pi, Tensor) else 0.0) + mask
    torch.testing.assert_close(edges.log_probability(ALL).exp(), softmax_rows(joint))


def test_positions_are_those_of_probabilistic_attention():
    queries, keys, values = draw(1, 2, 6, 4), draw(1, 2, 6, 4, seed=1), draw(1, 2, 6, 3, seed=2)
    position = FactoredPosition(
        draw(3, 4), draw(5, 4, seed=1), draw(3, 4, seed=2), draw(5, 4, seed=3)
    )
    expected = probabilistic_attention(queries, keys, values, position=position).values
    edges = gaussian_edges(queries, keys, position=position)
    torch.testing.assert_close(edges.expect(values), expected)
    weights = edges.log_probability(ALL).exp()
    torch.testing.assert_close(weights @ values, expected)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 4))
def test_windows_see_squares(height, width, radius):
    prior = WindowPrior.on_map(height, width, radius)
    y, x = torch.arange(height * width) // width, torch.arange(height * width) % width
    seen = ((y[:, None] - y).abs() <= radius) & ((x[:, None] - x).abs() <= radius)
    queries = torch.zeros(1, 1, height * width, 1)
    edges = SoftmaxEdges(queries, queries, prior)
    expected = seen / seen.sum(-1, keepdim=True)
    torch.testing.assert_close(edges.log_probability(ALL)[0, 0].exp(), expected)
    zero = torch.tensor(0)
    for i in range(height * width):
        score = prior.score(zero, zero, torch.tensor(i), zero)
        assert (score == 0.0) == seen[i, 0]


@each(
    ("wrong", "named"),
    [
        (lambda p: WindowPrior(p, p, -1.0), "radius"),
        (lambda p: WindowPrior(p[:, 0], p, 1.0), "query_positions"),
        (lambda p: WindowPrior(p, p[:, :1], 1.0), "the same number of coordinates, got 2 and 1"),
        (lambda p: WindowPrior(p.requires_grad_(), p, 1.0), "must not require a gradient"),
    ],
)
def test_wrong_windows_are_named(wrong, named):
    with pytest.raises(ValueError, match=named):
        wrong(torch.rand(4, 2))


def test_wrong_tokens_are_named():
    refused(ValueError, lambda: SoftmaxEdges(draw(1, 1, 4, 3), draw(1, 1, 4, 2)), "keys")
    refused(ValueError, lambda: BasesEdges(draw(4, 3), draw(1, 1, 4, 3)), "queries")
