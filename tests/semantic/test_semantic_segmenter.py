"""Semantic segmentation: alignment, sizes, contexts, and what presets promise."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from probseg.backbones import Backbone
from probseg.errors import UnknownNameError, UsageError
from probseg.heads import ConvHead
from probseg.models import Segmenter, build, list_presets, read_preset, variant, without_downloads
from probseg.semantic import (
    DeepLabV3Head,
    EMAHead,
    FCNHead,
    SemanticHead,
    SemanticSegmenter,
    semantic_variant,
)
from probseg.semantic.network import class_probabilities, predict_classes
from probseg.types import FeatureInfo
from support.rows import each, pairwise

PRESETS = list_presets("semantic")
CLASSES, STRIDE = {"num_classes": 5}, {"output_stride": 16}
IMAGE = torch.rand(1, 3, 9, 9)
MICRO = [name for name in PRESETS if name.startswith("micro_")]


def micro(name="micro_emanet", training=False, **changes) -> SemanticSegmenter:
    """A micro network whose normalisations have seen something and whose branches are open."""
    torch.manual_seed(0)
    model = semantic_variant(name, changes)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)  # timm starts the last one of a block with zeros
    with torch.no_grad():
        for _ in range(3):
            model(torch.rand(4, 3, 65, 65))
    return model.train(training)


@pytest.fixture(scope="module", params=MICRO)
def model(request) -> SemanticSegmenter:
    return micro(request.param)


class Sampling(Backbone):
    """Every 8th pixel, from the first one on."""

    features = FeatureInfo((3,), (8,))
    mean = (0.5, 0.25, 0.0)
    std = (0.5, 2.0, 1.0)

    def forward(self, x):
        return [x[..., ::8, ::8]]


class Identity(SemanticHead):
    """The coarsest map as logits."""

    def __init__(self, inputs):
        super().__init__(inputs.channels[-1])

    def forward(self, maps):
        return maps[-1]


@each(("height", "width"), [(33, 49), (17, 9), (1, 1)])
def test_a_ramp_comes_back_as_it_was(height, width):
    """Samples lie at their pixels, and between them everything is linear."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    ramp = torch.stack([x, y, x + y]).float().unsqueeze(0) / 96
    logits = SemanticSegmenter(Sampling(), Identity)(ramp)
    mean, std = torch.tensor(Sampling.mean), torch.tensor(Sampling.std)
    expected = (ramp - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_what_is_filled_up_is_the_mean_colour():
    image = torch.rand(1, 3, 12, 20)
    mean = torch.tensor(Sampling.mean).view(1, 3, 1, 1)
    filled = mean.expand(1, 3, 17, 25).clone()
    filled[..., :12, :20] = image
    model = SemanticSegmenter(Sampling(), Identity)
    torch.testing.assert_close(model(image), model(filled)[..., :12, :20])


def test_paper_sized_images_are_not_filled_up():
    seen = []
    model = SemanticSegmenter(Sampling(), Identity)
    model.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[-2:]))
    model(torch.rand(1, 3, 513, 513))
    model(torch.rand(1, 3, 512, 514))
    assert [tuple(size) for size in seen] == [(513, 513), (513, 521)]


def test_a_shift_by_the_stride_shifts_the_logits():
    """Away from the border, for the network whose pixels see only their surroundings."""
    model = micro("micro_fcn")
    scene = torch.rand(1, 3, 297 + 8, 297 + 16)
    with torch.no_grad():
        here = model(scene[..., :297, :297])
        there = model(scene[..., 8:, 16:])
    inner = there[..., 132:164, 132:164]
    torch.testing.assert_close(inner, here[..., 140:172, 148:180], rtol=1e-3, atol=1e-4)
    assert (inner - here[..., 132:164, 132:164]).abs().max() > 1e-2


@each("size", [(37, 53), (33, 64), (57, 41), (8, 9)])
def test_any_size(model, size):
    with torch.no_grad():
        logits = model(torch.rand(2, 3, *size))
    assert logits.shape == (2, model.num_classes, *size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


def test_pictures_of_a_batch_do_not_see_each_other(model):
    images = torch.rand(3, 3, 37, 53)
    with torch.no_grad():
        together = model(images)
        apart = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)


def test_half_precision_is_close(model):
    image = torch.rand(1, 3, 37, 53)
    with torch.no_grad():
        exact = model(image)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(image)
    assert half.dtype == torch.float32
    assert (half - exact).abs().max() < 0.05 * exact.abs().max() + 0.05


@each(
    ("bases", "normalisation"),
    [
        ("moving_average", "l2"),
        ("learnt", "layer"),
        ("fixed", None),
        ("pixels", "l2"),
        (None, None),
    ],
)
def test_everything_learns(bases, normalisation):
    options = {"head": {"bases": bases, "normalisation": normalisation}} if bases else {}
    model = micro("micro_emanet" if bases else "micro_fcn", training=True, **options)
    before = copy.deepcopy(model.state_dict())
    logits = model(torch.rand(2, 3, 57, 41))
    (logits * torch.randn_like(logits)).mean().backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()
    if bases == "moving_average":
        key = "head.emau.bases.initial"
        assert not torch.equal(model.state_dict()[key], before[key])


def test_iterations_are_those_of_evaluation_and_come_back():
    model, image = micro(head={"scale": 5.0}), torch.rand(1, 3, 57, 41)
    often = micro(head={"scale": 5.0, "eval_iterations": 7})
    often.load_state_dict(model.state_dict())
    with torch.no_grad():
        before = model(image)
        with model.iterations(7):
            inside = model(image)
            assert model.head.emau.bases.train_iterations == 3
        assert torch.equal(inside, often(image))
        assert not torch.equal(inside, before)
        assert torch.equal(model(image), before)
    with pytest.raises(RuntimeError, match="stop"), model.iterations(2):
        raise RuntimeError("stop")
    assert model.head.emau.bases.eval_iterations == 3


@pytest.mark.parametrize(("built", "to", "multi_grid"), pairwise([8, 16], [8, 16, 32], [None, [3]]))
def test_another_output_stride_is_that_of_a_network_built_with_it(built, to, multi_grid):
    model = micro(backbone={"output_stride": built, "multi_grid": multi_grid})
    other = micro(backbone={"output_stride": to, "multi_grid": multi_grid})
    other.load_state_dict(model.state_dict())
    image = torch.rand(1, 3, 61, 77)
    described = repr(model), model.backbone.features
    with torch.no_grad():
        before = model(image)
        with model.output_stride(to):
            assert repr(model) == repr(other)
            assert model.backbone.features == other.backbone.features
            assert torch.equal(model(image), other(image))
        assert (repr(model), model.backbone.features) == described
        assert torch.equal(model(image), before)
    with pytest.raises(RuntimeError, match="stop"), model.output_stride(to):
        raise RuntimeError("stop")
    assert (repr(model), model.backbone.features) == described


EMA = {"class_path": "EMAHead", "init_args": {"num_bases": 4}}
WHOLE = {"class_path": "SemanticSegmenter", "init_args": {"head": {"channels": 3}}}
SMALL = {"options": {"layers": [1, 1, 1, 1], "channels": [4, 4, 4, 8]}, "output_stride": 8}
BOTNET = {"class_path": "probseg.backbones.BoTNet", "init_args": {"name": "resnet26", **SMALL}}
SAME = {"options": {"channels": [8, 8, 8, 8]}}  # timm leaves the projection of the shortcut out


def sampled():
    return SemanticSegmenter(Sampling(), Identity)


def fcn(**changes):
    return semantic_variant("micro_fcn", changes)


def at_stride(model, number=16):
    model.output_stride(number).__enter__()


@each(
    ("action", "message"),
    [
        (lambda: sampled()(torch.rand(3, 9, 9)), "`image`"),
        (lambda: sampled()(torch.rand(1, 4, 9, 9)), "`image`"),
        (lambda: sampled()(255 * IMAGE), "by 255"),
        (lambda: sampled()(IMAGE.byte()), "`image`"),
        (lambda: micro("micro_fcn").responsibilities(IMAGE), "`head` .*got FCNHead"),
        (lambda: micro(head={"bases": "pixels"}).responsibilities(IMAGE), "`bases`"),
        (lambda: micro("micro_fcn").iterations(2).__enter__(), "got FCNHead without"),
        (lambda: micro().iterations(0).__enter__(), "`number` .*got 0"),
        (lambda: at_stride(micro(), 4), "`output_stride` .*got 4"),
        (lambda: at_stride(sampled()), "`backbone` .*got Sampling"),
        (lambda: at_stride(micro(backbone=SAME)), r"'layer3\.0\.downsample\.0'"),
        (lambda: at_stride(fcn(backbone=BOTNET)), "conv2"),
        (lambda: fcn(head={"num_clases": 5}), "'num_clases'"),
        (lambda: fcn(head={"inputs": 5}), "'inputs'"),
        (lambda: fcn(head=None), "`head` .*got None"),
        (lambda: fcn(head={"class_path": "ConvHead"}), "`head` .*got ConvHead"),
        (lambda: SemanticSegmenter(Sampling(), ConvHead), "`head` .*got ConvHead"),
        (lambda: variant("micro_conv", {"head": EMA}), "`head` .*got EMAHead"),
        (lambda: semantic_variant("micro_emane"), "'micro_emanet'"),
        (lambda: variant("micro_emanet"), r"semantic_variant\('micro_emanet'\)"),
        (lambda: semantic_variant("micro_csa"), r"models\.variant\('micro_csa'\)"),
        (lambda: build(read_preset("micro_fcn", "semantic"), Segmenter), "`class_path` must be"),
        (lambda: build(WHOLE), "`head`"),
    ],
)
def test_what_cannot_be_is_named(action, message):
    with pytest.raises((ValueError, TypeError, UnknownNameError, UsageError), match=message):
        action()


def test_presets_are_as_described():
    with torch.device("meta"):
        for name, blocks in (("emanet_resnet50", 6), ("emanet_resnet101", 23)):
            model = semantic_variant(name)
            assert len(model.backbone.network.layer3) == blocks
            assert model.backbone.features.strides[-1] == 8
            grid = [block.conv2.dilation for block in model.backbone.last_stage()]
            assert grid == [(4, 4), (8, 8), (16, 16)]
            assert model.head.emau.bases.initial.shape == (1, 64, 512)
            assert model.head.reduce[0].kernel_size == (3, 3)
        varied = semantic_variant("micro_emanet", {"head": CLASSES, "backbone": STRIDE})
        described = {"of": "micro_emanet", "changes": {"head": CLASSES, "backbone": STRIDE}}
        again = build({"class_path": "probseg.semantic.semantic_variant", "init_args": described})
    assert (varied.num_classes, varied.backbone.features.strides[-1]) == (5, 16)
    assert repr(again) == repr(varied)
    assert set(PRESETS).isdisjoint(list_presets())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_without_downloads(name):
    backbone = read_preset(name, "semantic")["init_args"]["backbone"]["init_args"]
    assert not backbone.get("pretrained")
    assert "weights" not in backbone
    with torch.device("meta"):
        model = build(without_downloads(read_preset(name, "semantic")))
        logits = model.eval()(torch.empty(1, 3, 37, 53))
    assert isinstance(model, SemanticSegmenter)
    heads = {"emanet": EMAHead, "deeplabv3": DeepLabV3Head, "fcn": FCNHead}
    (head,) = [head for part, head in heads.items() if part in name]
    assert isinstance(model.head, head)
    assert logits.shape == (1, 21, 37, 53)


class Lopsided(nn.Module):
    """Answers that depend on place and size, so that neither mirroring nor scaling is for free."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, padding=1).double()
        self.seen = []

    def forward(self, image):
        self.seen.append(tuple(image.shape[-2:]))
        across = torch.linspace(-1, 2, image.shape[-1], dtype=image.dtype)
        return self.layer(image) * image.shape[-2] / 8 + across * torch.arange(4.0).view(4, 1, 1)


def by_hand(model, image, scales, flip):
    """The mean of all answers, one after the other."""
    height, width = image.shape[-2:]
    answers = []
    for scale in scales:
        size = round(scale * height), round(scale * width)
        for mirrored in (False, True) if flip else (False,):
            seen = F.interpolate(image, size, mode="bilinear", antialias=True)
            if mirrored:
                seen = torch.flip(seen, [3])
            logits = model(seen)
            exponents = logits.exp()
            answer = exponents / exponents.sum(dim=1, keepdim=True)
            if mirrored:
                answer = torch.flip(answer, [3])
            answers.append(F.interpolate(answer, (height, width), mode="bilinear", antialias=True))
    return torch.stack(answers).mean(dim=0)


@given(
    scales=st.lists(st.sampled_from([0.5, 0.75, 1.0, 1.25, 1.75]), min_size=1, max_size=4),
    flip=st.booleans(),
    size=st.tuples(st.integers(4, 20), st.integers(4, 20)),
    seed=st.integers(0, 100),
)
def test_the_mean_is_that_of_all_answers(scales, flip, size, seed):
    torch.manual_seed(seed)
    model, image = Lopsided(), torch.rand(1, 3, *size, dtype=torch.float64)
    expected = by_hand(model, image, scales, flip)
    found = class_probabilities(model, image, scales, flip)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(1, *size, dtype=torch.float64))
    clear = expected.topk(2, dim=1).values.diff(dim=1).abs().squeeze(1) > 1e-9
    chosen = predict_classes(model, image, scales, flip)
    assert torch.equal(chosen[clear], expected.argmax(dim=1)[clear])


def test_nothing_is_resized_without_need(monkeypatch):
    model, image = Lopsided(), torch.rand(1, 3, 8, 12, dtype=torch.float64)
    class_probabilities(model, image, (0.5, 1.5), flip=True)
    assert model.seen == [(4, 6)] * 2 + [(12, 18)] * 2
    monkeypatch.setattr(F, "interpolate", None)
    assert torch.equal(predict_classes(model, image), model(image).argmax(dim=1))
    assert predict_classes(model, image, (1.0,), flip=True).shape == (1, 8, 12)
