"""What holds for every backbone."""

from functools import partial

import timm

from probseg.backbones import BACKBONES, Backbone, BoTNet, HRNetV2, ResNet, TimmBackbone
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


def test_the_table():
    assert built_by(BackboneTester) == {*BACKBONES.values()}
    assert all(issubclass(part, Backbone) for part in BACKBONES.values())
    assert all(part.__name__ == name for name, part in BACKBONES.items())
