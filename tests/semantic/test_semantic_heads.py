"""Heads of semantic segmentation: shapes, gradients and the size that Li et al. (2019) give."""

import pytest
import torch
from torch import nn

from probseg.errors import UnknownNameError
from probseg.lab.gauges import count_multiply_adds
from probseg.semantic import DeepLabV3Head, EMAHead, FCNHead, SemanticHead, semantic_variant
from probseg.types import FeatureInfo
from support.network_cases import maps_of

PYRAMID = FeatureInfo((4, 5, 6), (2, 4, 8))


@pytest.mark.parametrize("kind", [EMAHead, FCNHead, DeepLabV3Head])
def test_logits_are_those_of_the_coarsest_map(kind):
    head = kind(PYRAMID, num_classes=7, channels=8)
    assert isinstance(head, SemanticHead)
    assert head.num_classes == 7
    if isinstance(head, EMAHead):  # new ones are the identity
        nn.init.ones_(head.emau.leave[1].weight)
    given = [one.requires_grad_() for one in maps_of(PYRAMID, 2, 72, 72)]
    logits = head(given)
    assert logits.shape == (2, 7, 9, 9)
    logits.square().sum().backward()
    assert given[-1].grad.abs().max() > 0
    assert given[0].grad is None
    for parameter in head.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_the_released_head_narrows_the_features_before_it_classifies():
    head = EMAHead(PYRAMID, num_classes=3, channels=8, num_bases=5, released=True)
    head = head.double().eval()
    given = [one.double() for one in maps_of(PYRAMID, 2, 72, 72)]
    conv, norm, _ = head.narrow
    assert conv.weight.shape == (4, 8, 3, 3)
    x = head.emau(head.reduce(given[-1]))
    x = nn.functional.conv2d(x, conv.weight, padding=1)
    x = nn.functional.batch_norm(
        x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
    )
    wanted = nn.functional.conv2d(x.relu(), head.classify.weight, head.classify.bias)
    torch.testing.assert_close(head(given), wanted)
    head.train()
    seen = []
    head.classify.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for _ in range(30):
        head(given)
    dropped = (torch.stack(seen) == 0).flatten(3).all(dim=-1)  # whole channels
    assert 0 < dropped.double().mean() < 0.5


def test_the_released_head_has_the_size_of_the_code():
    with torch.device("meta"):
        head = EMAHead(FeatureInfo((2048,), (8,)), num_classes=21, released=True)
    count = sum(weight.numel() for weight in head.parameters())  # without the bases
    assert count / 1e6 == pytest.approx(11.15, abs=0.005)


def test_dropout_is_for_training():
    head = FCNHead(PYRAMID, num_classes=3, channels=8, dropout=0.5)
    given = maps_of(PYRAMID, 2, 72, 72)
    assert not torch.equal(head(given), head(given))
    head.eval()
    assert torch.equal(head(given), head(given))


def test_arguments_of_the_unit_arrive():
    head = EMAHead(
        PYRAMID,
        num_classes=3,
        channels=8,
        num_bases=5,
        bases="learnt",
        normalisation=None,
        train_iterations=1,
        eval_iterations=6,
        scale=0.5,
        momentum=0.7,
    )
    bases = head.emau.bases
    assert bases.initial.shape == (1, 5, 8)
    assert (bases.update, bases.normalisation, bases.momentum) == ("learnt", None, 0.7)
    assert (bases.train_iterations, bases.eval_iterations, head.emau.scale) == (1, 6, 0.5)
    assert EMAHead(PYRAMID, bases="pixels").emau.bases is None


def test_responsibilities_are_those_of_the_unit():
    head, given = EMAHead(PYRAMID, channels=8, num_bases=5).eval(), maps_of(PYRAMID, 2, 72, 72)
    shares = head.responsibilities(given)
    assert shares.shape == (2, 5, 9, 9)
    torch.testing.assert_close(shares.sum(1), torch.ones(2, 9, 9))
    assert torch.equal(shares, head.emau.responsibilities(head.reduce(given[-1])))


@pytest.mark.parametrize("head", [FCNHead, EMAHead, DeepLabV3Head])
def test_wrong_arguments_are_named(head):
    with pytest.raises(ValueError, match=r"`num_classes` .*got 1"):
        head(PYRAMID, num_classes=1)
    with pytest.raises(UnknownNameError, match="'pixel'"):
        EMAHead(PYRAMID, bases="pixel")


def weights(module) -> int:
    """All that is stored and used: the bases are a buffer."""
    bases = [tensor for name, tensor in module.named_buffers() if name.endswith("bases.initial")]
    return sum(tensor.numel() for tensor in [*module.parameters(), *bases])


DEEP_STEM = {"options": {"stem_type": "deep", "stem_width": 64}}
"""Three 3x3 convolutions, which the published figures of the backbone are those of."""


@pytest.mark.parametrize(
    ("stem", "channels", "millions", "giga"),
    [(DEEP_STEM, 512, 10.0, 43.1), ({}, 256, 4.87, 21.1)],
)
def test_emanet_is_as_large_as_published(stem, channels, millions, giga):
    """Tab. 1: at 513 pixels and output stride 8; multiply-adds, classifier of 21 classes."""
    with torch.device("meta"), torch.no_grad():
        changes = {"backbone": stem, "head": {"channels": channels}}
        model = semantic_variant("emanet_resnet101", changes).eval()
        image = torch.empty(1, 3, 513, 513)
        maps = model.backbone(image)
        of_backbone = count_multiply_adds(lambda: model.backbone(image)) / 1e9
        of_head = count_multiply_adds(lambda: model.head(maps)) / 1e9
    assert maps[-1].shape == (1, 2048, 65, 65)
    if stem:
        assert weights(model.backbone) / 1e6 == pytest.approx(42.6, rel=0.02)
        assert of_backbone == pytest.approx(190.6, rel=0.02)
    else:  # the preset as it is has the stem of torchvision's weights
        assert weights(model.backbone) / 1e6 == pytest.approx(42.50, abs=0.005)
        assert of_backbone == pytest.approx(182.75, abs=0.005)
    assert weights(model.head) / 1e6 == pytest.approx(millions, rel=0.02)
    assert of_head == pytest.approx(giga, rel=0.02)


def test_deeplabv3_is_as_large_as_published():
    """Tab. 1: + 15.5 M weights and + 63.4 G multiply-adds."""
    with torch.device("meta"), torch.no_grad():
        head = DeepLabV3Head(FeatureInfo((2048,), (8,))).eval()
        maps = [torch.empty(1, 2048, 65, 65)]
        giga = count_multiply_adds(lambda: head(maps)) / 1e9
    assert [conv[0].dilation[0] for conv in head.pyramid.atrous] == [12, 24, 36]
    assert weights(head) / 1e6 == pytest.approx(15.5, rel=0.01)
    assert giga == pytest.approx(63.4, rel=0.01)
