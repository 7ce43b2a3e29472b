"""The attention layers as modules."""

import inspect

import pytest
import torch
from torch import Tensor, nn

from probseg.attention import (
    ATTENTIONS,
    Attention2d,
    ProbabilisticAttention2d,
    StandardAttention2d,
    build_attention,
)
from probseg.errors import UnknownNameError

VIEWS = [
    {"axis": "full"},
    {"axis": "height"},
    {"axis": "width"},
    {"axis": "height", "span": 3},
    {"axis": "width", "span": 2},
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["standard", "probabilistic"])
def name(request) -> str:
    return request.param


def with_weights_of(layer: Attention2d, name: str, **options) -> Attention2d:
    """Another layer with the same projections."""
    other = build_attention(name, 8, 6, num_heads=2, head_channels=4, **options)
    other.load_state_dict(layer.state_dict())
    return other


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("size", [(5, 7), (1, 4), (8, 3)])
def test_shapes_and_gradients(name, view, size):
    layer = build_attention(name, 8, 6, num_heads=3, head_channels=4, **view)
    features = draw(2, 8, *size).requires_grad_()
    output = layer(features)
    assert output.shape == (2, 6, *size)
    output.square().sum().backward()
    for tensor in (features, *layer.parameters()):
        assert tensor.grad.isfinite().all()
    assert layer.query.weight.grad.abs().max() > 0 or 1 in size


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_without_adaptation_it_is_the_standard_layer(view):
    standard = StandardAttention2d(8, 6, num_heads=2, head_channels=4, **view)
    plain = with_weights_of(standard, "probabilistic", key_iterations=0, **view)
    adapted = with_weights_of(standard, "probabilistic", **view)
    features = draw(2, 8, 5, 7)
    assert torch.equal(plain(features), standard(features))
    assert (adapted(features) - standard(features)).abs().max() > 1e-3


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_the_standard_layer_is_softmax_attention(view):
    layer = StandardAttention2d(8, 6, num_heads=2, head_channels=4, **view)
    features = draw(1, 8, 4, 5)
    q, k, v = (
        projection(features).reshape(2, -1, 20).mT
        for projection in (layer.query, layer.key, layer.value)
    )
    y, x = torch.arange(20) // 5, torch.arange(20) % 5
    along, across = {"height": (y, x), "width": (x, y), "full": (0 * x, 0 * x)}[view["axis"]]
    seen = (across[:, None] == across) & (
        (along[:, None] - along).abs() <= view.get("span", 99) // 2
    )
    expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(layer(features), expected.mT.reshape(1, 6, 4, 5))


def test_value_features_enter_the_values_only(name):
    """With weights that do not depend on them, the output is linear in the value features."""
    layer = build_attention(name, 8, 6, num_heads=2, value_in_channels=3)
    features, one, two = draw(2, 8, 4, 5), 9 * draw(2, 3, 4, 5, seed=1), draw(2, 3, 4, 5, seed=2)
    mixed = layer(features, 2 * one - two)
    torch.testing.assert_close(
        mixed, 2 * layer(features, one) - layer(features, two), rtol=1e-4, atol=1e-4
    )
    constant = torch.ones(2, 3, 4, 5)
    torch.testing.assert_close(layer(features, constant), layer.value(constant))


def test_a_click_reaches_all_pixels_in_sight(name):
    layer = build_attention(name, 8, 6, value_in_channels=9, axis="width", span=5)
    features, clicks = draw(1, 8, 3, 9), torch.zeros(1, 1, 3, 9)
    before = layer(features, torch.cat([features, clicks], 1))
    clicks[0, 0, 1, 4] = 1.0
    after = layer(features, torch.cat([features, clicks], 1))
    changed = (after != before).any(1)[0]
    expected = torch.zeros(3, 9, dtype=torch.bool)
    expected[1, 2:7] = True
    assert torch.equal(changed, expected)


def test_features_decide_where_to_look(name):
    layer = build_attention(name, 8, 6, value_in_channels=3)
    values = draw(1, 3, 4, 5)
    assert (
        layer(draw(1, 8, 4, 5, seed=1), values) - layer(draw(1, 8, 4, 5), values)
    ).abs().max() > 0.1


def test_images_do_not_see_each_other(name):
    layer = build_attention(name, 8, 6, num_heads=2)
    features = draw(3, 8, 4, 5)
    whole = layer(features)
    for i in range(3):
        torch.testing.assert_close(layer(features[i : i + 1]), whole[i : i + 1])


def test_full_attention_follows_the_order_of_pixels(name):
    layer = build_attention(name, 8, 6, num_heads=2)
    features = draw(1, 8, 4, 5)
    torch.testing.assert_close(layer(features.flip(-1)), layer(features).flip(-1))
    torch.testing.assert_close(layer(features.mT), layer(features).mT)


def test_initial_logits_have_unit_variance():
    torch.manual_seed(0)
    layer = StandardAttention2d(256, 64, head_channels=64)
    features = draw(4, 256, 8, 8)
    queries, keys = layer.query(features).flatten(2), layer.key(features).flatten(2)
    logits = queries.mT @ keys / 8
    assert 0.8 < logits.std() < 1.25
    assert 0.8 < layer.value(features).std() < 1.25


def test_parameters_are_three_projections_without_bias(name):
    layer = build_attention(name, 8, 6, num_heads=2, head_channels=5, value_in_channels=11)
    shapes = {key: tuple(value.shape) for key, value in layer.state_dict().items()}
    assert shapes == {
        "query.weight": (10, 8, 1, 1),
        "key.weight": (10, 8, 1, 1),
        "value.weight": (6, 11, 1, 1),
    }


def test_options_reach_the_computation():
    features = draw(1, 8, 4, 5)
    base = ProbabilisticAttention2d(8, 6, num_heads=2, head_channels=4)
    outputs = [
        with_weights_of(base, "probabilistic", **options)(features)
        for options in (
            {},
            {"log_prior": "uniform"},
            {"log_prior": "uniform", "value_precision": 0.5, "value_iterations": 2},
            {"value_precision": 0.5},
            {"value_precision": 0.5, "value_iterations": 2},
            {"key_iterations": 3},
            {"key_prior": 0.5},
            {"key_prior": 0.5, "key_iterations": 3},
            {"log_prior": "key_magnitude", "value_precision": 0.5, "value_iterations": 2},
        )
    ]
    for i, one in enumerate(outputs):
        for other in outputs[:i]:
            assert (one - other).abs().max() > 1e-4


def test_under_autocast(name):
    layer = build_attention(name, 8, 6, num_heads=2)
    features = draw(1, 8, 4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(features)
    assert half.dtype == torch.bfloat16
    exact = layer(features)
    assert (half - exact).norm() / exact.norm() < 3e-2


def test_lookup():
    assert isinstance(build_attention("standard", 8, 6), StandardAttention2d)
    assert isinstance(build_attention("probabilistic", 8, 6), ProbabilisticAttention2d)
    with pytest.raises(UnknownNameError, match=r"unknown attention 'standart'.*'standard'"):
        build_attention("standart", 8, 6)


def test_layers_take_plain_values_by_keyword(name):
    parameters = list(inspect.signature(ATTENTIONS[name]).parameters.values())
    assert [p.name for p in parameters[:2]] == ["in_channels", "out_channels"]
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters[2:])


def test_wrong_arguments_are_named(name):
    with pytest.raises(
        ValueError, match="out_channels must be divisible by num_heads, got 6 and 4"
    ):
        build_attention(name, 8, 6, num_heads=4)
    with pytest.raises(ValueError, match="span applies to the axes"):
        build_attention(name, 8, 6, span=3)
    with pytest.raises(UnknownNameError, match="unknown axis"):
        build_attention(name, 8, 6, axis="diagonal")
    layer = build_attention(name, 8, 6, value_in_channels=3)
    with pytest.raises(ValueError, match=r"features must have 3 channels.*got 8"):
        layer(draw(1, 8, 4, 5))
