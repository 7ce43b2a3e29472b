"""timm networks with a stem for prompts; weights are random, nothing is downloaded."""

from functools import partial

import pytest
import timm
import timm.models._builder
import torch
from huggingface_hub.errors import HTTPError
from timm.layers import Conv2dSame
from torch import nn

from probseg.backbones import PromptStem, TimmBackbone, add_prompt_stem
from probseg.backbones.base import has_prompt_stem
from probseg.errors import UnknownNameError, WeightsError
from support.network_cases import assert_all_learn
from support.refusals import refused
from support.rows import each

MICRO = "test_resnet.r160_in1k"


def with_prompts(name: str, prompts: int = 3, **options) -> TimmBackbone:
    backbone = TimmBackbone(name, **options).eval()
    add_prompt_stem(backbone, prompts)
    return backbone


@each("name", [MICRO, "test_efficientnet", "test_convnext"])
def test_without_prompts_the_features_are_those_of_the_rgb_network(name):
    torch.manual_seed(1)
    plain = timm.create_model(name, pretrained=False, features_only=True).eval()
    backbone = with_prompts(name)
    weights = backbone.network.state_dict()
    for key, value in plain.state_dict().items():  # the stem alone has moved
        place = (
            key if key in weights else next(k for k in weights if k.replace(".rgb.", ".") == key)
        )
        weights[place].copy_(value)
    image = torch.randn(2, 3, 64, 96)
    maps = backbone(torch.cat([image, torch.zeros(2, 3, 64, 96)], dim=1))
    for got, expected in zip(maps, plain(image), strict=True):
        assert torch.equal(got, expected)


def test_stem_adds_the_convolution_of_the_prompts():
    rgb = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    stem = PromptStem(rgb, 2)
    x = torch.randn(1, 5, 9, 7)
    prompts = nn.functional.conv2d(x[:, 3:], stem.prompts.weight, stride=2, padding=1)
    torch.testing.assert_close(stem(x), rgb(x[:, :3]) + prompts)
    assert stem.prompts.bias is None
    assert stem.rgb is rgb
    stem(x).square().sum().backward()
    assert_all_learn(stem)


def test_stem_keeps_the_padding_of_special_convolutions():
    rgb = Conv2dSame(3, 4, 3, stride=2, bias=False)
    stem = PromptStem(rgb, 2)
    x = torch.randn(1, 5, 9, 8)
    assert stem(x).shape == rgb(x[:, :3]).shape == (1, 4, 5, 4)
    x[:, 3:] = 0
    assert torch.equal(stem(x), rgb(x[:, :3]))


def test_stem_goes_where_the_first_rgb_convolution_is():
    network = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 5, 1), nn.Conv2d(5, 3, 1)), nn.Conv2d(3, 2, 1)
    )
    add_prompt_stem(network, 2)
    assert isinstance(network[0][0], PromptStem)
    assert isinstance(network[1], nn.Conv2d)
    assert network(torch.zeros(1, 5, 4, 4)).shape == (1, 2, 4, 4)


def test_a_network_has_one_prompt_stem():
    network = TimmBackbone(MICRO)
    assert not has_prompt_stem(network)
    add_prompt_stem(network, 3)
    assert has_prompt_stem(nn.Sequential(network)), "in any part"
    refused(ValueError, lambda: add_prompt_stem(network, 3), "network", "TimmBackbone")
    assert [type(m) for m in network.modules()].count(PromptStem) == 1
    other = nn.Sequential(nn.Conv2d(4, 2, 1))
    refused(ValueError, lambda: add_prompt_stem(other, 3), "Sequential", "3 input channels")


STRIDED = [
    *((MICRO, n) for n in (0, 4, 12, 64)),
    ("hrnet_w18", 16),
    ("swin_tiny_patch4_window7_224", 8),
]


def test_output_strides_are_those_that_timm_can_dilate():
    for stride in (8, 16):
        backbone = TimmBackbone(MICRO, output_stride=stride)
        assert max(backbone.features.strides) == stride
        assert backbone(torch.zeros(2, 3, 64, 64))[-1].shape[-1] == 64 // stride
    for name, stride in STRIDED:
        refused(
            ValueError, partial(TimmBackbone, name, output_stride=stride), "`output_stride`", stride
        )


@each(
    ("name", "pretrained", "parts"),
    [
        ("resnet5o", False, ["'resnet5o'", "'resnet50'"]),
        ("resnet18.a1_in1q", False, ["'resnet18.a1_in1q'", "'resnet18.a1_in1k'"]),
        ("resnet50", True, ["'resnet50'", "resnet50.a1_in1k"]),
        ("botnet50ts_256", True, ["'botnet50ts_256'", "pretrained=False"]),
        ("nf_regnet_b0", True, ["'nf_regnet_b0'", "pretrained=False"]),
    ],
)
def test_names_that_mean_no_weights_get_the_way_out(name, pretrained, parts):
    error = ValueError if pretrained else UnknownNameError
    refused(error, lambda: TimmBackbone(name, pretrained), *parts)


@pytest.mark.parametrize("kind", [OSError, HTTPError])
def test_why_weights_could_not_be_fetched_is_said(kind, monkeypatch, tmp_path):
    options = {"cache_dir": tmp_path}
    TimmBackbone(MICRO, options=options)
    assert not list(tmp_path.iterdir())  # as the tests are offline
    parts = ("`pretrained`", repr(MICRO), "backbone.pretrained to false", "HF_HOME")
    refused(WeightsError, lambda: TimmBackbone(MICRO, True, options=options), *parts)
    why = "the connection broke off"

    def refuse(*arguments, **options):
        raise kind(why)

    monkeypatch.setattr(timm.models._builder, "load_pretrained", refuse)
    refused(WeightsError, lambda: TimmBackbone(MICRO, pretrained=True), why)
    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(kind, match=why) as caught:  # no weights were asked for
        TimmBackbone(MICRO)
    assert type(caught.value) is kind
