"""Heads alone, the quality of an answer, and the tables of decoders and heads."""

import pytest
import torch

from probseg.errors import UnknownNameError
from probseg.heads import (
    DECODERS,
    HEADS,
    ConvHead,
    CorrectiveSelfAttention,
    Decoder,
    Head,
    MaskQuality,
    SeparableHead,
)
from probseg.types import FeatureInfo
from support.network_cases import prompts
from support.refusals import refused
from support.rows import each
from support.testers import HeadTester, built_by

INPUTS = FeatureInfo((6,), (4,))


class TestConvHead(HeadTester):
    build = ConvHead


class TestSeparableHead(HeadTester):
    build = SeparableHead
    arguments = {"channels": 8}


class TestAxial(HeadTester):
    build = CorrectiveSelfAttention
    arguments = {"channels": 8, "stride": 4}


class TestSeveralHeads(HeadTester):
    build = CorrectiveSelfAttention
    arguments = {"channels": 8, "num_heads": 2, "stride": 4, "span": None}


class TestFull(HeadTester):
    build = CorrectiveSelfAttention
    arguments = {"channels": 8, "layout": "full", "stride": 8, "propagation_iterations": 2}


class TestStandard(HeadTester):
    build = CorrectiveSelfAttention
    arguments = {"channels": 8, "attention": "standard", "span": 5}


class TestOptions(HeadTester):
    build = CorrectiveSelfAttention
    arguments = {
        "channels": 8,
        "stride": 4,
        "options": {"key_iterations": 2, "value_precision": 1.0},
    }


def test_tables():
    assert built_by(HeadTester) == {*HEADS.values()}
    assert all(issubclass(part, Head) for part in HEADS.values())
    assert all(issubclass(part, Decoder) for part in DECODERS.values())
    assert all(part.__name__ == name for name, part in {**HEADS, **DECODERS}.items())


def test_conv_head_is_a_dot_product_enlarged():
    head = ConvHead(INPUTS)
    features = torch.randn(1, 6, 5, 7)
    logits = head(features, torch.zeros(1, 2, 5, 7))
    weight = head.logit.weight.view(6, 1, 1)
    torch.testing.assert_close(logits[0, 0], (features[0] * weight).sum(0) + head.logit.bias)


@each(
    ("attention", "layout"),
    [("standard", "axial"), ("standard", "full"), ("probabilistic", "axial")],
)
def test_one_clicked_pixel_is_seen_elsewhere(attention, layout):
    # Attention must carry the click away from its place.
    arguments = {"attention": attention, "layout": layout, "channels": 8, "stride": 8, "span": None}
    head = CorrectiveSelfAttention(INPUTS, **arguments).eval()
    features, nothing = torch.randn(1, 6, 12, 12), torch.zeros(1, 2, 48, 48)
    for channel in (0, 1):
        clicks = nothing.clone()
        clicks[0, channel, 3, 5] = 1
        change = (head(features, clicks) - head(features, nothing))[0, 0].abs()
        assert change[3, 5] > 0
        assert change[40, 40] > 0


def test_a_coarse_grid_keeps_clicks_at_full_strength():
    head = CorrectiveSelfAttention(INPUTS, channels=8, stride=8).eval()
    seen = []
    head.last.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[1]))
    clicks = torch.zeros(1, 2, 48, 40)
    clicks[0, 1, 17, 39] = 1
    head(torch.randn(1, 6, 12, 10), clicks)
    positive, negative = seen[0][-1][0]
    assert not positive.any()
    assert negative.nonzero().tolist() == [[2, 4]]
    assert negative[2, 4] == 1


def test_axial_blocks_are_densely_connected_along_height_then_width():
    head = CorrectiveSelfAttention(INPUTS, channels=8)
    assert (head.height.axis, head.last.axis) == ("height", "width")
    assert head.last.query.in_channels == 16  # the bottleneck's 8 and the first block's 8
    assert head.last.value.in_channels == 18  # and two click maps
    assert CorrectiveSelfAttention(INPUTS, layout="full").height is None


@each(
    "arguments",
    [
        {"stride": 0},
        {"layout": "diagonal"},
        {"num_heads": 0},
        {"num_heads": 2, "channels": 9},
        {"propagation_iterations": 1, "attention": "standard"},
    ],
)
def test_wrong_arguments_are_named(arguments):
    name, value = next(iter(arguments.items()))
    refused(ValueError, lambda: CorrectiveSelfAttention(INPUTS, **arguments), name, value)


def test_an_unknown_attention_gives_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'probabilistc'.*'probabilistic'"):
        CorrectiveSelfAttention(INPUTS, attention="probabilistc")


SIZE, GRID = (24, 40), (6, 10)


def case(batch=3, seed=0):
    torch.manual_seed(seed)
    features = torch.randn(batch, 5, *GRID)
    logits = 2 * torch.randn(batch, 1, *SIZE) + torch.linspace(-3, 1, batch).view(-1, 1, 1, 1)
    return features, logits, prompts((3, 4, 1), (9, 9, 0), (0, 0, -1), batch=batch)


def trained():
    """The part with weights that correct something."""
    torch.manual_seed(1)
    part = MaskQuality(5, channels=4, hidden=8)
    torch.nn.init.normal_(part.layers[-1].weight)
    return part


def test_before_a_training_it_is_the_expected_iou_of_independent_pixels():
    features, logits, asked = case()
    p = logits.double().sigmoid().flatten(1)
    inside = p > 0.5
    hit = (p * inside).sum(dim=1)
    expected = hit / (inside.sum(dim=1) + (p * ~inside).sum(dim=1))
    predicted = MaskQuality(5)(features, logits, asked).sigmoid()
    torch.testing.assert_close(predicted.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", [-60.0, 60.0])
def test_empty_and_full_answers_have_finite_logits(level):
    features, logits, asked = case()
    assert trained()(features, torch.full_like(logits, level), asked).isfinite().all()


def test_it_learns_without_a_gradient_for_features_and_answer():
    features, logits, asked = case()
    part = trained()
    part(features.requires_grad_(), logits.requires_grad_(), asked).sum().backward()
    assert features.grad is None
    assert logits.grad is None
    assert all(parameter.grad.any() for parameter in part.parameters())


def test_it_depends_on_features_clicks_and_its_own_image_only():
    features, logits, asked = case()
    part = trained()
    with torch.no_grad():
        together = part(features, logits, asked)
        alone = part(features[1:2], logits[1:2], asked.at(slice(1, 2)))
        other = part(features + 1, logits, asked)
        fewer = part(features, logits, prompts((3, 4, 1), batch=3))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = part(features, logits, asked)
    torch.testing.assert_close(alone, together[1:2])
    torch.testing.assert_close(half, together)
    for changed in (other, fewer):
        assert not torch.isclose(changed, together, rtol=1e-3).any()


def test_features_outside_of_the_mask_count():
    logits = torch.full((1, 1, 32, 32), -20.0)
    logits[..., 8:16, 8:16] = 20.0
    part, nobody = trained(), prompts((3, 4, 1), batch=1)
    features = torch.randn(1, part.embed.in_channels - 1, 16, 16)
    other = features.clone()
    other[..., 12:, 12:] += 3  # far from the mask and its contour
    assert not torch.isclose(part(other, logits, nobody), part(features, logits, nobody)).any()
