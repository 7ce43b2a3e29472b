"""Every preset: what it computes, what of it learns, and what its name promises."""

import copy
import re

import pytest
import torch
from torch import nn

from probseg.attention import ATTENTIONS, Attention2d
from probseg.models import build, list_presets
from probseg.zoo import create_model
from probseg.zoo.store import save
from support.micro import MICRO, described
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
    logits, auxiliary, quality = model.raw_logits(model.encode(images), asked(batch, size))
    assert logits.shape == (batch, 1, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    loss = (logits * torch.randn_like(logits)).mean()
    if auxiliary is not None:
        assert auxiliary.shape == logits.shape
        loss = loss + (auxiliary * torch.randn_like(auxiliary)).mean()
    if quality is not None:
        loss = loss + quality.mean()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def idle(found, zero=True):
    """Names of the parameters without a finite gradient, or with one that is zero everywhere."""
    return [
        name
        for name, own in found.items()
        if own is None or not own.isfinite().all() or (zero and not own.any())
    ]


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("name", "place"), TRAINED)
def test_micro_presets_train_at_odd_sizes(name, place):
    model = opened(build(described(name, **placed(name, place))))
    assert model.prompts_enter == place
    assert 10_000 < count(model) < 1_000_000
    for size in SIZES:
        model.zero_grad()
        # Among one position, there is nothing to attend to.
        assert not idle(gradients(model, size), zero=size != (1, 1))


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


CSA = "probseg.heads.CorrectiveSelfAttention"


def described_head(name):
    if name == "conv":
        return {"class_path": "probseg.heads.ConvHead"}
    attention, layout = name.split()
    options = {"attention": attention, "layout": layout, "channels": 8, "stride": 4, "span": 8}
    if attention == "probabilistic":
        options["propagation_iterations"] = 2
    return {"class_path": CSA, "init_args": options}


@each(
    ("attention", "layout", "position", "decoder", "place", "head"),
    [  # each pair of values; other attentions: tests/attention/test_attention_layers.py
        ("standard", "full", None, "FPNDecoder", "stem", "probabilistic full"),
        ("standard", "full", "factored", "DeepLabV3PlusDecoder", "head", "conv"),
        ("standard", "axial", "full", "OCRDecoder", "stem", "standard axial"),
        ("probabilistic", "axial", None, "OCRDecoder", "head", "conv"),
        ("probabilistic", "axial", "factored", "DeepLabV3PlusDecoder", "stem", "standard full"),
        ("probabilistic", "full", "full", "FPNDecoder", "head", "standard axial"),
        ("probabilistic", "axial", "full", "DeepLabV3PlusDecoder", "head", "probabilistic axial"),
        ("standard", "full", None, "OCRDecoder", "head", "probabilistic full"),
        ("standard", "axial", "factored", "FPNDecoder", "stem", "probabilistic axial"),
    ],
)
def test_all_parts_go_together(attention, layout, position, decoder, place, head):
    backbone = {
        "attention": attention,
        "layout": layout,
        "position": position,
        "attention_options": {"position_keys": attention == "probabilistic"},
    }
    changes = {
        "backbone": backbone,
        "decoder": {"class_path": decoder, "init_args": {"channels": 8}},
        "prompts": place,
        "head": described_head(head),
    }
    model = opened(build(described("micro_botnet", **changes)))
    layers = [part for part in model.backbone.modules() if isinstance(part, Attention2d)]
    assert {type(layer) for layer in layers} == {ATTENTIONS[attention]}
    axes = {"full": {"full"}, "axial": {"height", "width"}}[layout]
    assert {layer.axis for layer in layers} == axes
    assert not idle(gradients(model, (37, 53)))


def ocr(name, width, channels):
    return name, {"backbone": {"width": width}, "decoder": {"channels": channels}}


@pytest.mark.parametrize(
    ("name", "changes", "millions", "rounding"),
    [
        ("botnet50_full_factored", {}, 20.8, 0.01),  # Srinivas et al. 2021
        ("resnet50_deeplab", {}, 25.56, 0.01),
        # Sofiiuk et al. 2021; ours have 16 weights for the box, and no bias before a norm.
        *(
            (*ocr(name, *size), millions, rounding)
            for *size, millions in (("18s", 48, 4.22), ("18", 64, 10.03), ("32", 128, 30.95))
            for name, rounding in (("hrnet18_ocr_conv", 0.01), ("ritm_hrnet18s_ocr", 0.0015))
        ),
        ("ritm_resnet50_deeplab", {}, 39.4, 0.0015),
    ],
)
def test_networks_have_the_published_size(name, changes, millions, rounding):
    with torch.device("meta"):
        model = create_model(name, **changes)
    total = count(model)
    if rounding == 0.01 and "ocr" not in name:  # which are published with their classifiers
        stem = model.backbone.network.conv1.prompts
        total = count(model.backbone) - count(stem) + count(nn.Linear(2048, 1000))
    assert total / 1e6 == pytest.approx(millions, rel=rounding)


@each("name", FULL_SIZE)
def test_its_own_adaptation_given_back_changes_nothing(name):
    with torch.device("meta"):
        model = create_model(name)
    before = [part.settings for part in model.modules() if hasattr(part, "settings")]
    model.adapt(model.adaptation())
    assert [part.settings for part in model.modules() if hasattr(part, "settings")] == before


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_presets_segment_and_learn(name):
    model = opened(create_model(name))
    # The softmax over one region is 1 whatever its queries and keys; a stage has one level alone.
    spared = {"_ocr": r"attention.(query|key)", "_stage": r"(lateral.[01]|enlarged|smooth.[01])\."}
    patterns = [f"decoder.{pattern}" for part, pattern in spared.items() if part in name]
    unused = idle(gradients(model, (64, 64)))
    assert not [one for one in unused if not any(re.match(pattern, one) for pattern in patterns)]
    with torch.no_grad():
        logits = model.eval()(torch.rand(1, 3, 96, 129), asked(1, (96, 129)))
    assert logits.shape == (1, 1, 96, 129)
    assert logits.isfinite().all()


@pytest.mark.parametrize("detail", [True, False])
def test_contours_finer_than_a_patch_reach_the_logits(detail):
    """Where the encoder gives the same maps for all images, four pixels of one change the mask."""
    torch.manual_seed(0)
    fusion = {"detail": detail, "propagation": None}  # which would see colours
    small = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 64}
    changes = {"backbone": {"options": small}, "fusion": fusion}
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
