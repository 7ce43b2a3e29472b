"""HRNetV2; weights are random, nothing is downloaded."""

import functools

import pytest
import timm
import torch
from safetensors.torch import save_file

from probseg.backbones import HRNetV2
from probseg.backbones.hrnet import WIDTHS
from probseg.errors import UnknownNameError
from support.network_cases import assert_all_learn, assert_arrived


@pytest.fixture(scope="module")
def backbone():
    return HRNetV2("18s").eval()


@pytest.mark.parametrize("size", [(65, 97), (36, 40), (64, 32), (1, 1)])
def test_any_size_is_that_of_the_padded_image(backbone, size):
    image = torch.randn(2, 3, *size)
    whole = [-(-n // 32) * 32 for n in size]
    padded = torch.zeros(2, 3, *whole)
    padded[..., : size[0], : size[1]] = image
    maps, expected = backbone(image), backbone.network(padded)
    for own, full, channels, stride in zip(maps, expected, *backbone.features[:2], strict=True):
        height, width = (-(-n // stride) for n in size)
        assert own.shape == (2, channels, height, width)
        assert torch.equal(own, full[..., :height, :width])


@pytest.mark.parametrize(("width", "first"), [("18s", 18), (32, 32)])
def test_channels_are_the_published_ones(width, first):
    with torch.device("meta"):
        backbone = HRNetV2(width)
    assert backbone.features.channels == (first, 2 * first, 4 * first, 8 * first)
    assert backbone.features.strides == (4, 8, 16, 32)


def test_all_widths_are_in_timm():
    assert set(WIDTHS.values()) <= set(timm.list_pretrained("hrnet*"))


def test_pretrained_weights_arrive_also_behind_a_prompt_stem(tmp_path, monkeypatch):
    weights = timm.create_model("hrnet_w18_small_v2").state_dict()
    save_file(weights, tmp_path / "weights.safetensors")
    overlay = {"file": str(tmp_path / "weights.safetensors")}
    create = functools.partial(timm.create_model, pretrained_cfg_overlay=overlay)
    monkeypatch.setattr(timm, "create_model", create)
    backbone = HRNetV2("18s", pretrained=True)
    classifier = {key for key in weights if key not in backbone.network.state_dict()}
    assert_arrived(backbone, weights, classifier)
    maps = backbone.train()(torch.randn(2, 6, 33, 34))
    sum((own * torch.randn_like(own)).mean() for own in maps).backward()
    assert_all_learn(backbone)


@pytest.mark.parametrize("width", ["19", "w18", 17])
def test_an_unknown_width_is_refused(width):
    with pytest.raises(UnknownNameError, match=f"HRNet width '{width}'"):
        HRNetV2(width)
