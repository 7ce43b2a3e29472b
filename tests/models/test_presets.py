"""Every preset: what it computes, what of it learns, and what its name promises."""

import copy
import functools
import itertools
import math
import re

import pytest
import torch
from micro import MICRO, SHIPPED, described
from torch import nn

from probseg.attention import (
    ATTENTIONS,
    Attention2d,
    ProbabilisticAttention2d,
    StandardAttention2d,
)
from probseg.attention.position import FactoredPositionEmbedding, FullPositionEmbedding
from probseg.backbones import BoTNet, HRNetV2, ResNet, TimmBackbone
from probseg.heads import (
    ConvHead,
    CorrectiveSelfAttention,
    DeepLabV3PlusDecoder,
    FPNDecoder,
    OCRDecoder,
    PromptFusion,
    PromptUNet,
    PyramidDecoder,
)
from probseg.models import build, list_presets
from probseg.types import Prompts
from probseg.zoo import create_model, list_models
from probseg.zoo.store import save

FULL_SIZE = [name for name in list_presets() if not name.startswith("micro_")]
PLACES = ["stem", "head"]
SIZES = [(37, 53), (33, 64), (1, 1)]
NAMES = ("standard", "probabilistic")  # others: tests/attention/test_every_attention.py
LAYOUTS = ["full", "axial"]
POSITIONS = [None, "factored", "full"]

CSA = "probseg.heads.CorrectiveSelfAttention"
CONV_HEAD = {"class_path": "probseg.heads.ConvHead"}
HEADS = {
    "conv": CONV_HEAD,
    **{
        f"{attention}-{layout}{f'-bp{steps}' if steps else ''}": {
            "class_path": CSA,
            "init_args": {
                "attention": attention,
                "layout": layout,
                "channels": 8,
                "stride": 4,
                "span": 8,
                "propagation_iterations": steps,
            },
        }
        for attention, layout, steps in itertools.product(NAMES, LAYOUTS, (0, 2))
        if attention == "probabilistic" or not steps
    },
}
DECODERS = {
    "fpn": {"class_path": "probseg.heads.FPNDecoder", "init_args": {"channels": 8}},
    "deeplab": {
        "class_path": "probseg.heads.DeepLabV3PlusDecoder",
        "init_args": {"channels": 8, "low_channels": 8},
    },
    "ocr": {"class_path": "probseg.heads.OCRDecoder", "init_args": {"channels": 8}},
}


def prompts(batch, size):
    """Clicks of both signs, one that is padding, and a box; all inside the image."""
    height, width = size
    inside = [[width // 4, height // 3], [width // 2, height // 2], [0, 0]]
    box = [0, 0, max(1, width // 2), max(1, height // 2)]
    return Prompts(
        torch.tensor([inside], dtype=torch.float32).repeat(batch, 1, 1),
        torch.tensor([[1, 0, -1]]).repeat(batch, 1),
        torch.tensor([box], dtype=torch.float32).repeat(batch, 1),
    )


def placed(name, place):
    """What makes prompts enter a preset at the stem, or at the head."""
    if place == "head":
        return {"prompts": "head"}
    return {"prompts": "stem", "fusion": None} if "fast" in name else {"prompts": "stem"}


def gradients(model, size, batch=2):
    """Return the gradients of a training step by the names of the parameters."""
    model.train()
    images = torch.rand(batch, 3, *size)
    logits, auxiliary = model.all_logits(model.encode(images), prompts(batch, size))
    assert logits.shape == (batch, 1, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    loss = (logits * torch.randn_like(logits)).mean()
    if auxiliary is not None:
        assert auxiliary.shape == logits.shape
        loss = loss + (auxiliary * torch.randn_like(auxiliary)).mean()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def opened(model):
    """Start no residual block with a branch that adds nothing, as timm does: it stops gradients."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
    return model


def broken(found):
    """Names of the parameters without a finite gradient."""
    return [name for name, gradient in found.items() if gradient is None or not _finite(gradient)]


def idle(found):
    """Names of the parameters without a finite gradient, or with one that is zero everywhere."""
    return [name for name in found if name in broken(found) or not found[name].any()]


def _finite(tensor):
    return bool(tensor.isfinite().all())


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@functools.cache
def meta(name, place=None):
    """A preset without memory for its weights, which many tests look at and none changes."""
    with torch.device("meta"):
        return build(described(name, **(placed(name, place) if place else {})))


def attentions(module):
    return [part for part in module.modules() if isinstance(part, Attention2d)]


def propagation(name):
    """The number behind ``bp`` in a name, 0 without."""
    found = re.search(r"_bp(\d+)", name)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("name", MICRO)
@pytest.mark.parametrize("place", PLACES)
def test_micro_presets_are_small(name, place):
    assert 10_000 < count(meta(name, place)) < 1_000_000


@pytest.mark.parametrize("name", MICRO)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", SIZES)
def test_micro_presets_train_at_odd_sizes(name, place, size):
    model = opened(build(described(name, **placed(name, place))))
    assert model.prompts == place
    found = gradients(model, size)
    assert not broken(found)
    if size != (1, 1):  # among one position, there is nothing to attend to
        assert not idle(found)


@pytest.mark.parametrize("name", MICRO)
@pytest.mark.parametrize("place", PLACES)
def test_micro_presets_are_close_to_themselves_in_half_precision(name, place):
    model = opened(build(described(name, **placed(name, place)))).eval()
    for size in SIZES:
        image = torch.rand(1, 3, *size)
        with torch.no_grad():
            exact = model(image, prompts(1, size))
            with torch.autocast("cpu", torch.bfloat16):
                half = model(image, prompts(1, size))
        assert exact.shape == half.shape == (1, 1, *size)
        assert exact.dtype == half.dtype == torch.float32
        assert half.isfinite().all()
        assert (half - exact).abs().max() < 0.05 * exact.abs().max() + 0.05


@pytest.mark.parametrize("name", MICRO)
@pytest.mark.parametrize("place", PLACES)
def test_micro_presets_come_back_from_a_folder(name, place, tmp_path):
    description = described(name, **placed(name, place))
    model = opened(build(described(name, **placed(name, place))))
    gradients(model, (37, 53))  # moves the statistics of the batch normalisations
    model.eval()
    save(model, description, tmp_path / "saved")
    torch.manual_seed(1)
    loaded = create_model(f"{tmp_path}/saved/", pretrained=True)
    assert not loaded.training
    rounded = copy.deepcopy(model)
    rounded.load_state_dict(
        {key: t.half() if t.is_floating_point() else t for key, t in model.state_dict().items()}
    )
    image, clicks = torch.rand(1, 3, 37, 53), prompts(1, (37, 53))
    with torch.no_grad():
        exact, expected, found = (each(image, clicks) for each in (model, rounded, loaded))
    assert torch.equal(found, expected)
    assert (found - exact).abs().max() < 0.02 * exact.abs().max() + 0.02


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", NAMES)
def test_attention_in_the_backbone_goes_with_all_heads(attention, layout, position, head):
    backbone = {
        "attention": attention,
        "layout": layout,
        "position": position,
        "attention_options": {"position_keys": attention == "probabilistic"},
    }
    model = opened(build(described("micro_botnet", backbone=backbone, head=HEADS[head])))
    layers = attentions(model.backbone)
    assert {type(layer) for layer in layers} == {ATTENTIONS[attention]}
    assert {layer.axis for layer in layers} == set(
        {"full": ("full",), "axial": ("height", "width")}[layout]
    )
    assert not idle(gradients(model, (37, 53)))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("place", PLACES)
def test_all_decoders_go_with_all_heads(place, decoder, head):
    changes = {"prompts": place, "decoder": DECODERS[decoder], "head": HEADS[head]}
    model = opened(create_model("micro_conv", **changes))
    assert not idle(gradients(model, (37, 53)))


@pytest.mark.parametrize("place", PLACES)
def test_clicks_change_the_logits_wherever_prompts_enter(place):
    model = build(described("micro_csa_bp5", prompts=place)).eval()
    image, clicks = torch.rand(1, 3, 37, 53), prompts(1, (37, 53))
    none = clicks._replace(
        labels=torch.full_like(clicks.labels, -1), boxes=torch.full((1, 4), math.nan)
    )
    with torch.no_grad():
        assert not torch.equal(model(image, clicks), model(image, none))


def test_patterns_list_the_presets_of_a_kind():
    assert list_models("micro_*", task="interactive") == SHIPPED
    assert list_models("*", task="interactive") == FULL_SIZE, "without networks for tests"
    assert len(list_models("*_csa*")) > len(list_models("*_csa")) > 5
    for name in list_models("*botnet*"):
        assert isinstance(meta(name).backbone, BoTNet)


@pytest.mark.parametrize("name", list_presets())
def test_attention_of_the_backbone_is_as_named(name):
    layers = attentions(meta(name).backbone)
    if "botnet" not in name:
        assert not layers
        return
    assert layers
    kind = ProbabilisticAttention2d if "prob_" in name else StandardAttention2d
    assert {type(layer) for layer in layers} == {kind}
    for layer in layers:
        if "prob_" in name:  # networks are trained without key adaptation
            assert layer.settings.key_adaptation.iterations == 0
        keys = [key for key, _ in layer.position.named_parameters() if key.startswith("key")]
        assert bool(keys) == ("prob_" in name)


@pytest.mark.parametrize("name", list_models("*botnet50_*"))
def test_layout_and_position_of_the_backbone_are_as_named(name):
    layers = attentions(meta(name).backbone)
    axes = [layer.axis for layer in layers]
    if "_axial_" in name or name.startswith("prob_botnet50_csa"):
        assert axes == ["height", "width"] * 3
    else:
        assert "_full_f" in name
        assert axes == ["full"] * 3
    kind = FactoredPositionEmbedding if name.endswith("_factored") else FullPositionEmbedding
    assert {type(layer.position) for layer in layers} == {kind}


@pytest.mark.parametrize("name", list_presets())
def test_head_is_as_named(name):
    model = meta(name)
    if "_csa" not in name and "fast" not in name:
        assert isinstance(model.head, ConvHead)
        return
    head = model.head
    assert isinstance(head, CorrectiveSelfAttention)
    assert {type(layer) for layer in attentions(head)} == {ProbabilisticAttention2d}
    if "csa_full" in name:
        assert head.height is None
        assert head.last.axis == "full"
    else:
        assert (head.height.axis, head.last.axis) == ("height", "width")
    if "fast" not in name:  # which propagate without saying so
        assert head.last.settings.value_propagation.iterations == propagation(name)
        assert head.propagates == (propagation(name) > 0)
    else:
        assert head.last.settings.value_propagation.iterations == 5


@pytest.mark.parametrize("name", list_presets())
def test_prompts_enter_as_named(name):
    model = meta(name)
    fast, unet = "fast" in name.split("_"), "unet" in name.split("_")
    assert model.prompts == ("head" if fast or unet else "stem")
    assert isinstance(model.fusion, PromptFusion) == fast
    assert isinstance(model.fusion, PromptUNet) == unet
    if unet:
        assert (model.fusion.propagation is not None) == name.endswith("_prop")


@pytest.mark.parametrize("name", list_presets())
def test_inputs_are_as_named(name):
    model = meta(name)
    handed_on = name.startswith("ritm_") or name.endswith(("_previous", "_clicks"))
    handed_on |= "unet" in name.split("_")
    assert model.previous_mask == handed_on
    assert (model.propagated_clicks is not None) == name.endswith("_clicks")
    assert (model.refinement is not None) == name.endswith("_clicks")
    if name.startswith("ritm_"):
        assert (model.click_maps.clicks, model.click_maps.radius) == ("disk", 5)


@pytest.mark.parametrize("name", FULL_SIZE)
def test_backbone_and_decoder_are_as_named(name):
    model = meta(name)
    pattern = r"(?:fast_|prob_|ritm_)?(hrnet|resnet|botnet|lite)(\d+s?)"
    family, size = re.match(pattern, name).groups()
    kinds = {
        "hrnet": HRNetV2,
        "resnet": (ResNet, TimmBackbone),
        "botnet": BoTNet,
        "lite": TimmBackbone,
    }
    assert isinstance(model.backbone, kinds[family])
    if family == "lite":
        stages = [len(stage) for stage in model.backbone.network.blocks]
        assert stages == {"0": [1, 2, 2, 3, 3, 4, 1]}[size]  # Liu 2020, of EfficientNet-B0
        assert isinstance(model.decoder, PyramidDecoder)
        return
    if family == "hrnet":
        first = int(size.removesuffix("s"))
        assert model.backbone.features.channels == tuple(first * 2**i for i in range(4))
    else:
        stages = [getattr(model.backbone.network, f"layer{i}") for i in range(1, 5)]
        depth = 2 + sum(2 if not hasattr(b, "conv3") else 3 for stage in stages for b in stage)
        assert depth == int(size)
    if "_ocr" in name:
        assert isinstance(model.decoder, OCRDecoder)
    elif "deeplab" in name or "50" in size:
        assert isinstance(model.decoder, DeepLabV3PlusDecoder)
        assert model.backbone.features.strides[-1] == 16
        assert [conv[0].dilation for conv in model.decoder.pyramid.atrous] == [
            (6, 6),
            (12, 12),
            (18, 18),
        ]
    else:
        assert isinstance(model.decoder, FPNDecoder)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("hrnet18s_ocr_conv", 4.22), ("hrnet18_ocr_conv", 10.03), ("hrnet32_ocr_conv", 30.95)],
)
def test_hrnets_with_ocr_have_the_published_size(name, millions):
    assert count(meta(name)) / 1e6 == pytest.approx(millions, rel=0.01)  # Sofiiuk et al. 2021


@pytest.mark.parametrize(
    ("name", "changes", "millions"),
    [
        ("botnet50_full_factored", {}, 20.8),  # Srinivas et al. 2021
        ("resnet50_deeplab", {}, 25.56),
        ("resnet50_deeplab", {"name": "resnet101.tv_in1k"}, 44.55),
    ],
)
def test_backbones_have_the_published_size(name, changes, millions):
    with torch.device("meta"):
        backbone = create_model(name, backbone=changes).backbone
    stem = backbone.network.conv1.prompts
    total = count(backbone) - count(stem) + count(nn.Linear(2048, 1000))
    assert total / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_presets_segment_learn_and_come_back(name):
    model = opened(create_model(name))
    found = gradients(model, (64, 64))
    assert not broken(found)
    assert not idle(found)
    model.zero_grad(set_to_none=True)
    model.eval()
    torch.manual_seed(1)
    other = create_model(name).eval()
    other.load_state_dict(model.state_dict())
    image, clicks = torch.rand(1, 3, 96, 129), prompts(1, (96, 129))
    with torch.no_grad():
        logits = model(image, clicks)
        assert torch.equal(other(image, clicks), logits)
    assert logits.shape == (1, 1, 96, 129)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
