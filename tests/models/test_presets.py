"""Every preset: what it computes, what of it learns, and what its name promises."""

import copy
import functools
import re

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from probseg.attention import (
    ATTENTIONS,
    Attention2d,
)
from probseg.backbones import BoTNet
from probseg.models import build, list_presets
from probseg.paths import configs_dir
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


# --- transformers as encoders --------------------------------------------------------------------

SMALL = {
    "vits_unet_prop": {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 64},
    "sam2t_unet_prop": {"embed_dim": 16, "stages": (1, 1, 1, 1)},
}
TWO_UNITS = {
    "propagation": {"class_path": "probseg.heads.PromptPropagation", "init_args": {"units": 2}}
}


def counted(function):
    """GFLOP of a call."""
    with FlopCounterMode(display=False) as counter:
        result = function()
    return result, counter.get_total_flops() / 1e9


@pytest.mark.parametrize("preset", SMALL)
def test_the_recipe_states_the_cost_of_encoder_and_decoder(preset):
    recipe = (configs_dir() / "experiment" / f"{preset}.yaml").read_text()
    stated = re.search(r"encoder ([\d.]+).*?decoder\D*([\d.]+)", recipe.replace("\n# ", " "))
    with torch.device("meta"), torch.no_grad():
        model = create_model(preset).eval()
        maps, encoder = counted(lambda: model.backbone(torch.zeros(1, 3, 384, 384)))
        _, decoder = counted(lambda: model.decoder(maps))
    assert [encoder, decoder] == pytest.approx(
        [float(number) for number in stated.groups()], abs=0.06
    )


@pytest.mark.parametrize("preset", SMALL)
def test_small_variants_answer_clicks_at_every_size(preset):
    model = opened(
        create_model(preset, backbone={"options": SMALL[preset]}, fusion=TWO_UNITS)
    ).eval()
    for height, width in ((1, 1), (37, 66), (480, 640)):
        with torch.no_grad():
            logits = model(torch.rand(1, 3, height, width), prompts((width // 2, height // 2, 1)))
        assert logits.shape == (1, 1, height, width)
        assert logits.isfinite().all()


@pytest.mark.parametrize("detail", [True, False])
def test_contours_finer_than_a_patch_reach_the_logits(detail):
    """Where the encoder gives the same maps for all images, four pixels of one change the mask."""
    torch.manual_seed(0)
    fusion = {"detail": detail, "propagation": None}  # which would see colours
    changes = {"backbone": {"options": SMALL["vits_unet_prop"]}, "fusion": fusion}
    model = opened(create_model("vits_unet_prop", **changes)).eval()
    model.backbone.register_forward_hook(lambda *hooked: [0 * own for own in hooked[-1]])
    image = torch.rand(1, 3, 96, 96)
    other = image.clone()
    other[..., 40:44, 52:56] = 1 - image[..., 40:44, 52:56]
    with torch.no_grad():
        one, another = (model(own, prompts((48, 48, 1))) for own in (image, other))
    difference = (one - another).abs()[0, 0]
    assert difference.any() == detail
    if detail:
        row, column = divmod(int(difference.argmax()), 96)
        assert abs(row - 41.5) <= 12
        assert abs(column - 53.5) <= 12
