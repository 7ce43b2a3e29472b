"""Heads alone, the quality of an answer, and the tables of decoders and heads."""

import math
from functools import partial

import torch

from probseg.errors import UnknownNameError
from probseg.heads import (
    HEADS,
    ConvHead,
    CorrectiveSelfAttention,
    DeepLabV3PlusDecoder,
    FPNDecoder,
    GraphCut,
    MaskQuality,
    OCRDecoder,
    PromptPropagation,
    PromptStage,
    PyramidDecoder,
    SeparableHead,
    SimplePyramid,
)
from probseg.types import FeatureInfo
from support.network_cases import prompts
from support.refusals import refused
from support.rows import each
from support.testers import PYRAMID, HeadTester, built_by

INPUTS = FeatureInfo((6,), (4,))
PLAIN = FeatureInfo((12, 12, 12), (16, 16, 16))


class TestConvHead(HeadTester):
    build = ConvHead


class TestSeparableHead(HeadTester):
    build = SeparableHead
    arguments = {"channels": 8}


class TestAxial(HeadTester):
    build = CorrectiveSelfAttention
    arguments = {"channels": 8, "stride": 4}


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


@each(
    ("make", "parts"),
    [
        (partial(CorrectiveSelfAttention, INPUTS, stride=0), ["stride", 0]),
        (partial(CorrectiveSelfAttention, INPUTS, layout="diagonal"), ["layout", "diagonal"]),
        (partial(CorrectiveSelfAttention, INPUTS, num_heads=2, channels=9), ["num_heads", 9]),
        (
            partial(
                CorrectiveSelfAttention, INPUTS, propagation_iterations=1, attention="standard"
            ),
            ["propagation_iterations", 1],
        ),
        (partial(CorrectiveSelfAttention, INPUTS, attention="probabilistc"), ["'probabilistic'"]),
        *(
            (partial(kind, PYRAMID, stride=32), ["stride", 32])
            for kind in (DeepLabV3PlusDecoder, FPNDecoder, OCRDecoder)
        ),
        (partial(SimplePyramid, FeatureInfo((3, 4), (8, 16))), ["`inputs`", "PyramidDecoder"]),
        (partial(SimplePyramid, FeatureInfo((3,), (14,))), ["`inputs`", "patch_size 16"]),
        *((partial(SimplePyramid, PLAIN, wide), ["`widths`", [*wide]]) for wide in ((), (1,) * 5)),
        (partial(PyramidDecoder, PLAIN), ["`widths`", "(16, 16, 16)", "SimplePyramid"]),
        (partial(PromptStage, PYRAMID, 2, level=4), ["level", 4]),
        (partial(PromptStage, PYRAMID, 2, level=-1), ["level", -1]),
        (partial(PromptStage, PYRAMID, 2, attention="nobody"), ["attention"]),
        (partial(PromptStage, PYRAMID, 2, attention="standard", layout="nobody"), ["layout"]),
        (partial(PromptPropagation, INPUTS, units=0), ["`units`"]),
        (partial(GraphCut, units=0), ["`units`", 0]),
        (partial(GraphCut, smoothness=-0.1), ["`smoothness`", -0.1]),
        (partial(GraphCut, colour_weight=math.nan), ["`colour_weight`"]),
    ],
)
def test_wrong_arguments_are_named(make, parts):
    refused((ValueError, UnknownNameError), make, *parts)


def test_all_heads_are_tested():
    assert built_by(HeadTester) == {*HEADS.values()}


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
    for dtype in (torch.float64, torch.bfloat16):  # of the weights of a network
        assert MaskQuality(5).to(dtype)(features, logits, asked).dtype == torch.float32
    torch.testing.assert_close(predicted.double(), expected, rtol=1e-5, atol=1e-5)


def test_it_depends_on_features_clicks_and_its_own_image_only():
    features, logits, asked = case()
    part = trained()
    for level in (-60.0, 60.0):
        assert part(features, torch.full_like(logits, level), asked).isfinite().all()
    part(features.requires_grad_(), logits.requires_grad_(), asked).sum().backward()
    assert features.grad is None
    assert logits.grad is None
    assert all(parameter.grad.any() for parameter in part.parameters())
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
