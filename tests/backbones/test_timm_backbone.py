"""timm networks with a stem for prompts; weights are random, nothing is downloaded."""

import re

import pytest
import timm
import timm.models._builder
import torch
from huggingface_hub.errors import HTTPError
from timm.layers import Conv2dSame
from torch import nn

from probseg.backbones import BACKBONES, Backbone, PromptStem, TimmBackbone, add_prompt_stem
from probseg.backbones.stem import has_prompt_stem
from probseg.errors import UnknownNameError, WeightsError

MICRO = "test_resnet.r160_in1k"
SIZES = [(1, 1), (2, 5), (37, 53), (64, 96)]


def with_prompts(name: str, prompts: int = 3, **options) -> TimmBackbone:
    backbone = TimmBackbone(name, **options).eval()
    add_prompt_stem(backbone, prompts)
    return backbone


@pytest.fixture(scope="module")
def backbone():
    return with_prompts(MICRO)


def test_the_table_holds_backbones():
    assert set(BACKBONES) == {"BoTNet", "HRNetV2", "ResNet", "TimmBackbone"}
    assert all(issubclass(part, Backbone) for part in BACKBONES.values())
    assert all(part.__name__ == name for name, part in BACKBONES.items())


@pytest.mark.parametrize("name", [MICRO, "test_efficientnet", "test_convnext"])
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


@pytest.mark.parametrize("channel", [3, 4, 5])
def test_each_click_map_changes_the_features(backbone, channel):
    x = torch.zeros(1, 6, 32, 32)
    before = backbone(x)
    x[:, channel, 8:16, 8:16] = 1
    for a, b in zip(before, backbone(x), strict=True):
        assert not torch.equal(a, b)


@pytest.mark.parametrize("size", SIZES)
def test_maps_have_the_described_channels_and_strides(backbone, size):
    maps = backbone(torch.randn(2, 6, *size))
    assert len(maps) == len(backbone.features.channels) == len(backbone.features.strides)
    assert list(backbone.features.strides) == sorted(backbone.features.strides)
    for own, channels, stride in zip(maps, *backbone.features, strict=True):
        assert own.shape == (2, channels, -(-size[0] // stride), -(-size[1] // stride))


@pytest.mark.parametrize("stride", [8, 16])
def test_output_stride(stride):
    backbone = TimmBackbone(MICRO, output_stride=stride)
    assert max(backbone.features.strides) == stride
    assert backbone(torch.zeros(2, 3, 64, 64))[-1].shape[-1] == 64 // stride


def test_normalisation_is_that_of_the_weights(backbone):
    config = timm.get_pretrained_cfg(MICRO)
    assert backbone.mean == config.mean
    assert backbone.std == config.std


@pytest.mark.parametrize("prompts", [1, 2, 5])
def test_number_of_click_maps(prompts):
    backbone = with_prompts(MICRO, prompts)
    assert backbone(torch.randn(1, 3 + prompts, 32, 32))[0].isfinite().all()


def test_stem_adds_the_convolution_of_the_prompts():
    rgb = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    stem = PromptStem(rgb, 2)
    x = torch.randn(1, 5, 9, 7)
    prompts = nn.functional.conv2d(x[:, 3:], stem.prompts.weight, stride=2, padding=1)
    torch.testing.assert_close(stem(x), rgb(x[:, :3]) + prompts)
    assert stem.prompts.bias is None
    assert stem.rgb is rgb


def test_stem_keeps_the_padding_of_special_convolutions():
    rgb = Conv2dSame(3, 4, 3, stride=2, bias=False)
    stem = PromptStem(rgb, 2)
    x = torch.randn(1, 5, 9, 8)
    assert stem(x).shape == rgb(x[:, :3]).shape == (1, 4, 5, 4)
    x[:, 3:] = 0
    assert torch.equal(stem(x), rgb(x[:, :3]))


def test_stem_leaves_the_rgb_weights_and_trains_both():
    rgb = nn.Conv2d(3, 4, 3)
    weight = rgb.weight.clone()
    stem = PromptStem(rgb, 2)
    assert torch.equal(stem.rgb.weight, weight)
    assert stem.prompts.weight.shape == (4, 2, 3, 3)
    assert stem.prompts.weight.std() > 0.1
    stem(torch.ones(1, 5, 4, 4)).sum().backward()
    assert stem.rgb.weight.grad.abs().sum() > 0
    assert stem.prompts.weight.grad.abs().sum() > 0


def test_stem_goes_where_the_first_rgb_convolution_is():
    network = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 5, 1), nn.Conv2d(5, 3, 1)), nn.Conv2d(3, 2, 1)
    )
    add_prompt_stem(network, 2)
    assert isinstance(network[0][0], PromptStem)
    assert isinstance(network[1], nn.Conv2d)
    assert network(torch.zeros(1, 5, 4, 4)).shape == (1, 2, 4, 4)


def test_a_network_without_rgb_convolution_is_refused():
    with pytest.raises(ValueError, match="Sequential has no convolution with 3 input channels"):
        add_prompt_stem(nn.Sequential(nn.Conv2d(4, 2, 1)), 3)


def test_a_network_has_one_prompt_stem():
    network = TimmBackbone(MICRO)
    assert not has_prompt_stem(network)
    add_prompt_stem(network, 3)
    assert has_prompt_stem(network)
    assert has_prompt_stem(nn.Sequential(network)), "in any part"
    with pytest.raises(ValueError, match="no prompt stem yet, got a TimmBackbone with one"):
        add_prompt_stem(network, 3)
    assert [type(m) for m in network.modules()].count(PromptStem) == 1


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("resnet5o", "resnet50"), ("resnet18.a1_in1q", "resnet18.a1_in1k")],
)
def test_an_unknown_name_gives_the_nearest(name, nearest):
    with pytest.raises(UnknownNameError) as caught:
        TimmBackbone(name)
    assert name in str(caught.value)
    assert repr(nearest) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("resnet50", "write resnet50.a1_in1k"),
        ("botnet50ts_256", "set pretrained=False"),
        ("nf_regnet_b0", "set pretrained=False"),
    ],
)
def test_weights_to_load_must_be_named(name, way_out):
    with pytest.raises(ValueError, match=f"'{name}'; .*{re.escape(way_out)}"):
        TimmBackbone(name, pretrained=True)


def test_only_pretrained_networks_look_for_weights(tmp_path):
    options = {"cache_dir": tmp_path}
    TimmBackbone(MICRO, options=options)
    assert not list(tmp_path.iterdir())
    with pytest.raises(WeightsError) as caught:  # as the tests are offline
        TimmBackbone(MICRO, pretrained=True, options=options)
    for part in ("pretrained=True", f"'{MICRO}'", "backbone.pretrained to false", "HF_HOME"):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", [OSError, HTTPError])
def test_why_weights_could_not_be_fetched_is_told(kind, monkeypatch):
    why = "the connection broke off"

    def refuse(*arguments, **options):
        raise kind(why)

    monkeypatch.setattr(timm.models._builder, "load_pretrained", refuse)
    with pytest.raises(WeightsError, match=r"fetched \(the connection broke off\)"):
        TimmBackbone(MICRO, pretrained=True)


def test_without_pretrained_weights_other_errors_are_not_taken_for_theirs(monkeypatch):
    why = "no space left"

    def refuse(*arguments, **options):
        raise OSError(why)

    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(OSError, match=why) as caught:
        TimmBackbone(MICRO)
    assert type(caught.value) is OSError


@pytest.mark.parametrize("output_stride", [0, 4, 12, 64])
def test_other_output_strides_are_refused(output_stride):
    with pytest.raises(ValueError, match=rf"output_stride .*\(8, 16, 32\), got {output_stride}"):
        TimmBackbone(MICRO, output_stride=output_stride)


@pytest.mark.parametrize("name", ["hrnet_w18", "swin_tiny_patch4_window7_224"])
def test_networks_without_the_choice_of_output_stride_are_refused(name):
    with pytest.raises(ValueError, match=f"output_stride must be 32 for '{name}'.* got 16"):
        TimmBackbone(name, output_stride=16)


def test_other_wrong_options_keep_their_own_error():
    with pytest.raises(TypeError, match="deeth"):
        TimmBackbone(MICRO, output_stride=16, options={"deeth": 3})
