"""Positive random features against their matrices, and against the softmax that they estimate."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.family.hard import posterior_divergence
from probseg.family.low_rank import (
    ComposedEdges,
    random_feature_attention,
    random_feature_edges,
    random_features,
)
from probseg.ops import SoftmaxEdges, attend, l2_normalise
from support.ops_cases import draw


def drawn(count: int, channels: int, heads: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return random_features(count, channels, heads, generator).double()


def phi(tokens: Tensor, features: Tensor) -> Tensor:
    """Positive random features as printed (Choromanski et al., 2021, Lemma 1)."""
    logits = tokens @ features.mT - tokens.square().sum(-1, keepdim=True) / 2
    return logits.exp() / math.sqrt(features.shape[-2])


@given(
    st.tuples(*(st.integers(1, high) for high in (2, 2, 5, 6, 3, 2, 9))),
    st.floats(0.1, 2.0),
    st.integers(0, 999),
)
def test_it_follows_its_equations(sizes, scale, seed):
    b, g, n, m, d, v, r = sizes
    queries, keys = draw(b, g, n, d, seed=seed), draw(b, g, m, d, seed=seed + 1)
    values, features = draw(b, g, m, v, seed=seed + 2), drawn(r, d, g, seed)
    left, right = (phi(scale**0.5 * tokens, features) for tokens in (queries, keys))
    total = left @ right.mT  # (B, G, N, M), the estimates of exp(scale q·k)
    found = random_feature_attention(queries, keys, values, features, scale=scale)
    torch.testing.assert_close(found.values, total @ values / total.sum(-1, keepdim=True))
    torch.testing.assert_close(found.log_evidence, total.sum(-1).log())
    edges = random_feature_edges(queries, keys, features, scale=scale)
    assert edges.shape == (b, g, n, m)
    p = total / total.sum(-1, keepdim=True)
    torch.testing.assert_close(edges.log_probability(slice(None)).exp(), p)
    torch.testing.assert_close(edges.expect(values), p @ values)


def test_estimates_of_numerator_and_denominator_are_unbiased():
    """Means of 20,000 independent estimates lie within four standard errors of the exact sums."""
    draws = 20_000
    queries, keys, values = (draw(1, 1, n, d, seed=n) for n, d in ((3, 4), (5, 4), (5, 2)))
    exact = attend(queries, keys, values, scale=0.2)
    many = [tokens.expand(1, draws, -1, -1) for tokens in (queries, keys, values)]
    found = random_feature_attention(*many, drawn(2, 4, draws), scale=0.2)
    for estimates, wanted in (
        (found.log_evidence.exp(), exact.log_evidence.exp()),
        (
            found.log_evidence.exp().unsqueeze(-1) * found.values,
            exact.log_evidence.exp().unsqueeze(-1) * exact.values,
        ),
    ):
        error = estimates.std(1) / math.sqrt(draws)
        assert ((estimates.mean(1) - wanted[:, 0]).abs() < 4 * error).all()
        assert (error < 0.03 * wanted[:, 0].abs().max()).all()


def test_errors_fall_with_the_square_root_of_the_number_of_features():
    """Sixteen times the features: a quarter of the error, and a sixteenth of the divergence."""
    queries, keys, values = (draw(1, 1, n, d, seed=n) for n, d in ((8, 4), (20, 4), (20, 3)))
    queries, keys = l2_normalise(queries) / 2, l2_normalise(keys) / 2
    exact = SoftmaxEdges(queries, keys)
    many = [tokens.expand(1, 20, -1, -1) for tokens in (queries, keys)]
    errors, losses = [], []
    for count in (32, 512):
        edges = random_feature_edges(*many, drawn(count, 4, 20))
        off = edges.expect(values.expand(1, 20, -1, -1)) - exact.expect(values)
        errors.append(off.square().mean().sqrt().item())
        lost = posterior_divergence(edges, SoftmaxEdges(*many))
        losses.append(lost.mean().item())
    assert 3.0 < errors[0] / errors[1] < 5.3, errors
    assert 9.0 < losses[0] / losses[1] < 28.0, losses
    assert errors[1] < 0.03


def test_features_are_normal_and_orthogonal():
    features = drawn(10, 4, 2000)
    blocks = features[:, :8].unflatten(1, (2, 4))
    products = blocks @ blocks.mT
    off = products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
    assert off.abs().max() < 1e-4
    # Mean, covariance and fourth moment of each row are those of N(0, I).
    for row in features.unbind(1):
        assert row.mean(0).abs().max() < 0.1
        torch.testing.assert_close(row.mT @ row / 2000, torch.eye(4).double(), rtol=0, atol=0.15)
        assert (row.pow(4).mean(0) - 3).abs().max() < 0.8


def test_features_overflow_nothing():
    """Here exp(w·k) would be above the largest number of float32."""
    tokens = 30 * draw(1, 1, 6, 8, dtype=torch.float32)
    features = drawn(16, 8).float()
    found = random_feature_attention(tokens, tokens, tokens, features)
    wanted = random_feature_attention(*[tokens.double()] * 3, features.double())
    assert phi(tokens, features).isnan().any() or phi(tokens, features).eq(0).all(-1).any()
    torch.testing.assert_close(found.values.double(), wanted.values, rtol=1e-3, atol=1e-3)


def test_gradients():
    tensors = [draw(1, 2, 4, 3, seed=seed).requires_grad_() for seed in range(3)]
    features = drawn(5, 3, 2)
    assert gradcheck(
        lambda q, k, v: tuple(random_feature_attention(q, k, v, features, scale=0.5)), tensors
    )
    assert gradcheck(
        lambda q, k, v: random_feature_edges(q, k, features, scale=0.5).expect(v), tensors
    )


def test_wrong_arguments_are_named():
    tokens = draw(1, 1, 4, 3)
    with pytest.raises(ValueError, match="features"):
        random_feature_attention(tokens, tokens, tokens, drawn(5, 2))
    with pytest.raises(ValueError, match="scale"):
        random_feature_edges(tokens, tokens, drawn(5, 3), scale=0.0)
    with pytest.raises(ValueError, match="count"):
        random_features(0, 3)
    edges = SoftmaxEdges(tokens, tokens)
    with pytest.raises(ValueError, match=r"second.*\(1, 1, 4, M\), got \(1, 1, 3, 4\)"):
        ComposedEdges(edges, SoftmaxEdges(tokens[:, :, :3], tokens))
