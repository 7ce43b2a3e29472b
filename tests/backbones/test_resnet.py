"""ResNets: strides, dilations and weights; those are random, nothing is downloaded."""

from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention import Attention2d
from probseg.backbones import BoTNet, HRNetV2, ResNet
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
    assert dilations(backbone) == expected
    assert dilations(ResNet("resnet18.a1_in1k", multi_grid=[1, 2])) == [1, 1, 2, 2]


def test_without_multi_grid_it_is_the_network_of_timm():
    backbone = ResNet(NAME, output_stride=16, options=TINY).eval()
    plain = timm.create_model("resnet26", features_only=True, output_stride=16, **TINY).eval()
    plain.load_state_dict(backbone.network.state_dict())
    image = torch.randn(2, 3, 65, 97)
    for own, expected in zip(backbone(image), plain(image), strict=True):
        assert torch.equal(own, expected)


TINY_BOTNET = {"layers": [1, 1, 1, 2], "channels": [8, 16, 16, 32]}
LAYOUTS = ["full", "axial"]


def botnet(options: dict | None = None, **arguments) -> BoTNet:
    return BoTNet(NAME, options={**TINY_BOTNET, **(options or {})}, image_size=64, **arguments)


def layers(backbone: nn.Module) -> list[Attention2d]:
    return [module for module in backbone.modules() if isinstance(module, Attention2d)]


def halve(x: Tensor) -> Tensor:
    """Average 2x2 pixels, at the border those that there are."""
    height, width = x.shape[-2:]
    x = F.pad(x, (0, width % 2, 0, height % 2), value=torch.nan)
    return x.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).nanmean((-3, -1))


@each("layout", LAYOUTS)
@each("size", [(5, 7), (4, 4), (6, 3), (1, 1)])
def test_blocks_attend_and_the_first_one_halves(layout, size):
    backbone = botnet(layout=layout).double()
    axes = {"full": ["full"], "axial": ["height", "width"]}[layout]
    first, later = (block.conv2 for block in backbone.last_stage())
    assert [layer.axis for layer in layers(first)] == [layer.axis for layer in later] == axes
    x = torch.randn(2, 32, *size, dtype=torch.float64)
    expected = x
    for layer in layers(first):
        expected = layer(expected)
    torch.testing.assert_close(first(x), halve(expected))
    convolution = nn.Conv2d(32, 32, 3, stride=2, padding=1).double()
    assert first(x).shape == convolution(x).shape


@each(("stride", "sides"), [(32, [4, 2]), (16, [4, 4]), (8, [8, 8])])
def test_embeddings_are_for_the_map_that_a_block_sees(stride, sides):
    backbone = botnet(position="full", output_stride=stride)
    seen = []
    for layer in layers(backbone):
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-1]))
    backbone.eval()(torch.zeros(1, 3, 64, 64))
    assert seen == sides
    for layer, side in zip(layers(backbone), sides, strict=True):
        assert layer.position.query.shape == (2 * side - 1, 2 * side - 1, 8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_probabilistic_without_adaptation_is_standard(layout):
    standard = botnet(layout=layout).eval()
    other = botnet(layout=layout, attention="probabilistic").eval()
    other.load_state_dict(standard.state_dict())
    image = torch.randn(2, 3, 65, 97)
    torch.testing.assert_close(other(image)[-1], standard(image)[-1], atol=1e-4, rtol=1e-4)


@each(
    ("make", "parts"),
    [
        *(
            (partial(ResNet, NAME, multi_grid=grid, options=TINY), ["multi_grid"])
            for grid in [(1, 2), (1, 2, 4, 8), (1, 0, 4)]
        ),
        (partial(ResNet, NAME, output_stride=4), ["output_stride", 4]),
        *(
            (partial(ResNet, name), ["name", repr(name)])
            for name in ("test_efficientnet", "hrnet_w18_small", "skresnet18")
        ),
        (partial(ResNet, "resnet50.tv_in2k"), ["resnet50"]),
        *(
            (partial(botnet, **{key: "ful1"}), [f"{key} 'ful1'"])
            for key in ("attention", "layout", "position")
        ),
        (partial(botnet, num_heads=5), ["num_heads", 5]),
        (partial(botnet, num_heads=0), ["num_heads", 0]),
        (partial(BoTNet, image_size=0), ["image_size", 0]),
        (partial(BoTNet, "resnet18.a1_in1k"), ["name", "'resnet18.a1_in1k'"]),
        (partial(HRNetV2, 17), ["HRNet width '17'"]),
    ],
)
def test_wrong_arguments_are_named(make, parts):
    refused((ValueError, UnknownNameError), make, *parts)
