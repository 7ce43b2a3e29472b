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
from probseg.models import (
    Segmenter,
    build,
    list_presets,
    override,
    read_preset,
    variant,
    without_downloads,
)
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
MICRO = [name for name in PRESETS if name.startswith("micro_")]
FULL_SIZE = [name for name in PRESETS if not name.startswith("micro_")]
SIZES = [(37, 53), (33, 64), (57, 41), (8, 9)]


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


# --- alignment ----------------------------------------------------------------------------------


@each(("height", "width"), [(33, 49), (17, 9), (1, 1)])
def test_a_ramp_comes_back_as_it_was(height, width):
    """Samples lie at their pixels, and between them everything is linear."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    ramp = torch.stack([x, y, x - 2 * y]).float().unsqueeze(0) / 64
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


# --- sizes and batches --------------------------------------------------------------------------


@each("size", SIZES)
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


@each("bases", ["moving_average", "learnt", "fixed", "pixels", None])
def test_everything_learns(bases):
    if bases is None:
        model = micro("micro_fcn", training=True)
    else:
        model = micro("micro_emanet", training=True, head={"bases": bases})
    before = copy.deepcopy(model.state_dict())
    logits = model(torch.rand(2, 3, 57, 41))
    (logits * torch.randn_like(logits)).mean().backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()
    if bases == "moving_average":
        key = "head.emau.bases.initial"
        assert not torch.equal(model.state_dict()[key], before[key])


def test_weights_come_back(model):
    fresh = semantic_variant("micro_emanet" if isinstance(model.head, EMAHead) else "micro_fcn")
    fresh.load_state_dict(model.state_dict())
    image = torch.rand(1, 3, 37, 53)
    with torch.no_grad():
        assert torch.equal(fresh.eval()(image), model(image))


@each("image", [torch.rand(3, 9, 9), torch.rand(1, 4, 9, 9), torch.zeros(1, 3, 9, 9).byte()])
def test_other_images_are_refused(image):
    with pytest.raises(ValueError, match="`image`"):
        SemanticSegmenter(Sampling(), Identity)(image)


# --- responsibilities and contexts --------------------------------------------------------------


def test_responsibilities_add_up_to_one():
    found = micro().responsibilities(torch.rand(2, 3, 37, 53))
    assert found.shape == (2, 4, 6, 8)
    assert found.dtype == torch.float32
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(1), torch.ones(2, 6, 8))


def test_without_bases_there_are_no_responsibilities():
    with pytest.raises(ValueError, match=r"`head` .*got FCNHead"):
        micro("micro_fcn").responsibilities(torch.rand(1, 3, 9, 9))
    with pytest.raises(ValueError, match="`bases`"):
        micro(head={"bases": "pixels"}).responsibilities(torch.rand(1, 3, 9, 9))


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
        raise RuntimeError("stop")  # noqa: EM101
    assert model.head.emau.bases.eval_iterations == 3


def test_iterations_need_bases():
    with pytest.raises(ValueError, match="got FCNHead without any"):
        micro("micro_fcn").iterations(2).__enter__()
    with pytest.raises(ValueError, match=r"`number` .*got 0"):
        micro().iterations(0).__enter__()


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
        raise RuntimeError("stop")  # noqa: EM101
    assert (repr(model), model.backbone.features) == described


def test_the_own_output_stride_needs_no_choice():
    model = SemanticSegmenter(Sampling(), Identity)
    with model.output_stride(model.backbone.features.strides[-1]):
        pass


def test_output_strides_that_cannot_be():
    model = micro()
    with pytest.raises(ValueError, match=r"`output_stride` .*got 4"):
        model.output_stride(4).__enter__()
    with pytest.raises(ValueError, match=r"`backbone` .*got Sampling"):
        SemanticSegmenter(Sampling(), Identity).output_stride(16).__enter__()
    # At stride 8 without more channels, timm leaves the projection of the shortcut out.
    same = micro(backbone={"options": {"channels": [8, 8, 8, 8]}})
    with pytest.raises(ValueError, match=r"'layer3\.0\.downsample\.0'"):
        same.output_stride(16).__enter__()


def test_attention_in_the_backbone_keeps_its_output_stride():
    attention = {
        "class_path": "probseg.backbones.BoTNet",
        "init_args": {
            "name": "resnet26",
            "output_stride": 8,
            "options": {"layers": [1, 1, 1, 1], "channels": [4, 4, 4, 8]},
        },
    }
    model = semantic_variant("micro_fcn", {"backbone": attention})
    with pytest.raises(ValueError, match="conv2"):
        model.output_stride(16).__enter__()


# --- presets ------------------------------------------------------------------------------------


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


def test_presets_are_as_described():
    with torch.device("meta"):
        models = {name: semantic_variant(name) for name in FULL_SIZE}
    for name in ("emanet_resnet50", "emanet_resnet101"):
        model = models[name]
        assert model.backbone.features.strides[-1] == 8
        grid = [block.conv2.dilation for block in model.backbone.last_stage()]
        assert grid == [(4, 4), (8, 8), (16, 16)]
        assert model.head.emau.bases.initial.shape == (1, 64, 512)
        assert model.head.reduce[0].kernel_size == (3, 3)
    blocks = [len(models[f"emanet_resnet{d}"].backbone.network.layer3) for d in (50, 101)]
    assert blocks == [6, 23]
    small = models["emanet_lite0"]
    assert small.head.emau.bases.initial.shape == (1, 32, 128)
    assert repr(models["fcn_lite0"].backbone) == repr(small.backbone)


@pytest.mark.parametrize("name", MICRO)
def test_micro_presets_are_small(name):
    assert sum(parameter.numel() for parameter in semantic_variant(name).parameters()) < 20_000


def test_presets_are_varied():
    model = semantic_variant(
        "micro_emanet", {"head": {"num_classes": 5}, "backbone": {"output_stride": 16}}
    )
    assert model.num_classes == 5
    assert model.backbone.features.strides[-1] == 16
    with pytest.raises(TypeError, match="'num_clases'"):
        semantic_variant("micro_emanet", {"head": {"num_clases": 5}})
    with pytest.raises(TypeError, match="'inputs'"):
        semantic_variant("micro_emanet", {"head": {"inputs": 5}})
    with pytest.raises(ValueError, match=r"`head` .*got None"):
        semantic_variant("micro_emanet", {"head": None})


def test_the_two_tasks_have_their_own_presets():
    assert set(PRESETS).isdisjoint(list_presets())
    assert {"emanet_resnet101", "micro_emanet", "fcn_lite0"} <= set(PRESETS)
    for action in (read_preset, variant):
        with pytest.raises(UsageError, match=r"semantic\.semantic_variant\('micro_emanet'\)"):
            action("micro_emanet")
    for action in (semantic_variant, lambda name: read_preset(name, "semantic")):
        with pytest.raises(UsageError, match=r"models\.variant\('micro_csa'\)"):
            action("micro_csa")
    with pytest.raises(UnknownNameError, match="'micro_emanet'"):
        semantic_variant("micro_emane")


def test_descriptions_build_the_network_that_they_name():
    given = "`class_path` must be that of a"
    with pytest.raises(ValueError, match=rf"{given} Segmenter, got .*SemanticSegmenter'"):
        build(read_preset("micro_fcn", "semantic"), Segmenter)
    with pytest.raises(ValueError, match=rf"{given} SemanticSegmenter, got .*Segmenter'"):
        build(read_preset("micro_conv"), SemanticSegmenter)
    whole = {"class_path": "SemanticSegmenter", "init_args": {"head": {"channels": 3}}}
    with pytest.raises(ValueError, match="`head`"):
        build(whole)
    varied = {
        "class_path": "probseg.semantic.semantic_variant",
        "init_args": {"of": "micro_fcn", "changes": {"head": {"num_classes": 4}}},
    }
    assert build(varied).num_classes == 4
    assert ConvHead.__name__ not in repr(build(override(varied, {})))


def test_heads_of_the_other_task_are_refused():
    with pytest.raises(ValueError, match=r"`head` .*got ConvHead"):
        SemanticSegmenter(Sampling(), ConvHead)
    with pytest.raises(ValueError, match=r"`head` .*got ConvHead"):
        semantic_variant("micro_fcn", {"head": {"class_path": "ConvHead"}})
    with pytest.raises(ValueError, match=r"`head` .*got EMAHead"):
        variant("micro_conv", {"head": {"class_path": "EMAHead", "init_args": {"num_bases": 4}}})


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


@each("scales", [(), (0.0, 1.0), (-1.0,)])
def test_sizes_that_make_no_sense(scales):
    with pytest.raises(ValueError, match="`scales`"):
        predict_classes(Lopsided(), torch.rand(1, 3, 8, 8), scales)
