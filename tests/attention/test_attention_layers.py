"""The attention layers as modules, compiled too; what holds for every attention."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from probseg.attention import (
    ATTENTIONS,
    Attention2d,
    ProbabilisticAttention2d,
    StandardAttention2d,
    build_attention,
)
from probseg.errors import UnknownNameError
from probseg.family import HardAttention2d
from support.fakes import micro_model
from support.micro import described
from support.network_cases import attention_layer, draw, prompts
from support.refusals import refused
from support.rows import each
from support.runs import QUIET, finished

VIEWS = [
    {"axis": "full"},
    {"axis": "height"},
    {"axis": "width"},
    {"axis": "height", "span": 3},
    {"axis": "width", "span": 2},
]


@pytest.fixture(params=["standard", "probabilistic"])
def dot_product(request) -> str:
    return request.param


def with_weights_of(layer: Attention2d, name: str, **options) -> Attention2d:
    """Another layer with the same projections."""
    other = build_attention(name, 8, 6, num_heads=2, head_channels=4, **options)
    other.load_state_dict(layer.state_dict())
    return other


@each("view", VIEWS)
def test_without_adaptation_it_is_the_standard_layer(view):
    standard = StandardAttention2d(8, 6, num_heads=2, head_channels=4, **view)
    plain = with_weights_of(standard, "probabilistic", key_iterations=0, **view)
    adapted = with_weights_of(standard, "probabilistic", **view)
    features = draw(2, 8, 5, 7)
    assert torch.equal(plain(features), standard(features))
    assert (adapted(features) - standard(features)).abs().max() > 1e-3


def test_a_click_reaches_all_pixels_in_sight(dot_product):
    layer = build_attention(dot_product, 8, 6, value_in_channels=9, axis="width", span=5)
    features, clicks = draw(1, 8, 3, 9), torch.zeros(1, 1, 3, 9)
    before = layer(features, torch.cat([features, clicks], 1))
    clicks[0, 0, 1, 4] = 1.0
    after = layer(features, torch.cat([features, clicks], 1))
    changed = (after != before).any(1)[0]
    expected = torch.zeros(3, 9, dtype=torch.bool)
    expected[1, 2:7] = True
    assert torch.equal(changed, expected)


def test_the_queries_are_the_keys_where_they_are_one_projection(dot_product):
    layer = build_attention(dot_product, 8, 6, one_projection=True)
    two = build_attention(dot_product, 8, 6)
    two.load_state_dict({**layer.state_dict(), "key.weight": layer.query.weight})
    features = draw(2, 8, 5, 7)
    assert torch.equal(layer(features), two(features))


def test_options_reach_the_computation():
    features = draw(1, 8, 4, 5)
    base = ProbabilisticAttention2d(8, 6, num_heads=2, head_channels=4)
    outputs = [
        with_weights_of(base, "probabilistic", **options)(features)
        for options in (
            {},
            {"log_prior": "uniform"},
            {"log_prior": "uniform", "value_precision": 0.5, "value_iterations": 2},
            {"value_precision": 0.5},
            {"value_precision": 0.5, "value_iterations": 2},
            {"key_iterations": 3},
            {"key_prior": 0.5},
            {"key_prior": 0.5, "key_iterations": 3},
            {"log_prior": "key_magnitude", "value_precision": 0.5, "value_iterations": 2},
        )
    ]
    for i, one in enumerate(outputs):
        for other in outputs[:i]:
            assert (one - other).abs().max() > 1e-4


def test_settings_are_printed():
    layer = ProbabilisticAttention2d(8, 6, axis="width", span=5, key_iterations=2)
    for setting in ("axis='width'", "span=5", "key_iterations=2"):
        assert setting in repr(layer)


def test_wrong_arguments_are_named(dot_product):
    layer = build_attention(dot_product, 8, 6, value_in_channels=3)
    build = partial(build_attention, dot_product, 8, 6)
    for error, call, message in (
        (UnknownNameError, lambda: build_attention("standart", 8, 6), "'standard'"),
        (TypeError, lambda: build_attention("standard", 8, 6, heads=2), "mean 'num_heads'"),
        (UnknownNameError, lambda: build(axis="diagonal"), "unknown axis"),
        (ValueError, lambda: build(num_heads=4), "`out_channels`"),
        (ValueError, lambda: build(span=3), "`span`"),
        (ValueError, lambda: layer(draw(1, 8, 4, 5)), "`features`"),
        (ValueError, lambda: layer(draw(1, 20, 8)), "probseg.attention.ProbabilisticAttention"),
        (TypeError, lambda: build(no_such_option=1), "no_such_option"),
    ):
        refused(error, call, message)


@pytest.fixture(params=ATTENTIONS)
def name(request) -> str:
    return request.param


def reason_against(name: str, option: str) -> str | None:
    """Why a layer does not take an option; None where it does."""
    return getattr(ATTENTIONS[name], f"no_{option}")


@each(("axis", "size"), [("full", (5, 7)), ("full", (1, 1)), ("height", (8, 3)), ("width", (1, 4))])
def test_shapes_and_gradients(name, axis, size):
    layer = build_attention(name, 8, 6, num_heads=3, head_channels=4, axis=axis)
    features = draw(2, 8, *size).requires_grad_()
    output = layer(features)
    assert output.shape == (2, 6, *size)
    output.square().sum().backward()
    assert features.grad.isfinite().all()
    for parameter in layer.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
    assert layer.value.weight.grad.abs().max() > 0


def test_it_is_the_expectation_of_the_values_over_the_edges(name):
    layer = build_attention(name, 8, 6, num_heads=2, head_channels=4).eval()
    features = draw(2, 8, 4, 5)
    values = layer.value(features).reshape(2, 2, 3, 20).mT  # (B, G, N, V)
    edges = layer.posterior(features)
    weights = edges.log_probability(slice(None)).exp()  # (B, G, N, N)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 20))
    expected = weights @ values
    torch.testing.assert_close(edges.expect(values), expected, rtol=1e-4, atol=1e-5)
    if isinstance(layer, HardAttention2d):  # in a test, the single most probable edge instead
        expected = values.gather(-2, weights.argmax(-1, keepdim=True).expand(values.shape))
    found = layer(features).reshape(2, 2, 3, 20).mT
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_clicks_in_the_values_do_not_decide_where_to_look(name):
    layer = build_attention(name, 8, 6, num_heads=2, value_in_channels=3).eval()
    features, one, two = draw(2, 8, 4, 5), draw(2, 3, 4, 5, seed=1), draw(2, 3, 4, 5, seed=2)
    mixed = layer(features, 2 * one - two)
    linear = 2 * layer(features, one) - layer(features, two)
    torch.testing.assert_close(mixed, linear, rtol=1e-4, atol=1e-4)
    constant = torch.ones(2, 3, 4, 5)
    torch.testing.assert_close(layer(features, constant), layer.value(constant))


def test_images_do_not_see_each_other(name):
    layer = build_attention(name, 8, 6, num_heads=2).eval()
    features = draw(3, 8, 4, 5)
    whole = layer(features)
    for i in range(3):
        torch.testing.assert_close(layer(features[i : i + 1]), whole[i : i + 1])


def test_the_order_of_pixels_does_not_matter(name):
    options = {} if name != "local" else {"radius": 9}
    layer = build_attention(name, 8, 6, num_heads=2, **options).eval()
    features = draw(1, 8, 4, 5)
    torch.testing.assert_close(layer(features.flip(-1)), layer(features).flip(-1))
    torch.testing.assert_close(layer(features.mT), layer(features).mT)


def test_under_autocast(name):
    layer = build_attention(name, 8, 6, num_heads=2).eval()
    features = draw(1, 8, 4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(features)
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


@each("option", ["position", "span"])
def test_options_are_taken_or_refused_with_a_reason(name, option):
    reason = reason_against(name, option)
    options = {"position": "factored"} if option == "position" else {"axis": "width", "span": 3}
    if reason is None:
        build_attention(name, 8, 6, **options)(draw(1, 8, 4, 5))
    else:
        refused(ValueError, lambda: build_attention(name, 8, 6, **options), f"`{option}`", reason)


@each("name", [name for name in ATTENTIONS if reason_against(name, "span") is None])
def test_a_span_hides_the_rest_of_the_line(name):
    layer = build_attention(name, 8, 6, axis="width", span=3).eval()
    features = draw(1, 8, 1, 6)
    weights = layer.posterior(features).log_probability(slice(None)).exp()[0, 0]
    place = torch.arange(6)
    assert (weights[(place[:, None] - place).abs() > 1] == 0).all()
    if not isinstance(layer, HardAttention2d):
        expected = weights @ layer.value(features)[0, :, 0].mT  # (W, V)
        torch.testing.assert_close(layer(features)[0, :, 0].mT, expected, rtol=1e-4, atol=1e-5)


@each("layout", ["full", "axial"])
def test_it_fits_into_backbone_and_head(name, layout):
    spans = layout == "axial" and reason_against(name, "span") is None
    options = {"attention": name, "layout": layout}
    small = {"channels": 8, "stride": 8, "span": 8 if spans else None}
    head = {"class_path": "probseg.heads.CorrectiveSelfAttention", "init_args": options | small}
    backbone = {**options, "position": None, "attention_options": None}
    model = micro_model("micro_botnet", backbone=backbone, head=head).train()
    clicked = prompts((9, 7, 1), box=(2, 3, 30, 28), batch=2)
    logits = model(torch.rand(2, 3, 40, 33), clicked)
    assert logits.shape == (2, 1, 40, 33)
    logits.square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("name", "part"), [("hard", "head"), ("em", "backbone")])
def test_it_learns_from_real_photographs(name, part, tmp_path, monkeypatch):
    """One epoch on the photographs that come with scikit-image and matplotlib."""
    monkeypatch.chdir(tmp_path)
    bare = {"attention": name, "position": None, "attention_options": None}
    of, changes = (
        ("micro_botnet", bare) if part == "backbone" else ("micro_csa", {"attention": name})
    )
    Path("network.yaml").write_text(yaml.safe_dump(described(of, **{part: changes})))
    cli = finished(
        "fit",
        "--config=configs/experiment/folder.yaml",
        "--data=probseg.data.InteractiveDataModule",
        "--data.train=probseg.data.SamplePhotos",
        "--data.batch_size=4",
        "--data.crop_size=48",
        "--data.num_workers=0",
        "--trainer.max_epochs=1",
        "--trainer.limit_val_batches=0",
        "--trainer.logger=false",
        "--trainer.callbacks=[]",
        *QUIET,
        "--model.model=network.yaml",
    )
    assert cli.trainer.global_step == 3
    layers = [p for p in cli.model.model.modules() if isinstance(p, Attention2d)]
    assert {type(layer) for layer in layers} == {ATTENTIONS[name]}
    assert torch.isfinite(cli.trainer.callback_metrics["train/loss"])
    assert all(p.isfinite().all() for p in cli.model.parameters())


def test_function_transforms_and_meta_tensors(name):
    layer = build_attention(name, 8, 6, num_heads=2, head_channels=4).eval()
    images, weights = draw(3, 8, 4, 5), dict(layer.named_parameters())

    def loss(weights, image):
        return functional_call(layer, weights, (image[None],)).square().sum()

    wanted = []
    for image in images:
        layer.zero_grad()
        layer(image[None]).square().sum().backward()
        wanted.append(layer.value.weight.grad)
    gradient = grad(loss)(weights, images[0])["value.weight"]
    torch.testing.assert_close(gradient, wanted[0], rtol=1e-4, atol=1e-4)
    if name != "slot_gru":  # PyTorch's own GRU cell has no rule for it
        gradients = vmap(grad(loss), (None, 0))(weights, images)["value.weight"]
        torch.testing.assert_close(gradients, torch.stack(wanted), rtol=1e-4, atol=1e-4)
    _, twice = jvp(grad(lambda x: layer(x).square().sum()), (images,), (images,))
    assert twice.isfinite().all()
    assert layer.to("meta")(images.to("meta")).shape == (3, 6, 4, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*ATTENTIONS} - {"em", "probabilistic", "standard"}))
def test_exported_layers_take_batches_of_any_size(name):
    layer = build_attention(name, 8, 6, num_heads=2, head_channels=4).eval()
    shapes = ({0: torch.export.Dim("B")},)
    program = torch.export.export(layer, (draw(2, 8, 4, 5),), dynamic_shapes=shapes)
    x = draw(5, 8, 4, 5)
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-4, atol=1e-4)


QUICK = ("emau", "hopfield")
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in (*ATTENTIONS, "emau", "non-local")
]


def features() -> Tensor:
    return torch.randn(2, 8, 4, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NAMES)
def test_compiled_layers_learn_the_same(name):
    layer = attention_layer(name, 8)
    other = copy.deepcopy(layer)  # a moving average changes the layer

    def derived(called: nn.Module, module: nn.Module) -> dict[str, Tensor]:
        torch.manual_seed(2)  # of hard attention
        x = features().requires_grad_()
        output = called(x)
        output.square().sum().backward()
        gradients = {f"of {key}": p.grad for key, p in module.named_parameters()}
        return {"output": output, "input": x.grad, **gradients, **dict(module.named_buffers())}

    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found, wanted = derived(compiled, layer), derived(other, other)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert found["input"].abs().max() > 0
