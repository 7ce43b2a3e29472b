"""ResNets: strides, dilations and weights; those are random, nothing is downloaded."""

from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention import Attention2d
from probseg.backbones import BoTNet, ResNet
from probseg.errors import UnknownNameError
from support.network_cases import assert_all_learn, assert_described, opened
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


def test_key_adaptation_can_be_switched_on_for_trained_weights():
    plain = botnet(attention="probabilistic").eval()
    options = {"key_iterations": 1, "key_prior": 0.001, "learn_priors": False}
    adapted = botnet(attention="probabilistic", attention_options=options).eval()
    adapted.load_state_dict(plain.state_dict())
    for block in (*plain.last_stage(), *adapted.last_stage()):
        nn.init.ones_(block.bn3.weight)  # timm starts with blocks that add nothing
    image = torch.randn(2, 3, 65, 97)
    before, after = plain(image), adapted(image)
    assert torch.equal(before[-2], after[-2])
    assert (before[-1] - after[-1]).abs().max() > 1e-3


@each(
    ("attention", "layout", "position", "stride", "size"),
    [
        ("standard", "full", "factored", 8, (65, 97)),
        ("standard", "axial", "full", 32, (33, 50)),
        ("standard", "axial", None, 16, (65, 97)),
        ("probabilistic", "full", None, 32, (65, 97)),
        ("probabilistic", "full", "full", 16, (33, 50)),
        ("probabilistic", "axial", "factored", 8, (33, 50)),
    ],
)
def test_maps_and_gradients(attention, layout, position, stride, size):
    parts = {"attention": attention, "layout": layout, "position": position}
    backbone = opened(botnet(**parts, output_stride=stride))
    assert backbone.features.strides == tuple(min(s, stride) for s in (2, 4, 8, 16, 32))
    image = torch.randn(2, 3, *size)
    assert_described(backbone, image)
    sum((own * torch.randn_like(own)).mean() for own in backbone(image)).backward()
    assert_all_learn(backbone)


def test_botnet50_has_the_published_number_of_parameters():
    backbone = BoTNet("resnet50.tv_in1k")
    parameters = [*backbone.parameters(), *nn.Linear(2048, 1000).parameters()]
    assert sum(p.numel() for p in parameters) == pytest.approx(20.8e6, rel=0.01)
    assert [layer.position.query_height.shape[0] for layer in layers(backbone)] == [31, 15, 15]


def test_wrong_arguments_of_botnet_are_named():
    for key in ("attention", "layout", "position"):
        refused(UnknownNameError, partial(botnet, **{key: "ful1"}), f"{key} 'ful1'")
    for arguments in ({"num_heads": 5}, {"num_heads": 0}, {"output_stride": 4}):
        (name,) = arguments
        refused(ValueError, partial(botnet, **arguments), name, arguments[name])
    refused(ValueError, partial(BoTNet, image_size=0), "image_size", 0)
    refused(ValueError, partial(BoTNet, "resnet18.a1_in1k"), "name", "'resnet18.a1_in1k'")
