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
from probseg.family.energy import hopfield_retrieval
from probseg.family.hard import posterior_divergence
from probseg.family.low_rank import (
    BasesEdges,
    ComposedEdges,
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
from probseg.family.slots import slot_attention
from probseg.ops import SoftmaxEdges, attend, l2_normalise
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


def test_limits():
    tokens = draw(1, 2, 6, 3)
    itself = torch.eye(6).log()
    exact = SoftmaxEdges(tokens, tokens).expect(tokens)
    torch.testing.assert_close(projected_edges(tokens, tokens, itself).expect(tokens), exact)
    mean = projected_edges(tokens, tokens, torch.zeros(1, 6)).expect(tokens)
    torch.testing.assert_close(mean, tokens.mean(-2, keepdim=True).expand(1, 2, 6, 3))


def test_gradients():
    tensors = [draw(1, 2, 4, 3), draw(1, 2, 5, 3, seed=1), draw(1, 2, 5, 2, seed=2), draw(3, 5)]
    tensors = [tensor.requires_grad_() for tensor in tensors]
    assert gradcheck(lambda q, k, v, p: projected_edges(q, k, p).expect(v), tensors)


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
    with pytest.raises(ValueError, match="log_projection"):
        projected_edges(draw(1, 1, 4, 3), draw(1, 1, 5, 3), torch.zeros(2, 4))
    refused(ValueError, lambda: pooling_log_projection(3, 4, (3, 5)), "width must be 1 to 4, got 5")
    refused(ValueError, lambda: LinformerAttention2d(8, 6, bins=0), "bins")


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


def test_the_softmax_is_over_inputs_and_that_of_slots_over_slots():
    """One update of each, from the same table of dot products."""
    inputs, tokens = draw(1, 1, 9, 3), draw(1, 1, 4, 3, seed=1)
    table = tokens @ inputs.mT  # (1, 1, K, N)
    latents = hopfield_retrieval(tokens, inputs, iterations=1).states
    torch.testing.assert_close(latents, table.softmax(-1) @ inputs)
    shares = table.softmax(-2)
    slots = slot_attention(inputs, tokens, iterations=1).slots
    torch.testing.assert_close(slots, shares / shares.sum(-1, keepdim=True) @ inputs)


def test_swapped_roles_with_the_evidence_as_prior_are_slots():
    """Attention from bases to tokens, where tokens have shared out their mass before."""
    tokens, bases = draw(1, 2, 9, 3), draw(1, 2, 4, 3, seed=1)
    shared = attend(tokens, bases, bases).log_evidence
    swapped = ComposedEdges(SoftmaxEdges(tokens, bases), SoftmaxEdges(bases, tokens, -shared))
    through = BasesEdges(tokens, bases)
    everything = slice(None)
    torch.testing.assert_close(
        swapped.log_probability(everything), through.log_probability(everything)
    )
    torch.testing.assert_close(swapped.expect(tokens), through.expect(tokens))


@given(st.integers(0, 999), st.floats(0.2, 4.0))
def test_with_squared_distances_latents_climb_the_density_of_the_inputs(seed, scale):
    """Mean shift: no update lowers the kernel density estimate at a latent."""
    inputs, latents = draw(1, 1, 12, 2, seed=seed), draw(1, 1, 5, 2, seed=seed + 1)
    prior = -scale * inputs.square().sum(-1) / 2
    before = -torch.inf
    for _ in range(8):
        density = (-scale * torch.cdist(latents, inputs).square() / 2).logsumexp(-1)
        assert (density >= before - 1e-9).all()
        before = density
        latents = hopfield_retrieval(latents, inputs, scale=scale, log_prior=prior).states


def test_latents_find_clusters_and_do_not_compete():
    """Latents near the same cluster end at the same mode; slots there share it out."""
    centres = torch.tensor([[-4.0, 0.0], [4.0, 0.0]]).double()
    inputs = (centres[:, None] + 0.3 * draw(2, 30, 2)).reshape(1, 1, 60, 2)
    start = torch.tensor([[[[-5.0, 1.0], [-3.0, -1.0], [3.5, 0.5]]]]).double()
    prior = -inputs.square().sum(-1) / 2
    latents = hopfield_retrieval(start, inputs, iterations=30, log_prior=prior).states[0, 0]
    torch.testing.assert_close(latents[0], latents[1], rtol=0, atol=1e-3)
    torch.testing.assert_close(latents, centres[[0, 0, 1]], rtol=0, atol=0.3)

    def as_keys(slots):
        return torch.cat([slots, -slots.square().sum(-1, keepdim=True) / 2], -1)

    padded = torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1)
    slots = slot_attention(padded, start, inputs, iterations=30, as_keys=as_keys)
    torch.testing.assert_close(slots.log_mass.exp().sum(), torch.tensor(60.0).double())
    assert slots.log_mass[0, 0, :2].exp().max() < 29.9


def test_gradients_perceiver():
    tensors = [draw(1, 2, 4, 3), draw(1, 2, 5, 3, seed=1), draw(1, 2, 5, 2), draw(1, 2, 3, 3)]
    tensors = [tensor.requires_grad_() for tensor in tensors]
    assert gradcheck(
        lambda q, k, v, z: latent_edges(q, k, z, iterations=3, scale=0.5).expect(v), tensors
    )


def test_wrong_numbers_are_named():
    with pytest.raises(ValueError, match="iterations"):
        latent_edges(*(draw(1, 1, 3, 2) for _ in range(3)), iterations=0)
    refused(ValueError, lambda: PerceiverAttention2d(8, 6, num_latents=0), "num_latents")


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


def test_gradients_performer():
    tensors = [draw(1, 2, 4, 3, seed=seed).requires_grad_() for seed in range(3)]
    features = drawn(5, 3, 2)
    assert gradcheck(
        lambda q, k, v: tuple(random_feature_attention(q, k, v, features, scale=0.5)), tensors
    )
    assert gradcheck(
        lambda q, k, v: random_feature_edges(q, k, features, scale=0.5).expect(v), tensors
    )


def test_wrong_arguments_of_performer_are_named():
    tokens = draw(1, 1, 4, 3)
    with pytest.raises(ValueError, match="features"):
        random_feature_attention(tokens, tokens, tokens, drawn(5, 2))
    with pytest.raises(ValueError, match="scale"):
        random_feature_edges(tokens, tokens, drawn(5, 3), scale=0.0)
    refused(ValueError, lambda: random_features(0, 3), "count")
    edges = SoftmaxEdges(tokens, tokens)
    with pytest.raises(ValueError, match=r"second.*\(1, 1, 4, M\), got \(1, 1, 3, 4\)"):
        ComposedEdges(edges, SoftmaxEdges(tokens[:, :, :3], tokens))
