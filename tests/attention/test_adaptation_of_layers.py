"""Adaptation of keys, values and classifiers in networks that are already trained."""

import math
import re

import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from probseg.attention import (
    Adaptation,
    AdaptiveClassifier,
    ClickAdaptation,
    ProbabilisticAttention2d,
    StandardAttention2d,
    adapt,
    adaptation_of,
    probabilistic_layers,
    restored,
)
from probseg.backbones import Backbone
from probseg.heads import ConvHead, CorrectiveSelfAttention, FPNDecoder
from probseg.models import Segmenter, list_presets
from probseg.types import FeatureInfo, Prompts
from support.fakes import micro_model
from support.network_cases import draw
from support.rows import each

PROPAGATES = {"value_precision": 0.5, "propagation_iterations": 1, "value_prior": 0.1}


def updates(layer):
    settings = layer.inference()
    return settings.key_adaptation, settings.value_propagation


def build(**options):
    torch.manual_seed(0)
    return ProbabilisticAttention2d(8, 6, num_heads=2, head_channels=4, **options)


def clicked():
    mask = torch.zeros(1, 4, 5, dtype=torch.bool)
    mask[0, 1, 2] = True
    return draw(1, 8, 4, 5), None, draw(1, 6, 4, 5, seed=1), mask


class Attending(Backbone):
    """A convolution and an attention layer."""

    features = FeatureInfo((8,), (2,))
    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)

    def __init__(self, attention=ProbabilisticAttention2d, **options):
        super().__init__()
        self.first = nn.Conv2d(3, 8, kernel_size=3, stride=2, padding=1)
        self.attention = attention(8, 8, head_channels=4, **options)

    def forward(self, x):
        return [self.attention(self.first(x))]


def network(backbone=None, head=None, **options):
    """A network with attention in its backbone, in its head, or in both."""
    torch.manual_seed(0)

    def build_head(inputs, value_channels):
        if head is None:
            return ConvHead(inputs, value_channels)
        arguments = {"channels": 8, "stride": 4, **head}
        return CorrectiveSelfAttention(inputs, value_channels, **arguments)

    return Segmenter(
        Attending(**(backbone or {})), lambda inputs: FPNDecoder(inputs, 8, 2), build_head
    ).eval()


def answer(model):
    image = torch.rand(1, 3, 24, 32, generator=torch.Generator().manual_seed(0))
    clicks = Prompts(
        torch.tensor([[[20.0, 10.0], [4.0, 9.0]]]), torch.tensor([[1, 0]]), torch.zeros(1, 4) / 0
    )
    with torch.no_grad():
        return model(image, clicks)


def keys_of(part):
    return [layer.settings.key_adaptation for layer in probabilistic_layers(part)]


def values_of(part):
    return [layer.settings.value_propagation for layer in probabilistic_layers(part)]


@each(
    ("name", "wrong"),
    [("key_prior", -1), ("key_prior", math.nan), ("key_iterations", -1), ("value_prior", math.inf),
     ("value_iterations", -1), ("query_precision", 0.0), ("query_precision", math.inf),
     ("click_prior", 0.0), ("click_prior", 1e-46),  # 0 in float32
     ("click_prior", 1e39), ("click_iterations", -1), ("key_iterations", 1.5)],
)  # fmt: skip
def test_numbers_out_of_range_are_named(name, wrong):
    with pytest.raises(ValueError, match=f"^`{name}`.*got {wrong}".replace("+", r"\+")):
        Adaptation(**{name: wrong})


def test_the_classifier_is_reached_and_restored():
    model = network()
    assert model.adaptation().click_iterations == 0
    plain = answer(model)
    with restored(model):
        model.adapt(Adaptation(click_iterations=3, click_prior=1.0))
        assert not torch.allclose(answer(model), plain)
        assert model.adaptation().click_prior == 1.0
    assert torch.equal(answer(model), plain)
    with pytest.raises(ValueError, match=r"click_iterations=1.*no classifier"):
        network(head={}).adapt(Adaptation(click_iterations=1))


@each("of", ["key", "value"])
@each("iterations", [None, 0])
def test_a_prior_without_iterations_is_refused(of, iterations):
    model = network({"key_iterations": 0}, head={"propagation_iterations": 1})
    model.adapt(Adaptation(value_iterations=0))
    before = [layer.settings for layer in probabilistic_layers(model)]
    with pytest.raises(ValueError, match=rf"^`{of}_prior` .*`{of}_iterations`"):
        model.adapt(Adaptation(**{f"{of}_iterations": iterations, f"{of}_prior": 0.5}))
    assert [layer.settings for layer in probabilistic_layers(model)] == before


def test_settings_come_back_after_an_error():
    layer = build()
    before = layer.settings

    def fail():
        with restored(nn.Sequential(layer)):
            layer.adapt_keys(3)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert layer.settings == before


def test_a_given_prior_takes_the_place_of_a_learnt_one():
    layer = build(learn_priors=True, learn_precisions=True, key_prior=0.3, **PROPAGATES)
    nn.init.constant_(layer.log_query_precision, 1.0)
    fixed = build(key_prior=0.7, **{**PROPAGATES, "value_prior": 2.0})
    assert adaptation_of(layer, nn.Identity()).key_prior is None  # given back, it stays learnt
    with restored(layer):
        layer.adapt_keys(prior=0.7, query_precision=fixed.query_precision)
        layer.adapt_values(prior=2.0)
        assert [update.prior_precision for update in updates(layer)] == [0.7, 2.0]
        output = layer(*clicked())
        torch.testing.assert_close(output, fixed(*clicked()))
        output.sum().backward()
        assert layer.log_key_prior.grad is layer.log_query_precision.grad is None
        assert layer.log_value_prior.grad is None
    layer(*clicked()).square().sum().backward()
    assert layer.log_key_prior.grad.any()
    assert layer.log_query_precision.grad.any()
    assert layer.log_value_prior.grad.any()


def test_learnt_priors_outlive_another_number_of_iterations():
    layer = build(learn_priors=True, key_prior=0.3, **PROPAGATES)
    layer.adapt_keys(2)
    layer.adapt_values(4)
    keys, values = updates(layer)
    assert (keys.iterations, values.iterations) == (2, 4)
    assert torch.equal(keys.prior_precision, layer.log_key_prior.exp())
    assert torch.equal(values.prior_precision, layer.log_value_prior.exp())


def test_keys_adapt_in_the_backbone_or_without_one_in_the_head():
    for backbone, parts in (({}, "backbone"), ({"attention": StandardAttention2d}, "head")):
        model = network(backbone, head={"propagation_iterations": 1})
        in_head, before = keys_of(model.head), answer(model)
        model.adapt(Adaptation(key_iterations=3, key_prior=0.5))
        updates = keys_of(getattr(model, parts))
        assert {(update.iterations, update.prior_precision) for update in updates} == {(3, 0.5)}
        assert (keys_of(model.head) == in_head) == (parts == "backbone")
        assert (answer(model) - before).abs().max() > 1e-5


def test_values_propagate_in_the_last_block_of_the_head():
    model = network(head={"propagation_iterations": 1})
    untouched = (values_of(model.backbone), values_of(model.head.height), keys_of(model))
    before = answer(model)
    model.adapt(Adaptation(value_iterations=5, value_prior=0.1))
    (values,) = values_of(model.head.last)
    assert (values.iterations, values.prior_precision) == (5, 0.1)
    assert (values_of(model.backbone), values_of(model.head.height), keys_of(model)) == untouched
    assert (answer(model) - before).abs().max() > 1e-5


def test_none_leaves_a_setting_as_it_is():
    model = network(head={"propagation_iterations": 2, "value_prior": 3.0})
    settings = [layer.settings for layer in probabilistic_layers(model)]
    model.adapt(Adaptation())
    assert [layer.settings for layer in probabilistic_layers(model)] == settings
    model.adapt(Adaptation(key_iterations=4, value_prior=0.5))
    (keys,), (values,) = keys_of(model.backbone), values_of(model.head.last)
    assert (keys.iterations, keys.prior_precision) == (4, 0.0)
    assert (values.iterations, values.prior_precision) == (2, 0.5)
    micro_model("micro_conv").adapt(Adaptation())


def test_layers_that_differ_keep_their_settings():
    model = network(head={"propagation_iterations": 1})
    first, *_ = layers = probabilistic_layers(model.head)
    body = nn.Identity()
    first.adapt_keys(3, 0.5, query_precision=2.0)
    before = [layer.settings for layer in layers]
    present = adaptation_of(body, model.head)
    assert present.key_iterations is present.key_prior is present.query_precision is None
    adapt(body, model.head, present)
    assert [layer.settings for layer in layers] == before


def test_a_sharper_query_is_a_longer_one():
    model = network({"key_iterations": 0})
    (layer,) = probabilistic_layers(model.backbone)
    alpha = model.adaptation().query_precision
    assert alpha == layer.head_channels**-0.5
    model.adapt(Adaptation(query_precision=4 * alpha))
    sharper = answer(model)
    with torch.no_grad():
        layer.query.weight *= 4
    model.adapt(Adaptation(query_precision=alpha))
    torch.testing.assert_close(sharper, answer(model))


@each(
    ("changes", "backbone", "head"),
    [
        ({"key_iterations": 0}, {"key_iterations": 0}, {}),
        *[(keys, keys, {}) for keys in [{"key_iterations": 3, "key_prior": 0.4}]],
        (
            {"value_iterations": 4, "value_prior": 0.2},
            {},
            {"propagation_iterations": 4, "value_prior": 0.2},
        ),
    ],
)
def test_an_adapted_network_is_the_one_built_so(changes, backbone, head):
    model = network(head={"propagation_iterations": 1})
    built = network(backbone, head={"propagation_iterations": 1, **head})
    built.load_state_dict(model.state_dict())
    expected = answer(built)
    assert (answer(model) - expected).abs().max() > 1e-6
    model.adapt(Adaptation(**changes))
    assert torch.equal(answer(model), expected)


@each(
    ("model", "changes", "parts"),
    [
        ("micro_conv", {"key_iterations": 2}, ["key_iterations=2", "no probabilistic attention"]),
        ("micro_conv", {"key_prior": 0.5}, ["key_prior=0.5", "no probabilistic attention"]),
        ("micro_csa", {"value_iterations": 1}, ["value_iterations=1", "CorrectiveSelfAttention"]),
        ("micro_conv", {"value_prior": 1.0}, ["value_prior=1.0", "ConvHead"]),
        ("micro_csa", {"key_iterations": 2, "value_iterations": 1}, ["without value propagation"]),
    ],
)
def test_networks_that_cannot_adapt_say_which_can(model, changes, parts):
    model = micro_model(model)
    before = [layer.settings for layer in probabilistic_layers(model)]
    with pytest.raises(ValueError, match="choose one with it") as caught:
        model.adapt(Adaptation(**changes))
    for part in parts:
        assert part in str(caught.value)
    named = re.findall(r"'(\w+)'", str(caught.value))
    assert named
    assert set(named) <= set(list_presets())
    assert [layer.settings for layer in probabilistic_layers(model)] == before


def classifier(iterations=3, prior=2.0, channels=4):
    torch.manual_seed(0)
    return AdaptiveClassifier(channels, ClickAdaptation(iterations, prior)).double()


def drawn(batch=2):
    features = torch.randn(batch, 4, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    clicks = torch.zeros(batch, 2, 20, 24)
    clicks[0, 0, 4:8, 4:12] = 1  # two whole cells
    clicks[0, 1, 8:10, 12:16] = 1  # half a cell
    clicks[-1, 1, :4, :4] = 1
    return features, clicks


def convolution(layer, features):
    return torch.nn.functional.conv2d(features, layer.weight, layer.bias)


def test_without_clicks_or_iterations_it_is_the_convolution():
    features, clicks = drawn()
    layer = classifier()
    plain = convolution(layer, features)
    assert torch.equal(layer(features), plain)
    assert torch.equal(layer(features, torch.zeros_like(clicks)), plain)
    assert torch.equal(classifier(iterations=0)(features, clicks), plain)
    only_first = torch.cat([clicks[:1], torch.zeros_like(clicks[1:])])
    assert torch.allclose(layer(features, only_first)[1], plain[1])


def test_factors_of_the_contributions_are_at_the_posterior_mode():
    """Against the definition: factors around 1, a shift around 0, and the clicked cells."""
    features, clicks = drawn(batch=1)
    layer = classifier(iterations=500)
    weight, bias = layer.weight.detach().flatten(), layer.bias.detach()
    cells = [(1, 1, 1.0, 0.0), (1, 2, 1.0, 0.0), (2, 3, 0.0, 0.5), (0, 0, 0.0, 1.0)]

    def logits(unknown, at):
        factors, shift = unknown[:4], unknown[4]
        return (factors * weight * at).sum() + bias + shift * weight.norm()

    def loss(unknown):
        unknown = torch.tensor(unknown, requires_grad=True)
        total = ((unknown[:4] - 1).square().sum() + unknown[4] ** 2) * 2.0 / 2
        for row, column, positive, negative in cells:
            z = logits(unknown, features[0, :, row, column])
            total = total - positive * torch.nn.functional.logsigmoid(z).sum()
            total = total - negative * torch.nn.functional.logsigmoid(-z).sum()
        total.backward()
        return total.item(), unknown.grad.numpy()

    best = minimize(loss, [1.0, 1.0, 1.0, 1.0, 0.0], jac=True, options={"gtol": 1e-9})
    unknown = torch.tensor(best.x)
    expected = [[logits(unknown, features[0, :, y, x]).item() for x in range(6)] for y in range(5)]
    assert torch.allclose(layer(features, clicks)[0, 0], torch.tensor(expected).double(), atol=1e-6)


def test_images_do_not_see_each_other():
    features, clicks = drawn()
    together = classifier()(features, clicks)
    alone = torch.cat([classifier()(features[n : n + 1], clicks[n : n + 1]) for n in range(2)])
    assert torch.allclose(together, alone, rtol=1e-10)


def test_gradients():
    features, clicks = drawn()
    layer = classifier()
    names = ("weight", "bias")

    def function(features, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, given, (features, clicks))

    inputs = (features, layer.weight.detach(), layer.bias.detach())
    assert torch.autograd.gradcheck(function, [one.requires_grad_() for one in inputs])
