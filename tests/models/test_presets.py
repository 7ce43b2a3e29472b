"""Every preset: what it computes, what of it learns, and what its name promises."""

import copy
import functools
import re

import pytest
import torch
from torch import nn

from probseg.attention import (
    ATTENTIONS,
    Attention2d,
    ProbabilisticAttention2d,
    StandardAttention2d,
)
from probseg.attention.base import FactoredPositionEmbedding, FullPositionEmbedding
from probseg.backbones import BoTNet, EmbeddedPromptStem, HRNetV2, ResNet, TimmBackbone
from probseg.heads import (
    ConvHead,
    CorrectiveSelfAttention,
    DeepLabV3PlusDecoder,
    DenseDeepLabDecoder,
    FPNDecoder,
    OCRDecoder,
    PromptFusion,
    PromptStage,
    PromptUNet,
    PyramidDecoder,
    SeparableHead,
    SimplePyramid,
)
from probseg.models import build, list_presets
from probseg.zoo import create_model, list_models
from probseg.zoo.store import save
from support.micro import MICRO, SHIPPED, described
from support.network_cases import opened, prompts
from support.rows import each

FULL_SIZE = [name for name in list_presets() if not name.startswith("micro_")]
PLACES = ["stem", "head"]
SIZES = [(37, 53), (33, 64), (1, 1)]
TRAINED = [(name, PLACES[1 - number % 2]) for number, name in enumerate(MICRO)]
USED = [
    (name, "head" if name == "micro_fast" else PLACES[number % 2])  # at the stem, without fusion
    for number, name in enumerate(MICRO)
]
"""Networks with prompts at one place in their trainings, and at the other in the other tests."""

CSA = "probseg.heads.CorrectiveSelfAttention"
CONV_HEAD = {"class_path": "probseg.heads.ConvHead"}
HEADS = {
    "conv": CONV_HEAD,
    **{
        name: {
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
        for name, attention, layout, steps in (
            ("standard-axial", "standard", "axial", 0),
            ("standard-full", "standard", "full", 0),
            ("probabilistic-axial-bp2", "probabilistic", "axial", 2),
            ("probabilistic-full-bp2", "probabilistic", "full", 2),
        )
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


def asked(batch, size):
    """Clicks of both signs, one that is padding, and a box; all inside the image."""
    height, width = size
    clicks = ((width // 4, height // 3, 1), (width // 2, height // 2, 0), (0, 0, -1))
    return prompts(*clicks, box=(0, 0, max(1, width // 2), max(1, height // 2)), batch=batch)


def placed(name, place):
    """What makes prompts enter a preset at the stem, or at the head."""
    if place == "head":
        return {"prompts": "head"}
    return {"prompts": "stem", "fusion": None} if "fast" in name else {"prompts": "stem"}


def gradients(model, size, batch=2):
    """Return the gradients of a training step by the names of the parameters."""
    model.train()
    images = torch.rand(batch, 3, *size)
    logits, auxiliary, _ = model.raw_logits(model.encode(images), asked(batch, size))
    assert logits.shape == (batch, 1, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    loss = (logits * torch.randn_like(logits)).mean()
    if auxiliary is not None:
        assert auxiliary.shape == logits.shape
        loss = loss + (auxiliary * torch.randn_like(auxiliary)).mean()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


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
def meta(name):
    """A preset without memory for its weights, which many tests look at and none changes."""
    with torch.device("meta"):
        return build(described(name))


def attentions(module):
    return [part for part in module.modules() if isinstance(part, Attention2d)]


@pytest.mark.parametrize(("name", "place"), TRAINED)
def test_micro_presets_train_at_odd_sizes(name, place):
    model = opened(build(described(name, **placed(name, place))))
    assert model.prompts_enter == place
    assert 10_000 < count(model) < 1_000_000
    for size in SIZES:
        model.zero_grad()
        found = gradients(model, size)
        assert not broken(found)
        if size != (1, 1):  # among one position, there is nothing to attend to
            assert not idle(found)


@each(("name", "place"), USED)
def test_micro_presets_are_close_to_themselves_in_half_precision(name, place):
    model = opened(build(described(name, **placed(name, place)))).eval()
    for size in SIZES:
        image = torch.rand(1, 3, *size)
        with torch.no_grad():
            exact = model(image, asked(1, size))
            with torch.autocast("cpu", torch.bfloat16):
                half = model(image, asked(1, size))
        assert half.dtype == torch.float32
        assert (half - exact).abs().max() < 0.05 * exact.abs().max() + 0.05


@pytest.mark.parametrize(("name", "place"), USED)
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
    image, clicks = torch.rand(1, 3, 37, 53), asked(1, (37, 53))
    with torch.no_grad():
        exact, expected, found = (each(image, clicks) for each in (model, rounded, loaded))
    assert torch.equal(found, expected)
    assert (found - exact).abs().max() < 0.02 * exact.abs().max() + 0.02


@each(
    ("attention", "layout", "position", "head"),
    [  # each pair of values; other attentions: tests/attention/test_attention_layers.py
        ("standard", "full", None, "probabilistic-full-bp2"),
        ("standard", "full", "factored", "conv"),
        ("standard", "axial", "full", "standard-axial"),
        ("probabilistic", "axial", None, "conv"),
        ("probabilistic", "axial", "factored", "probabilistic-axial-bp2"),
        ("probabilistic", "full", "full", "standard-full"),
    ],
)
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


@pytest.mark.parametrize(
    ("place", "decoder", "head"),
    [
        ("stem", "fpn", "conv"),
        ("head", "fpn", "standard-axial"),
        ("stem", "fpn", "probabilistic-full-bp2"),
        ("head", "deeplab", "conv"),
        ("stem", "deeplab", "standard-full"),
        ("head", "deeplab", "probabilistic-axial-bp2"),
        ("stem", "ocr", "standard-axial"),
        ("head", "ocr", "probabilistic-full-bp2"),
        ("stem", "ocr", "probabilistic-axial-bp2"),
        ("head", "ocr", "conv"),
    ],
)
def test_all_decoders_go_with_all_heads(place, decoder, head):
    changes = {"prompts": place, "decoder": DECODERS[decoder], "head": HEADS[head]}
    model = opened(create_model("micro_conv", **changes))
    assert not idle(gradients(model, (37, 53)))


def test_patterns_list_the_presets_of_a_kind():
    assert list_models("micro_*", task="interactive") == SHIPPED
    assert list_models("*", task="interactive") == FULL_SIZE, "without networks for tests"
    assert len(list_models("*_csa*")) > len(list_models("*_csa")) > 5
    for name in list_models("*botnet*"):
        assert isinstance(meta(name).backbone, BoTNet)


def check_backbone_attention(name, model):
    layers = attentions(model.backbone)
    assert bool(layers) == ("botnet" in name)
    kind = ProbabilisticAttention2d if "prob_" in name else StandardAttention2d
    assert {type(layer) for layer in layers} <= {kind}
    for layer in layers:
        if "prob_" in name:  # networks are trained without key adaptation
            assert layer.settings.key_adaptation.iterations == 0
        keys = [key for key, _ in layer.position.named_parameters() if key.startswith("key")]
        assert bool(keys) == ("prob_" in name)
    if "botnet50_" in name:
        axial = name == "prob_botnet50_csa"
        assert [layer.axis for layer in layers] == (["height", "width"] if axial else ["full"]) * 3
        position = FullPositionEmbedding if axial else FactoredPositionEmbedding
        assert {type(layer.position) for layer in layers} == {position}


def check_head(name, head):
    if "_csa" not in name and "fast" not in name:
        assert isinstance(head, SeparableHead if name == "ritm_resnet50_deeplab" else ConvHead)
        return
    assert isinstance(head, CorrectiveSelfAttention)
    assert {type(layer) for layer in attentions(head)} == {ProbabilisticAttention2d}
    axes = [layer.axis for layer in (head.height, head.last) if layer is not None]
    assert axes == (["full"] if "csa_full" in name else ["height", "width"])
    steps = re.search(r"_bp(\d+)", name)
    expected = 5 if "fast" in name else int(steps[1]) if steps else 0
    propagation = head.last.settings.value_propagation
    assert propagation.iterations == expected
    released, printed = name.endswith("_released"), name.endswith("_printed")
    assert (propagation.prior_mean == "previous") == (released or printed)
    assert (propagation.given == "queries") == released
    if expected:
        assert (head.last.settings.log_prior == "magnitude") == printed
    assert head.propagates == (expected > 0)


def check_prompts(name, model):
    fast, stage, unet = (part in name.split("_") for part in ("fast", "stage", "unet"))
    assert model.prompts_enter == ("head" if fast or stage or unet else "stem")
    assert isinstance(model.fusion, PromptStage) == stage
    assert isinstance(model.fusion, PromptFusion) == fast
    assert isinstance(model.fusion, PromptUNet) == unet
    if unet:
        assert (model.fusion.propagation is not None) == name.endswith("_prop")
    clicks = name.endswith("_clicks")
    assert model.previous_mask == (name.startswith("ritm_") or clicks or unet)
    assert (model.propagated_clicks is not None) == clicks
    assert (model.refinement is not None) == clicks
    if name.startswith("ritm_"):
        assert any(isinstance(m, EmbeddedPromptStem) for m in model.backbone.modules())
        assert (model.click_maps.clicks, model.click_maps.radius) == ("disk", 5)


def test_presets_are_as_named():
    for name in list_presets():
        model = meta(name)
        check_backbone_attention(name, model)
        check_head(name, model.head)
        check_prompts(name, model)
        if name in FULL_SIZE:
            check_backbone_and_decoder(name, model)


def check_backbone_and_decoder(name, model):
    pattern = r"(?:fast_|prob_|ritm_)?(hrnet|resnet|botnet|lite|vit|sam2)(\d+s?|[a-z])_"
    family, size = re.match(pattern, name).groups()
    kinds = {
        "hrnet": HRNetV2,
        "resnet": (ResNet, TimmBackbone),
        "botnet": BoTNet,
        "lite": TimmBackbone,
        "vit": TimmBackbone,
        "sam2": TimmBackbone,
    }
    assert isinstance(model.backbone, kinds[family])
    if family == "lite":
        stages = [len(stage) for stage in model.backbone.network.blocks]
        # Liu 2020, of EfficientNet-B0 and B2, without scaling the first and the last stage
        assert stages == {"0": [1, 2, 2, 3, 3, 4, 1], "2": [1, 3, 3, 4, 4, 5, 1]}[size]
        assert isinstance(model.decoder, PyramidDecoder)
        return
    if family in ("vit", "sam2"):
        names = {"vits": "vit_small_", "vitb": "vit_base_", "sam2t": "sam2_hiera_tiny"}
        assert model.backbone.network.pretrained_cfg["architecture"].startswith(
            names[family + size]
        )
        assert isinstance(model.decoder, SimplePyramid if family == "vit" else PyramidDecoder)
        assert model.decoder.features.strides == (4, 8, 16, 32)
        assert model.cell == 32
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
        # As published, but for the network of this project's own with prompts at the head.
        published = "fast" not in name
        assert model.backbone.features.aligned == model.aligned == published
        assert model.decoder.regions == (1 if published else 2)
    elif name == "ritm_resnet50_deeplab":
        assert isinstance(model.decoder, DenseDeepLabDecoder)
        assert model.backbone.features.strides[-1] == 8
        assert model.aligned
    elif "deeplab" in name or "50" in size:
        assert isinstance(model.decoder, DeepLabV3PlusDecoder)
        assert model.backbone.features.strides[-1] == 16
        dilations = [conv[0].dilation[0] for conv in model.decoder.pyramid.atrous]
        assert dilations == [6, 12, 18]
    else:
        assert isinstance(model.decoder, FPNDecoder)


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


@pytest.mark.parametrize(
    ("width", "channels", "millions"), [("18s", 48, 4.22), ("18", 64, 10.03), ("32", 128, 30.95)]
)
def test_hrnets_with_ocr_have_the_published_size(width, channels, millions):
    """Sofiiuk et al. 2021; ours have 16 weights for the box, and no bias before a normalisation."""
    changes = {"backbone": {"width": width}, "decoder": {"channels": channels}}
    for name, rounding in (("hrnet18_ocr_conv", 0.01), ("ritm_hrnet18s_ocr", 0.0015)):
        with torch.device("meta"):
            model = create_model(name, **changes)
        assert count(model) / 1e6 == pytest.approx(millions, rel=rounding)


def test_deeplab_of_ritm_has_its_size():
    assert count(meta("ritm_resnet50_deeplab")) / 1e6 == pytest.approx(39.4, rel=0.0015)


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_presets_segment_and_learn(name):
    model = opened(create_model(name))
    unused = idle(gradients(model, (64, 64)))
    if "_ocr" in name and "fast" not in name:
        # The softmax over one region is 1 whatever its queries and keys.
        unused = [one for one in unused if not re.match(r"decoder.attention.(query|key)", one)]
    assert not unused
    with torch.no_grad():
        logits = model.eval()(torch.rand(1, 3, 96, 129), asked(1, (96, 129)))
    assert logits.shape == (1, 1, 96, 129)
    assert logits.isfinite().all()
