"""HRNetV2; weights are random, nothing is downloaded."""

import pytest
import timm
import torch

from probseg.backbones import HRNetV2
from probseg.backbones.hrnet import WIDTHS
from probseg.errors import UnknownNameError
from support.rows import each


@pytest.fixture(scope="module")
def backbone():
    return HRNetV2("18s").eval()


@each("size", [(65, 97), (36, 40), (64, 32), (1, 1)])
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


@each("width", ["19", "w18", 17])
def test_an_unknown_width_is_refused(width):
    with pytest.raises(UnknownNameError, match=f"HRNet width '{width}'"):
        HRNetV2(width)
