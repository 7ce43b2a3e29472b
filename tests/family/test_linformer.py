"""Attention to projected keys and values."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from probseg.attention.base import StandardAttention2d
from probseg.family.low_rank import LinformerAttention2d, pooling_log_projection, projected_edges
from probseg.ops import SoftmaxEdges
from support.ops_cases import draw
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
    with pytest.raises(ValueError, match="width must be 1 to 4, got 5"):
        pooling_log_projection(3, 4, (3, 5))
    with pytest.raises(ValueError, match="bins"):
        LinformerAttention2d(8, 6, bins=0)
