"""Heads of semantic segmentation: shapes, gradients and the size that Li et al. (2019) give."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from probseg.errors import UnknownNameError
from probseg.family.slots import DoubleAttention2d, EMAttention2d
from probseg.lab.gauges import count_multiply_adds
from probseg.semantic import DeepLabV3Head, EMAHead, FCNHead, SemanticHead, semantic_variant
from probseg.semantic.heads import EMAU
from probseg.types import FeatureInfo
from support.network_cases import maps_of
from support.rows import each

PYRAMID = FeatureInfo((4, 5, 6), (2, 4, 8))
HEADS = [EMAHead, FCNHead, DeepLabV3Head]


@pytest.mark.parametrize("kind", HEADS)
def test_logits_are_those_of_the_coarsest_map(kind):
    head = kind(PYRAMID, num_classes=7, channels=8)
    assert isinstance(head, SemanticHead)
    assert head.num_classes == 7
    if isinstance(head, EMAHead):  # new ones are the identity
        nn.init.ones_(head.emau.leave[1].weight)
    given = [one.requires_grad_() for one in maps_of(PYRAMID, 2, 72, 72)]
    logits = head(given)
    assert logits.shape == (2, 7, 9, 9)
    logits.square().sum().backward()
    assert given[-1].grad.abs().max() > 0
    assert given[0].grad is None
    for parameter in head.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_the_released_head_narrows_the_features_before_it_classifies():
    head = EMAHead(PYRAMID, num_classes=3, channels=8, num_bases=5, released=True)
    head = head.double().eval()
    given = [one.double() for one in maps_of(PYRAMID, 2, 72, 72)]
    conv, norm, _ = head.narrow
    assert conv.weight.shape == (4, 8, 3, 3)
    x = head.emau(head.reduce(given[-1]))
    x = nn.functional.conv2d(x, conv.weight, padding=1)
    x = nn.functional.batch_norm(
        x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
    )
    wanted = nn.functional.conv2d(x.relu(), head.classify.weight, head.classify.bias)
    torch.testing.assert_close(head(given), wanted)
    head.train()
    seen = []
    head.classify.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for _ in range(30):
        head(given)
    dropped = (torch.stack(seen) == 0).flatten(3).all(dim=-1)  # whole channels
    assert 0 < dropped.double().mean() < 0.5


def test_the_released_head_has_the_size_of_the_code():
    with torch.device("meta"):
        head = EMAHead(FeatureInfo((2048,), (8,)), num_classes=21, released=True)
    count = sum(weight.numel() for weight in head.parameters())  # without the bases
    assert count / 1e6 == pytest.approx(11.15, abs=0.005)


def test_dropout_is_for_training():
    head = FCNHead(PYRAMID, num_classes=3, channels=8, dropout=0.5)
    given = maps_of(PYRAMID, 2, 72, 72)
    assert not torch.equal(head(given), head(given))
    head.eval()
    assert torch.equal(head(given), head(given))


def test_arguments_of_the_unit_arrive():
    options = {"momentum": 0.7, "train_iterations": 1, "eval_iterations": 6}
    of_bases = {"bases": "learnt", "normalisation": None, "num_bases": 5, **options}
    emau = EMAHead(PYRAMID, channels=8, scale=0.5, **of_bases).emau
    assert emau.bases.initial.shape == (1, 5, 8)
    assert (emau.bases.update, emau.bases.normalisation, emau.scale) == ("learnt", None, 0.5)
    assert {name: getattr(emau.bases, name) for name in options} == options


@each(
    ("action", "error", "message"),
    [
        *((partial(kind, PYRAMID, 1), ValueError, "`num_classes` .*got 1") for kind in HEADS),
        (partial(EMAHead, PYRAMID, bases="pixel"), UnknownNameError, "'pixel'"),
        (partial(EMAU, 6, 3, "learnt", released=True), ValueError, "released"),
        (partial(EMAU, 6, 3, normalisation="layer", released=True), ValueError, "released"),
        (lambda: build(bases="pixels").responsibilities(features()), ValueError, "`bases`"),
    ],
)
def test_wrong_arguments_are_named(action, error, message):
    with pytest.raises(error, match=message):
        action()


def weights(module) -> int:
    """All that is stored and used: the bases are a buffer."""
    bases = [tensor for name, tensor in module.named_buffers() if name.endswith("bases.initial")]
    return sum(tensor.numel() for tensor in [*module.parameters(), *bases])


DEEP_STEM = {"options": {"stem_type": "deep", "stem_width": 64}}
"""Three 3x3 convolutions, which the published figures of the backbone are those of."""


@pytest.mark.parametrize(
    ("stem", "channels", "millions", "giga"), [(DEEP_STEM, 512, 10.0, 43.1), ({}, 256, 4.87, 21.1)]
)
def test_emanet_is_as_large_as_published(stem, channels, millions, giga):
    """Tab. 1: at 513 pixels and output stride 8; multiply-adds, classifier of 21 classes."""
    with torch.device("meta"), torch.no_grad():
        changes = {"backbone": stem, "head": {"channels": channels}}
        model = semantic_variant("emanet_resnet101", changes).eval()
        image = torch.empty(1, 3, 513, 513)
        maps = model.backbone(image)
        of_backbone = count_multiply_adds(lambda: model.backbone(image)) / 1e9
        of_head = count_multiply_adds(lambda: model.head(maps)) / 1e9
    assert maps[-1].shape == (1, 2048, 65, 65)
    if stem:
        assert weights(model.backbone) / 1e6 == pytest.approx(42.6, rel=0.02)
        assert of_backbone == pytest.approx(190.6, rel=0.02)
    else:  # the preset as it is has the stem of torchvision's weights
        assert weights(model.backbone) / 1e6 == pytest.approx(42.50, abs=0.005)
        assert of_backbone == pytest.approx(182.75, abs=0.005)
    assert weights(model.head) / 1e6 == pytest.approx(millions, rel=0.02)
    assert of_head == pytest.approx(giga, rel=0.02)


def test_deeplabv3_is_as_large_as_published():
    """Tab. 1: + 15.5 M weights and + 63.4 G multiply-adds."""
    with torch.device("meta"), torch.no_grad():
        head = DeepLabV3Head(FeatureInfo((2048,), (8,))).eval()
        maps = [torch.empty(1, 2048, 65, 65)]
        giga = count_multiply_adds(lambda: head(maps)) / 1e9
    assert [conv[0].dilation[0] for conv in head.pyramid.atrous] == [12, 24, 36]
    assert weights(head) / 1e6 == pytest.approx(15.5, rel=0.01)
    assert giga == pytest.approx(63.4, rel=0.01)


CHANNELS = 6


def build(**options) -> EMAU:
    """A unit that does something: new ones are the identity."""
    torch.manual_seed(0)
    unit = EMAU(CHANNELS, **{"num_bases": 3, **options})
    nn.init.ones_(unit.leave[1].weight)
    return unit


def test_a_new_unit_is_the_identity():
    x = features().relu()
    unit = EMAU(CHANNELS, num_bases=3)
    torch.testing.assert_close(unit(x), x)
    torch.testing.assert_close(unit.eval()(x), x)


class Released:
    """The unit of the authors' code, in float64: its moving average, and what has a gradient."""

    def __init__(self, unit: EMAU) -> None:
        draw = torch.Generator().manual_seed(5)
        size = (CHANNELS, CHANNELS)
        self.enter = torch.randn(size, generator=draw, dtype=torch.float64)
        self.offset = torch.randn(CHANNELS, generator=draw, dtype=torch.float64)
        self.leave = torch.randn(size, generator=draw, dtype=torch.float64, requires_grad=True)
        mu = torch.randn(3, CHANNELS, generator=draw, dtype=torch.float64)
        self.mu = mu / mu.norm(dim=1, keepdim=True)
        with torch.no_grad():
            unit.enter.weight.copy_(self.enter[..., None, None])
            unit.enter.bias.copy_(self.offset)
            unit.leave[0].weight.copy_(self.leave[..., None, None])
            unit.bases.initial.copy_(self.mu[None])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """A step of training: the result, after which the moving average has followed."""
        read, fitted = [], []
        with torch.no_grad():
            for picture in x.flatten(2):  # (C, N)
                tokens = self.enter @ picture + self.offset[:, None]
                mu = self.mu  # as it is stored
                for _ in range(3):
                    z = (mu @ tokens).softmax(dim=0)  # (K, N)
                    mu = (z / (1e-6 + z.sum(dim=1, keepdim=True))) @ tokens.T
                    mu = mu / (1e-6 + mu.norm(dim=1, keepdim=True))
                read.append((mu.T @ z).relu())
                fitted.append(mu)
            self.mu = 0.9 * self.mu + 0.1 * torch.stack(fitted).mean(dim=0)
        y = self.leave @ torch.stack(read)  # (B, C, N)
        mean, variance = y.mean(dim=(0, 2)), y.var(dim=(0, 2), unbiased=False)
        y = (y - mean[:, None]) / (variance[:, None] + 1e-5).sqrt()  # its factor starts at 1
        return (y.view(x.shape) + x).relu()


def test_the_released_code_is_a_variant():
    unit = EMAU(CHANNELS, num_bases=3, released=True).double()
    lengths = unit.bases.initial.norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    released = Released(unit)
    for step in range(4):
        x, theirs = (features(seed=step).double().requires_grad_() for _ in range(2))
        found, wanted = unit(x), released(theirs)
        # Its two divisions with 1e-6 move the bases by as much.
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        weights = features(seed=9).double()
        unit.zero_grad()
        released.leave.grad = None
        (found * weights).sum().backward()
        (wanted * weights).sum().backward()
        torch.testing.assert_close(x.grad, theirs.grad, rtol=1e-4, atol=1e-4)
        grad = unit.leave[0].weight.grad[..., 0, 0]
        torch.testing.assert_close(grad, released.leave.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(unit.bases.initial[0], released.mu, rtol=1e-5, atol=1e-5)
    assert unit.enter.weight.grad is None
    assert unit.bases.initial.norm(dim=-1).max() < 0.99  # shorter than the paper's


def features(batch=2, size=(4, 5), seed=1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, CHANNELS, *size, generator=generator)


def by_hand(unit: EMAU, x: torch.Tensor, iterations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fig. 2 of Li et al. (2019) in evaluation mode, picture by picture, in float64."""
    unit, x = unit.double(), x.double()
    results, maps = [], []
    for picture in x:
        tokens = torch.einsum("dc,chw->dhw", unit.enter.weight[..., 0, 0], picture)
        tokens = (tokens + unit.enter.bias[:, None, None]).flatten(1).T  # (N, C)
        bases = tokens if unit.bases is None else functional.normalize(unit.bases.initial[0])
        z = torch.softmax(unit.scale * tokens @ bases.T, dim=-1)
        for t in range(iterations):
            z = torch.softmax(unit.scale * tokens @ bases.T, dim=-1)
            bases = functional.normalize((z / z.sum(0)).T @ tokens)
            assert t < iterations
        read = (z @ bases).relu() @ unit.leave[0].weight[..., 0, 0].T
        norm = unit.leave[1]
        read = (read - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps)
        read = read * norm.weight + norm.bias
        results.append((read.T.reshape(picture.shape) + picture).relu())
        maps.append(z.T.reshape(-1, *picture.shape[1:]))
    return torch.stack(results), torch.stack(maps)


@each("kind", ["moving_average", "learnt", "fixed", "pixels"])
def test_it_is_the_figure(kind):
    unit = build(bases=kind, eval_iterations=4, scale=1.5)
    for _ in range(3):  # moves the statistics
        unit(features(seed=2))
    unit.eval()
    x = features()
    with torch.no_grad():
        found = unit(x)
        shares = None if kind == "pixels" else unit.responsibilities(x)
        expected, maps = by_hand(unit, x, 0 if kind == "pixels" else 4)
    assert found.shape == x.shape
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    if shares is not None:
        assert shares.dtype == torch.float32
        torch.testing.assert_close(shares.double(), maps, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(shares.sum(1), torch.ones(2, 4, 5))


def test_training_moves_the_bases_towards_those_of_the_pictures():
    unit = build(train_iterations=2, momentum=0.75)
    before = unit.bases.initial.clone()
    unit(features())
    tokens = unit.enter(features()).flatten(2).mT
    bases = functional.normalize(before, dim=-1).expand(2, -1, -1)
    for _ in range(2):
        z = torch.softmax(tokens @ bases.mT, dim=-1)
        bases = functional.normalize((z / z.sum(1, keepdim=True)).mT @ tokens, dim=-1)
    expected = 0.75 * before + 0.25 * bases.mean(0, keepdim=True)
    torch.testing.assert_close(unit.bases.initial, expected)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_evaluation_is_the_same_with_and_without_gradients(layout):
    unit = build()
    unit(features(seed=2))
    unit.eval()
    x = features().contiguous(memory_format=layout)
    with torch.no_grad():
        found = unit(x)
    torch.testing.assert_close(found, unit(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(x, features())


def test_under_autocast_em_keeps_its_precision():
    unit = build()
    before = unit.bases.initial.clone()
    with torch.autocast("cpu", torch.bfloat16):
        shares = unit.responsibilities(features())
        assert torch.equal(unit.bases.initial, before), "looking moves nothing"
        low = unit(features())
    assert unit.bases.initial.dtype == shares.dtype == torch.float32
    moved = unit.bases.initial.clone()
    unit.bases.initial.copy_(before)
    exact = unit(features())
    assert (low - exact).abs().max() < 0.1
    assert (unit.bases.initial - moved).abs().max() < 0.01


@each(("layer", "iterations"), [(EMAttention2d, 4), (DoubleAttention2d, 1)])
def test_em_attention_gathers_values_in_place_of_queries(layer, iterations):
    """Double attention is one iteration through learnt bases."""
    options = {"num_heads": 2, "head_channels": 5, "num_bases": 3}
    several = {"eval_iterations": 4} if layer is EMAttention2d else {}
    attention, x = layer(CHANNELS, 8, **options, **several).eval(), features()
    tokens, values = (  # (B, G, N, D), (B, G, N, V)
        part(x).reshape(2, 2, -1, math.prod(x.shape[-2:])).mT
        for part in (attention.query, attention.value)
    )
    bases = attention.bases.initial
    if iterations > 1:
        bases = functional.normalize(bases, dim=-1)
    for iteration in range(iterations):
        z = torch.softmax(tokens @ bases.mT, dim=-1)
        shares = z / z.sum(-2, keepdim=True)
        if iteration < iterations - 1:
            bases = functional.normalize(shares.mT @ tokens, dim=-1)
    found = attention(x)
    torch.testing.assert_close(found, (z @ (shares.mT @ values)).mT.reshape(2, 8, 4, 5))
    if layer is DoubleAttention2d:
        found.square().sum().backward()
        assert attention.bases.initial.grad.any()


def test_the_bases_of_a_layer_follow_all_lines():
    layer = EMAttention2d(
        CHANNELS, 4, head_channels=5, num_bases=3, axis="width", train_iterations=2, momentum=0.5
    )
    before, x = layer.bases.initial.clone(), features()
    layer(x)
    rows = layer.query(x).permute(0, 2, 3, 1).flatten(0, 1)  # (B H, W, D)
    bases = functional.normalize(before, dim=-1).expand(8, -1, -1)
    for _ in range(2):
        z = torch.softmax(rows @ bases.mT, dim=-1)
        bases = functional.normalize((z / z.sum(-2, keepdim=True)).mT @ rows, dim=-1)
    torch.testing.assert_close(layer.bases.initial, 0.5 * before + 0.5 * bases.mean(0))


@each("layer", [EMAttention2d, DoubleAttention2d])
@each("option", [{"position": "full"}, {"span": 3, "axis": "width"}])
def test_bases_have_no_place_on_the_map(layer, option):
    with pytest.raises(ValueError, match="bases") as caught:
        layer(CHANNELS, 4, **option)
    assert next(iter(option)) in str(caught.value)
