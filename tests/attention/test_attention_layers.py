"""The attention layers as modules."""

import pytest
import torch

from probseg.attention import (
    Attention2d,
    ProbabilisticAttention2d,
    StandardAttention2d,
    build_attention,
)
from probseg.errors import UnknownNameError
from support.network_cases import draw
from support.rows import each

VIEWS = [
    {"axis": "full"},
    {"axis": "height"},
    {"axis": "width"},
    {"axis": "height", "span": 3},
    {"axis": "width", "span": 2},
]


@pytest.fixture(params=["standard", "probabilistic"])
def name(request) -> str:
    return request.param


def with_weights_of(layer: Attention2d, name: str, **options) -> Attention2d:
    """Another layer with the same projections."""
    other = build_attention(name, 8, 6, num_heads=2, head_channels=4, **options)
    other.load_state_dict(layer.state_dict())
    return other


@each("view", VIEWS)
def test_without_adaptation_it_is_the_standard_layer(view):
    standard = StandardAttention2d(8, 6, num_heads=2, head_channels=4, **view)
    plain = with_weights_of(standard, "probabilistic", key_iterations=0, **view)
    adapted = with_weights_of(standard, "probabilistic", **view)
    features = draw(2, 8, 5, 7)
    assert torch.equal(plain(features), standard(features))
    assert (adapted(features) - standard(features)).abs().max() > 1e-3


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


def test_lookup():
    assert isinstance(build_attention("standard", 8, 6), StandardAttention2d)
    assert isinstance(build_attention("probabilistic", 8, 6), ProbabilisticAttention2d)
    with pytest.raises(UnknownNameError, match=r"unknown attention 'standart'.*'standard'"):
        build_attention("standart", 8, 6)


def test_wrong_arguments_are_named(name):
    with pytest.raises(ValueError, match="out_channels"):
        build_attention(name, 8, 6, num_heads=4)
    with pytest.raises(ValueError, match="`span`"):
        build_attention(name, 8, 6, span=3)
    with pytest.raises(UnknownNameError, match="unknown axis"):
        build_attention(name, 8, 6, axis="diagonal")
    layer = build_attention(name, 8, 6, value_in_channels=3)
    with pytest.raises(ValueError, match="features"):
        layer(draw(1, 8, 4, 5))
