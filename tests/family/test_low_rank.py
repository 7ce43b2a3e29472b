"""Linformers, Perceivers, Performers, and the log of a product, against their equations."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.attention.base import StandardAttention2d
from probseg.family.low_rank import (
    LinformerAttention2d,
    PerceiverAttention2d,
    latent_edges,
    log_product,
    pooling_log_projection,
    projected_edges,
    random_feature_attention,
    random_feature_edges,
    random_features,
)
from probseg.ops import attend
from support.ops_cases import draw
from support.refusals import refused
from support.rows import each


@given(
    st.tuples(*(st.integers(1, high) for high in (2, 2, 5, 6, 3, 3))),
    st.booleans(),
    st.integers(0, 999),
)
def test_it_is_attention_to_projected_keys_and_values(sizes, sparse, seed):
    b, g, n, m, k, d = sizes
    queries, keys = draw(b, g, n, d, seed=seed), draw(b, g, m, d, seed=seed + 1)
    values, logits = draw(b, g, m, 2, seed=seed + 2), draw(k, m, seed=seed + 3)
    if sparse:
        logits[:, 1:] = logits[:, 1:].where(draw(k, m - 1, seed=seed + 4) > 0, -math.inf)
    projection = logits.softmax(-1)
    weights = (0.7 * queries @ (projection @ keys).mT).softmax(-1)  # (B, G, N, K)
    edges = projected_edges(queries, keys, logits, scale=0.7)
    assert edges.shape == (b, g, n, m)
    torch.testing.assert_close(edges.expect(values), weights @ (projection @ values))
    torch.testing.assert_close(edges.log_probability(slice(None)).exp(), weights @ projection)


def test_gradients():
    tokens = [draw(1, 2, n, 3, seed=seed).requires_grad_() for seed, n in enumerate((4, 5, 5, 3))]
    projection, features = draw(3, 5).requires_grad_(), drawn(5, 3, 2)
    for edges, last in (
        (lambda q, k, p: projected_edges(q, k, p), projection),
        (lambda q, k, z: latent_edges(q, k, z, iterations=3, scale=0.5), tokens[3]),
        (lambda q, k, _: random_feature_edges(q, k, features, scale=0.5), projection),
    ):
        inputs = *tokens[:3], last
        assert gradcheck(lambda q, k, v, last, edges=edges: edges(q, k, last).expect(v), inputs)
    assert gradcheck(
        lambda q, k, v: tuple(random_feature_attention(q, k, v, features, scale=0.5)), tokens[:3]
    )


@each("bins", [(1, 1), (2, 3), (4, 7), (5, 7)])
def test_bins_are_those_of_average_pooling(bins):
    maps = draw(1, 3, 5, 7)
    projection = pooling_log_projection(5, 7, bins).double().softmax(-1)
    found = (projection @ maps.flatten(2).mT).mT.unflatten(-1, bins)
    torch.testing.assert_close(found, F.adaptive_avg_pool2d(maps, bins))


@each("axis", ["full", "height", "width"])
def test_the_layer_attends_to_pooled_maps(axis):
    layer = LinformerAttention2d(8, 6, num_heads=2, head_channels=4, bins=2, axis=axis).double()
    features = draw(2, 8, 5, 7)
    query, key, value = (getattr(layer, name)(features) for name in ("query", "key", "value"))
    bins = (2 if axis != "width" else 5, 2 if axis != "height" else 7)
    few = [F.adaptive_avg_pool2d(maps, bins) for maps in (key, value)]
    query, *few = (maps.unflatten(1, (2, -1)) for maps in (query, *few))
    equation = {
        "full": "bgdhw,bgdkl,bgvkl->bgvhw",
        "height": "bgdhw,bgdkw,bgvkw->bgvhw",
        "width": "bgdhw,bgdhl,bgvhl->bgvhw",
    }[axis]
    pair, rest = equation.split(",")[1], equation.split("->")[1].replace("v", "")
    summed = "".join(letter for letter in pair if letter not in "bgd" + rest)
    logits = torch.einsum(f"bgdhw,{pair}->{rest}{summed}", query, few[0]) / 2
    weights = logits.flatten(5 - 1).softmax(-1).reshape(logits.shape)
    expected = torch.einsum(
        f"{rest}{summed},{pair.replace('d', 'v')}->bgvhw", weights, few[1]
    ).flatten(1, 2)
    torch.testing.assert_close(layer(features), expected)


def test_a_grid_as_large_as_the_map_is_standard_attention():
    layer = LinformerAttention2d(8, 6, num_heads=2, bins=7)
    standard = StandardAttention2d(8, 6, num_heads=2)
    standard.load_state_dict(layer.state_dict())
    features = draw(1, 8, 5, 7).float()
    torch.testing.assert_close(layer(features), standard(features), rtol=1e-4, atol=1e-5)
    layer.bins = 3
    torch.testing.assert_close(layer(features.flip(-1)), layer(features).flip(-1))
    torch.testing.assert_close(layer(features.mT), layer(features).mT)


def test_wrong_arguments_are_named():
    tokens, few = draw(1, 1, 4, 3), draw(1, 1, 3, 3)
    for call, named in (
        (lambda: projected_edges(tokens, few, torch.zeros(2, 4)), "log_projection"),
        (lambda: pooling_log_projection(3, 4, (3, 5)), "1 to 4 along width, got 5"),
        (lambda: LinformerAttention2d(8, 6, bins=0), "bins"),
        (lambda: latent_edges(tokens, tokens, few, iterations=0), "iterations"),
        (lambda: PerceiverAttention2d(8, 6, num_latents=0), "num_latents"),
        (lambda: random_feature_attention(*[tokens] * 3, drawn(5, 2)), "features"),
        (lambda: random_feature_edges(tokens, tokens, drawn(5, 3), scale=0.0), "scale"),
        (lambda: random_features(0, 3), "count"),
    ):
        refused(ValueError, call, named)


@given(st.tuples(*(st.integers(1, 5),) * 3), st.integers(0, 99))
def test_it_is_the_log_of_a_product(sizes, seed):
    n, k, m = sizes
    left, right = draw(2, 3, n, k, seed=seed), draw(2, 3, k, m, seed=seed + 1)
    found = log_product(left, right)
    torch.testing.assert_close(found, (left.exp() @ right.exp()).log())


def test_nothing_underflows():
    left, right = draw(1, 1, 3, 2) - 600, draw(1, 1, 2, 4, seed=1) - 700
    torch.testing.assert_close(log_product(left, right), log_product(left + 600, right) - 600)
    assert log_product(left.float(), right.float()).isfinite().all()


def test_gradients_also_where_nothing_is_possible():
    left, right = draw(1, 2, 3, 4), draw(1, 2, 4, 5, seed=1)
    left[:, :, 1] = left[..., 2] = right[..., 2, :] = right[..., 3] = -math.inf
    possible = torch.ones(1, 2, 3, 5).bool()
    possible[:, :, 1] = possible[..., 3] = False
    left.requires_grad_(), right.requires_grad_()
    found = log_product(left, right)
    assert torch.equal(found > -math.inf, possible)
    weights = draw(*found.shape, seed=2)
    gradients = torch.autograd.grad(found, (left, right), weights)
    seen = [0, 1, 3]
    product = left[..., seen].exp() @ right[..., seen, :].exp()
    wanted = torch.where(possible, weights / product, 0.0)
    torch.testing.assert_close(gradients[0], left.exp() * (wanted @ right.exp().mT))
    torch.testing.assert_close(gradients[1], right.exp() * (left.exp().mT @ wanted))


def test_gradients_of_gradients_are_refused():
    left, right = draw(1, 1, 3, 2).requires_grad_(), draw(1, 1, 2, 3, seed=1)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(log_product(left, right).sum(), left, create_graph=True)


@given(
    st.tuples(*(st.integers(1, high) for high in (2, 2, 5, 6, 3, 3))),
    st.integers(1, 3),
    st.integers(0, 999),
)
def test_it_follows_its_equations(sizes, iterations, seed):
    b, g, n, m, k, d = sizes
    queries, keys = draw(b, g, n, d, seed=seed), draw(b, g, m, d, seed=seed + 1)
    values, latents = draw(b, g, m, 2, seed=seed + 2), draw(b, g, k, d, seed=seed + 3)
    edges = latent_edges(queries, keys, latents, iterations=iterations, scale=0.7)
    for _ in range(iterations - 1):
        latents = (0.7 * latents @ keys.mT).softmax(-1) @ keys
    read = (0.7 * queries @ latents.mT).softmax(-1)
    gathered = (0.7 * latents @ keys.mT).softmax(-1)
    torch.testing.assert_close(edges.expect(values), read @ (gathered @ values))
    torch.testing.assert_close(edges.log_probability(slice(None)).exp(), read @ gathered)


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
def test_it_follows_its_equations_performer(sizes, scale, seed):
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
