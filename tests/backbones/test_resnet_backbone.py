"""ResNets: strides, dilations and weights; those are random, nothing is downloaded."""

from functools import partial

import timm
import torch

from probseg.backbones import ResNet
from probseg.errors import UnknownNameError
from support.network_cases import assert_described
from support.refusals import refused
from support.rows import each

NAME = "resnet26.bt_in1k"
TINY = {"layers": [1, 1, 1, 3], "channels": [8, 16, 16, 16]}


def dilations(backbone: ResNet) -> list[int]:
    """Of the 3x3 convolutions of the last stage, from first to last."""
    found = []
    for block in backbone.last_stage():
        for convolution in (block.conv1, block.conv2):
            if convolution.kernel_size == (3, 3):
                assert convolution.padding == convolution.dilation
                found.append(convolution.dilation[0])
    return found


@each(
    ("output_stride", "multi_grid", "size"),
    [(8, None, (65, 97)), (16, (1, 2, 4), (33, 50)), (32, (1, 2, 4), (1, 1)), (32, None, (65, 97))],
)
def test_maps_have_the_described_channels_and_strides(output_stride, multi_grid, size):
    backbone = ResNet(NAME, False, output_stride, multi_grid, TINY).eval()
    assert backbone.features.channels == (64, 32, 64, 64, 64)
    assert backbone.features.strides == tuple(min(s, output_stride) for s in (2, 4, 8, 16, 32))
    assert_described(backbone, torch.randn(2, 3, *size))


@each(("output_stride", "expected"), [(8, [4, 8, 16]), (16, [2, 4, 8]), (32, [1, 2, 4])])
def test_multi_grid_dilates_as_deeplab(output_stride, expected):
    assert dilations(ResNet(NAME, False, output_stride, (1, 2, 4), TINY)) == expected


@each(("output_stride", "expected"), [(8, [2, 8, 16]), (16, [1, 4, 8]), (32, [1, 2, 4])])
def test_a_lagging_multi_grid_is_that_of_emanets_code(output_stride, expected):
    options = TINY | {"channels": [8, 16, 24, 32]}  # all stages begin with a projection
    backbone = ResNet(NAME, False, output_stride, (1, 2, 4), options, lagging=True)
    assert dilations(backbone) == expected
    with backbone.at_output_stride(8):
        assert dilations(backbone) == [2, 8, 16]


def test_multi_grid_dilates_both_convolutions_of_basic_blocks():
    assert dilations(ResNet("resnet18.a1_in1k", multi_grid=[1, 2])) == [1, 1, 2, 2]


def test_a_dilated_block_sees_further():
    changed = {}
    for grid in ([1, 1, 1], [1, 2, 4]):
        backbone = ResNet(NAME, False, 8, grid, TINY).eval()
        last = backbone.last_stage()[-1].conv2
        impulse = torch.zeros(1, last.in_channels, 65, 65)
        impulse[..., 32, 32] = 1
        changed[tuple(grid)] = last(impulse).abs().sum(1)[0].nonzero().unique().tolist()
    assert changed == {(1, 1, 1): [28, 32, 36], (1, 2, 4): [16, 32, 48]}


def test_without_multi_grid_it_is_the_network_of_timm():
    backbone = ResNet(NAME, output_stride=16, options=TINY).eval()
    plain = timm.create_model("resnet26", features_only=True, output_stride=16, **TINY).eval()
    plain.load_state_dict(backbone.network.state_dict())
    image = torch.randn(2, 3, 65, 97)
    for own, expected in zip(backbone(image), plain(image), strict=True):
        assert torch.equal(own, expected)


def test_wrong_arguments_are_named():
    for grid in [(1, 2), (1, 2, 4, 8), (), (1, 0, 4)]:
        refused(ValueError, partial(ResNet, NAME, multi_grid=grid, options=TINY), "multi_grid")
    refused(ValueError, partial(ResNet, NAME, output_stride=4), "output_stride", 4)
    for name in ("test_efficientnet", "hrnet_w18_small", "skresnet18"):
        refused(ValueError, partial(ResNet, name), "name", repr(name))
    refused(UnknownNameError, partial(ResNet, "resnet50.tv_in2k"), "resnet50")
