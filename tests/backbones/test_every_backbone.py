"""What holds for every backbone."""

from functools import cache, partial

import pytest
import timm
import torch

from probseg.backbones import BACKBONES, BoTNet, HRNetV2, ResNet, TimmBackbone
from probseg.backbones.hrnet import WIDTHS
from probseg.heads import ConvHead, FPNDecoder
from probseg.models import Segmenter
from support.network_cases import assert_all_learn, assert_described, prompts
from support.refusals import refused
from support.rows import each
from support.testers import BackboneTester, built_by

TINY = {"layers": [1, 1, 1, 2], "channels": [8, 16, 16, 32]}
SMALL_RESNET = {"name": "resnet26.bt_in1k", "options": TINY}


class TestBoTNet(BackboneTester):
    build = BoTNet
    arguments = {**SMALL_RESNET, "image_size": 64}
    whole = partial(timm.create_model, "resnet26.bt_in1k", **TINY)
    replaced = ("layer4.0.conv2.weight", "layer4.1.conv2.weight", "fc.")


class TestHRNet(BackboneTester):
    build = HRNetV2
    arguments = {"width": "18s"}
    whole = partial(timm.create_model, "hrnet_w18_small_v2")
    replaced = ("downsamp_modules.", "incre_modules.", "final_layer.", "classifier.")


class TestResNet(BackboneTester):
    build = ResNet
    arguments = {**SMALL_RESNET, "multi_grid": (1, 2)}
    whole = partial(timm.create_model, "resnet26.bt_in1k", **TINY)
    replaced = ("fc.",)


class TestTimmBackbone(BackboneTester):
    build = TimmBackbone
    arguments = {"name": "test_resnet.r160_in1k"}
    whole = partial(timm.create_model, "test_resnet.r160_in1k")
    replaced = ("fc.",)


def test_all_are_tested():
    assert built_by(BackboneTester) == {*BACKBONES.values()}
    assert set(WIDTHS.values()) <= set(timm.list_pretrained("hrnet*"))


NARROW = {"embed_dim": 48, "depth": 3, "num_heads": 3}
FEW = {"depths": (1, 1, 1, 1)}
FAMILIES = {
    # name: options, stride of the coarsest map, padding
    "test_resnet": ({}, 32, 1),
    "test_efficientnet": ({}, 32, 1),
    "mobilenetv4_conv_small_035": ({}, 32, 1),
    "test_convnext": ({}, 32, 32),
    "mobilevitv2_050": ({}, 32, 64),
    "swin_tiny_patch4_window7_224": ({**FEW, "embed_dim": 24}, 32, 32),
    "swinv2_tiny_window8_256": ({**FEW, "embed_dim": 24}, 32, 32),
    "davit_tiny": ({**FEW, "embed_dims": (8, 16, 32, 64), "num_heads": (1, 2, 2, 4)}, 32, 1),
    # oneDNN 3.12 with AMX convolves patches of 8 or 16 channels wrongly in bfloat16.
    "pvt_v2_b0": ({**FEW, "embed_dims": (32, 32, 40, 64)}, 32, 32),
    "mambaout_femto": ({**FEW, "dims": (8, 16, 32, 64)}, 32, 1),
    "sam2_hiera_tiny": ({"stages": (1, 1, 2, 1), "embed_dim": 16}, 32, 32),
    "test_vit": ({}, 16, 16),
    "vit_small_patch14_reg4_dinov2": (NARROW, 14, 14),
    "vit_small_patch16_dinov3": (NARROW, 16, 16),
    "samvit_base_patch16": ({**NARROW, "global_attn_indexes": (2,), "img_size": 224}, 16, 16),
    "naflexvit_base_patch16_gap": (NARROW, 16, 16),
}


SIZES = [(1, 1), (17, 33), (150, 211)]


families = pytest.mark.parametrize("name", FAMILIES)


@cache
def backbone(name):
    torch.manual_seed(0)
    return TimmBackbone(name, options=FAMILIES[name][0]).eval()


def segmenter(name, **arguments):
    torch.manual_seed(0)
    own = TimmBackbone(name, options=FAMILIES[name][0])
    return Segmenter(own, partial(FPNDecoder, channels=8), ConvHead, **arguments)


@families
def test_maps_are_as_described_at_every_size(name):
    own = backbone(name)
    _, coarsest, multiple = FAMILIES[name]
    assert own.features.strides[-1] == coarsest
    assert own.multiple == multiple
    with torch.no_grad():
        for size in SIZES:
            assert_described(own, torch.randn(1, 3, *size))
        image = torch.randn(1, 3, 65, 97)
        with torch.autocast("cpu", torch.bfloat16):
            half = own(image)
        for got, expected in zip(half, own(image), strict=True):
            assert (got.float() - expected).abs().max() < 0.1 * expected.abs().max()


@each(("size", "multiple"), [((36, 40), 64), ((1, 1), 32)])
def test_maps_of_hrnet_are_those_of_the_padded_image(size, multiple):
    own, image = HRNetV2("18s").eval(), torch.randn(2, 3, *size)
    padded = torch.zeros(2, 3, multiple, multiple)
    padded[..., : size[0], : size[1]] = image
    with torch.no_grad():
        for got, full in zip(own(image), own.network(padded), strict=True):
            torch.testing.assert_close(got, full[..., : got.shape[-2], : got.shape[-1]])


@families
def test_at_its_own_size_a_network_is_that_of_timm(name):
    options = FAMILIES[name][0]
    plain = timm.create_model(name, features_only=True, **options).eval()
    own = backbone(name)
    plain.load_state_dict(own.network.state_dict())
    side = options.get(
        "img_size", 64 if own.multiple == 1 else plain.pretrained_cfg["input_size"][1]
    )
    image = torch.randn(1, 3, side, side)
    with torch.no_grad():
        for got, expected in zip(own(image), plain(image), strict=True):
            if got.shape != expected.shape:
                expected = expected.permute(0, 3, 1, 2)
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "name",
    ["test_vit", "vit_small_patch16_dinov3", "sam2_hiera_tiny", "swin_tiny_patch4_window7_224"],
)
def test_prompts_enter_through_the_patches_and_everything_learns(name):
    model = segmenter(name)
    assert model.prompts_enter == "stem"
    logits = model(torch.rand(2, 3, 37, 70), prompts((9, 9, 1), (20, 30, 0), batch=2))
    (logits * torch.randn_like(logits)).mean().backward()
    used = torch.nn.ModuleList([model.backbone.network, model.decoder, model.head])
    assert_all_learn(used)


@pytest.mark.parametrize(
    "name",
    ["test_resnet", "davit_tiny", "test_convnext", "sam2_hiera_tiny", "swinv2_tiny_window8_256"],
)
def test_coarse_maps_of_an_fpn_lie_on_the_image(name):
    """An image does not change when it is continued in the colour of the padding."""
    model = segmenter(name).eval()
    size = (40, 68)
    image = torch.rand(1, 3, *size)
    continued = model.mean.expand(1, 3, 64, 96).clone()
    continued[..., : size[0], : size[1]] = image
    clicks = prompts((60, 30, 1), (10, 10, 0))
    with torch.no_grad():
        torch.testing.assert_close(
            model(image, clicks), model(continued, clicks)[..., : size[0], : size[1]]
        )


def test_trying_sizes_leaves_a_network_as_it_was():
    for name in ("test_resnet", "sam2_hiera_tiny"):
        options = FAMILIES[name][0]
        torch.manual_seed(0)
        own = TimmBackbone(name, options=options)
        after = torch.rand(3)
        torch.manual_seed(0)
        plain = timm.create_model(name, features_only=True, **options)
        assert torch.equal(after, torch.rand(3)), "as many random numbers are drawn"
        assert own.training
        expected = plain.state_dict()
        assert all(
            torch.equal(value, expected[key]) for key, value in own.network.state_dict().items()
        )


@each(
    ("name", "options"),
    [
        ("hiera_tiny_224", {"stages": (1, 1, 1, 1), "embed_dim": 16}),
        ("beit_base_patch16_224", NARROW),
        ("levit_128s", {}),
        ("crossvit_9_240", {}),
        ("mixer_s32_224", {}),
    ],
)
def test_networks_for_one_size_are_refused(name, options):
    make = partial(TimmBackbone, name, options=options)
    refused(ValueError, make, "`name`", name, "any size", "pixels", "'sam2_hiera_tiny'")
