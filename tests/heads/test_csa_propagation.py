"""Corrective self-attention in which clicks fix logits and propagate them."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from probseg.attention import build_attention
from probseg.clicks import ClickMaps
from probseg.heads import CorrectiveSelfAttention
from probseg.models import read_preset
from probseg.ops.position import FullPositionPrior
from probseg.types import FeatureInfo
from probseg.zoo import create_model
from support.network_cases import assert_all_learn, draw, prompts
from support.rows import each

INPUTS = FeatureInfo((6,), (4,))
FULL = {"layout": "full", "span": None}
LAYOUTS = [{}, {"span": 5}, FULL]


def build(**arguments: object) -> CorrectiveSelfAttention:
    """A head in evaluation mode whose normalisation does something."""
    torch.manual_seed(0)
    options = {"channels": 8, "stride": 4, "propagation_iterations": 5, **arguments}
    head = CorrectiveSelfAttention(INPUTS, **options).eval()
    norm = head.bottleneck[1]
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.normal_()
        head.bias.fill_(0.3)
    return head


def test_fine_features_pass_the_attention_by_where_a_classifier_sees_them():
    for iterations in (None, 0):
        head = CorrectiveSelfAttention(
            INPUTS, channels=8, stride=8, bottleneck_at="grid", click_iterations=iterations
        ).eval()
        features, clicks = drawn(32, 32)
        finer = features + torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(4, 4)  # mean of 0
        same = torch.allclose(head(finer, clicks), head(features, clicks), atol=1e-4)
        assert same == (iterations is None)


def drawn(height: int = 20, width: int = 28, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Features of stride 4, and click maps with some pixels of both signs; none on the last."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(batch, 6, -(-height // 4), -(-width // 4), generator=generator)
    clicks = (torch.rand(batch, 2, height, width, generator=generator) < 0.015).float()
    clicks[0, 0, 5, 9] = clicks[0, 1, 5, 21] = 1
    if batch > 1:
        clicks[-1] = 0
    return features, clicks


def clicked(*places: tuple[int, int, int], size: tuple[int, int] = (20, 28)) -> Tensor:
    """Click maps with single pixels at `(sign, row, column)`; 0 is positive."""
    maps = torch.zeros(1, 2, *size)
    for place in places:
        maps[(0, *place)] = 1
    return maps


def seen_by_the_last_block(head: CorrectiveSelfAttention) -> list[tuple]:
    calls: list[tuple] = []
    head.last.register_forward_pre_hook(lambda module, arguments: calls.append(arguments))
    return calls


def log_gaussian(x: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Eqs. 8 and 9 of all pairs, (n, m), for the precisions (m,) of the units."""
    distance = torch.einsum("nmc->nm", (x[:, None] - mean[None]) ** 2)
    return x.shape[1] / 2 * (precision / (2 * math.pi)).log() - precision / 2 * distance


def moved(w: Tensor, x: Tensor, before: Tensor, precision: Tensor, theta: float) -> Tensor:
    """Eqs. 18 and 23."""
    total = theta + precision * torch.einsum("nm->m", w)
    return (theta * before + precision[:, None] * torch.einsum("nm,nc->mc", w, x)) / total[:, None]


def mode(w: Tensor, x: Tensor, mean: Tensor, prior: tuple[float, float]) -> Tensor:
    """Eqs. 36 and 37."""
    distance = torch.einsum("nmc->nm", (x[:, None] - mean[None]) ** 2)
    shape = prior[0] + x.shape[1] / 2 * torch.einsum("nm->m", w) - 1
    return shape / (prior[1] + torch.einsum("nm,nm->m", w, distance) / 2)


def mixture(q, k, v, seen: Tensor, fixed: Tensor, said: Tensor, tables, rules):
    """Values of one line in one head: q, k (n, d), v (n, c), seen (n, n), fixed (n,), said (n, c).

    With position embeddings of queries, keys (Eqs. 25, 26) and values, `tables` are those of each
    pair, (n, n, d) and (n, n, c).

    Keys adapt (Eqs. 18, 36), fixed values propagate (Eqs. 23, 24, 37, 38), queries alone read out
    (Eqs. 29, 32).
    """
    xi, mu, alpha = k, v, torch.full((len(k),), q.shape[1] ** -0.5, dtype=q.dtype)
    beta, log_weights = torch.full((len(k),), rules["beta"], dtype=q.dtype), None

    def weights(values: Tensor | None = None) -> Tensor:
        log_pi = log_weights
        if log_pi is None:
            log_pi = alpha / 2 * torch.einsum("md,md->m", xi, xi)  # Eq. 10
            if rules["log_prior"] == "magnitude":
                log_pi = log_pi + beta / 2 * torch.einsum("mc,mc->m", mu, mu)
        log_joint = log_pi.log_softmax(0) + log_gaussian(q, xi, alpha)
        if tables is not None:
            of_query, of_key = torch.einsum("nd,nmd->nm", q, tables[0]), tables[1]
            log_joint = log_joint + alpha * (of_query + torch.einsum("md,nmd->nm", xi, of_key))
        if values is not None:
            log_joint = log_joint + log_gaussian(values, mu, beta)
        return log_joint.masked_fill(~seen, -math.inf).softmax(1)

    previous = rules["prior_mean"] == "previous"
    for _ in range(rules["key_iterations"]):
        w = weights()
        xi = moved(w, q, xi if previous else k, alpha, rules["key_prior"])
        if "alpha_prior" in rules:
            alpha = mode(w, q, xi, rules["alpha_prior"])
    for number in range(rules["iterations"]):
        if "concentration" in rules and number == 0:
            log_weights = alpha / 2 * torch.einsum("md,md->m", xi, xi)
        w = weights(None if rules["given"] == "queries" else said)[fixed]
        mu = moved(w, said[fixed], mu if previous else v, beta, rules["value_prior"])
        if "beta_prior" in rules:
            beta = mode(w, said[fixed], mu, rules["beta_prior"])
        if "concentration" in rules:
            log_weights = (torch.einsum("sm->m", w) + rules["concentration"] - 1).log()
    read = weights() * (beta if rules["beta"] else 1.0)
    read = read / read.sum(1, keepdim=True)
    values = torch.einsum("nm,mc->nc", read, mu)
    return values if tables is None else values + torch.einsum("nm,nmc->nc", read, tables[2])


def block(layer, features, sources, fixed, said, rules):
    """An attention layer along its axis, line by line and head by head."""
    batch, _, height, width = features.shape
    q, k, v = (
        torch.einsum("oi,bihw->bohw", part.weight[:, :, 0, 0], x)
        for part, x in ((layer.query, features), (layer.key, features), (layer.value, sources))
    )
    out = torch.zeros_like(v)
    place = torch.arange(height * width).reshape(height, width)
    lines = {"height": list(place.T), "width": list(place), "full": [place.flatten()]}[layer.axis]
    for b in range(batch):
        for line in lines:
            step = torch.arange(len(line))
            span = 2 * len(line) if layer.span is None else layer.span
            seen = (step[:, None] - step).abs() <= span // 2
            tables = None
            if layer.position is not None:
                y, x = line // width, line % width
                parts = (*vars(layer.position.tables()).values(), layer.value_position.query)
                tables = [
                    table[
                        y - y[:, None] + table.shape[0] // 2, x - x[:, None] + table.shape[1] // 2
                    ]
                    for table in parts
                ]
            for head in range(layer.num_heads):
                # (c, h, w) -> (n, c) of this line and this head
                parts = [
                    x[b].flatten(1).T[line].chunk(layer.num_heads, dim=1)[head] for x in (q, k, v)
                ]
                own = out[b].flatten(1).chunk(layer.num_heads, dim=0)[head]
                told = said[b].flatten()[line, None]
                here = fixed[b].flatten()[line]
                own[:, line] = mixture(*parts, seen, here, told, tables, rules).T
    return out


def recomputed(head, features, clicks, value_features=None, **rules):
    """The whole head in float64, from its weights alone."""
    rules = {"key_iterations": 1, "key_prior": 0.0, "log_prior": "key_magnitude", **rules}
    rules = {"prior_mean": "initial", "given": "queries_and_values", **rules}
    resized = partial(functional.interpolate, mode="bilinear", align_corners=False)
    size = clicks.shape[-2:]
    grid = [-(-side // 4) for side in size]
    clicks = functional.max_pool2d(clicks, 4, ceil_mode=True)
    convolution, norm = head.bottleneck[:2]
    x = torch.einsum("oi,bihw->bohw", convolution.weight[:, :, 0, 0], features)
    mean, var, gamma, beta = (
        t[:, None, None] for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    x = resized(((x - mean) / (var + norm.eps).sqrt() * gamma + beta).clamp_min(0), grid)
    said = x if value_features is None else resized(value_features, grid)
    positive, negative = clicks[:, 0] > 0.5, clicks[:, 1] > 0.5
    nothing = torch.zeros_like(positive)
    if head.height is not None:
        silent = {**rules, "iterations": 0, "beta": 0.0}
        values = torch.cat([said, clicks], 1)
        corrected = block(head.height, x, values, nothing, nothing, silent)
        x, said = torch.cat([x, corrected], 1), torch.cat([said, corrected], 1)
    logits = head.fixed_logits if head.fixed_logits is not None else torch.zeros(2).double()
    told = positive * logits[0] + negative * logits[1]
    values = torch.cat([said, clicks], 1)
    result = block(head.last, x, values, positive != negative, told, rules)
    return resized(result + head.bias, size)


def compare(arguments, size=(20, 28), value_channels=None, **rules):
    head = build(value_channels=value_channels, **arguments).double()
    features, clicks = (tensor.double() for tensor in drawn(*size))
    values = None
    if value_channels is not None:
        values = torch.randn(2, value_channels, *features.shape[-2:]).double()
    with torch.no_grad():
        for part in (head.height, head.last):
            if part is not None and part.value_position is not None:
                part.value_position.query.normal_()
        found = head(features, clicks, values)
        expected = recomputed(head, features, clicks, values, **rules)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    return found


RELEASED = read_preset("hrnet18_ocr_csa_bp5_released")["init_args"]["head"]["init_args"]["options"]
MORE = {"key_iterations": 3, "key_prior": 0.4, "log_prior": "magnitude"}
CASES = {
    "one iteration": ({"propagation_iterations": 1}, {"iterations": 1}),
    "weak prior": ({"value_prior": 10.0}, {"value_prior": 10.0}),
    "odd size": ({}, {"size": (19, 26)}),
    "off": ({"propagation_iterations": 0}, {"iterations": 0, "beta": 0.0}),
    "options": ({"options": MORE, "value_precision": 0.7, "num_heads": 2}, {"beta": 0.7, **MORE}),
    "values of their own": ({}, {"value_channels": 3}),
    "Eqs. 23, 24 and 26": (
        {"options": {"value_prior_mean": "previous", "log_prior": "magnitude"}},
        {"prior_mean": "previous", "log_prior": "magnitude"},
    ),
    "the released layer": (
        {"options": RELEASED},
        {
            "key_iterations": 0,
            "prior_mean": "previous",
            "given": "queries",
            "log_prior": "magnitude",
        },
    ),
    "positions of values": (
        {"options": {"position": "full", "position_size": (5, 7), "position_values": True}},
        {},
    ),
    "Eqs. 36 to 38": (
        {
            "options": {
                "key_iterations": 2,
                "key_prior": 0.4,
                "key_prior_mean": "previous",
                "key_precision_prior": (2.0, 1.5),
                "value_prior_mean": "previous",
                "value_precision_prior": (3.0, 0.7),
                "weight_prior": 1.5,
            },
            "value_precision": 0.7,
        },
        {
            "key_iterations": 2,
            "key_prior": 0.4,
            "prior_mean": "previous",
            "alpha_prior": (2.0, 1.5),
            "beta_prior": (3.0, 0.7),
            "concentration": 1.5,
            "beta": 0.7,
        },
    ),
}


@each("layout", LAYOUTS)
@each("case", CASES)
def test_the_head_is_what_the_equations_say(case, layout):
    arguments, rules = CASES[case]
    usual = {"iterations": 5, "value_prior": 0.1, "beta": 0.1}
    compare({**arguments, **layout}, **{**usual, **rules})


@each("iterations", [1, 5])
def test_the_released_preset_is_the_released_rule(iterations):
    """Clicked pixels weigh by `alpha q·k + beta/2 |mu|²`, with the means of the moment."""
    usual = {"value_precision": 0.7, "value_prior": 0.4, "propagation_iterations": iterations}
    layer = build_attention("probabilistic", 6, 3, head_channels=4, **usual, **RELEASED).double()
    features, said = draw(1, 6, 4, 5).double(), draw(1, 3, 4, 5, seed=1).double()
    fixed = torch.zeros(1, 4, 5, dtype=torch.bool)
    fixed[0, 1, 2] = fixed[0, 3, 0] = True
    with torch.no_grad():
        found = layer(features, None, said, fixed)
        queries, keys, means = (x[0, 0].flatten(1).T for x in layer.projected(features, None))
        products, clicked = queries @ keys.T / 2, fixed.flatten()
        for _ in range(iterations):
            logits = products[clicked] + 0.35 * means.square().sum(1)
            mass = logits.softmax(1).T
            observed = 0.7 * mass @ said[0].flatten(1).T[clicked]
            means = (0.4 * means + observed) / (0.4 + 0.7 * mass.sum(1, keepdim=True))
        expected = (products + 0.35 * means.square().sum(1)).softmax(1) @ means
    torch.testing.assert_close(found[0].flatten(1).T, expected, rtol=1e-12, atol=1e-12)


def test_the_bottleneck_can_see_the_enlarged_map():
    """Fig. 3: as if the decoder's map had been of the attention's resolution."""
    features, clicks = drawn()
    plain, fig3 = (build(stride=2, bottleneck_at=at) for at in ("map", "grid"))
    enlarged = functional.interpolate(features, (10, 14), mode="bilinear", align_corners=False)
    with torch.no_grad():
        torch.testing.assert_close(fig3(features, clicks), plain(enlarged, clicks))
        assert (fig3(features, clicks) - plain(features, clicks)).abs().max() > 1e-3


def test_corrective_channels_can_show_the_click_locations_alone():
    model = create_model("micro_csa", head={"corrections": "pixels"}).eval()
    seen = []
    model.head.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[1]))
    model(torch.rand(1, 3, 40, 64), prompts((9, 9, 1), (22, 14, 0), (63.4, 39.2, 0), (3, 3, -1)))
    model.head.clicked_pixels = False
    model(torch.rand(1, 3, 40, 64), prompts((9, 9, 1), (22, 14, 0)))
    pixels, disks = seen
    assert pixels.nonzero().tolist() == [[0, 0, 9, 9], [0, 1, 14, 22], [0, 1, 39, 63]]
    assert disks[0, 0].sum() > 100
    with pytest.raises(ValueError, match=r"`corrections` .*'pixel'"):
        build(corrections="pixel")


@each("axis", ["height", "width", "full"])
def test_lines_are_looked_up_once_each(axis, monkeypatch):
    options = {"position": "full", "position_size": (5, 7), "position_values": True}
    layer = build_attention("standard", 8, 6, axis=axis, **options).double()
    torch.nn.init.normal_(layer.value_position.query)
    inputs, rows = draw(2, 8, 5, 7).double(), []
    wanted = layer(inputs)
    original = FullPositionPrior._map_rows

    def counted(prior, block):
        found = original(prior, block)
        rows.append(found.shape[0] * found.shape[2])
        return found

    monkeypatch.setattr(FullPositionPrior, "_map_rows", counted)
    monkeypatch.setattr("probseg.ops.edges.TILE", 60)
    torch.testing.assert_close(layer(inputs), wanted)
    assert sum(rows) == 2 * 2 * 5 * 7


@each("name", ["standard", "probabilistic"])
def test_positions_of_values_start_without_effect_and_learn(name):
    options = {"position": "factored", "position_size": (5, 7), "num_heads": 2}
    inputs = draw(2, 8, 5, 7)
    plain, sensitive = (
        build_attention(name, 8, 6, position_values=values, **options) for values in (False, True)
    )
    sensitive.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(sensitive(inputs), plain(inputs))
    sensitive(inputs).square().sum().backward()
    assert sensitive.value_position.query.grad.any()
    with pytest.raises(ValueError, match="`position_values`"):
        build_attention("standard", 8, 6, position_values=True)


@each("layout", LAYOUTS)
def test_switched_off_it_is_the_standard_head(layout):
    head = build(options={"key_iterations": 0, "log_prior": "magnitude"}, **layout)
    head.last.adapt_values(0)
    head.last.settings = replace(head.last.settings, value_precision=0.0)
    arguments = {"attention": "standard", "propagation_iterations": 0, **layout}
    standard = build(**arguments)
    missing, surplus = standard.load_state_dict(head.state_dict(), strict=False)
    assert (missing, surplus) == ([], ["fixed_logits"])
    inputs = drawn()
    torch.testing.assert_close(head(*inputs), standard(*inputs))
    head.last.adapt_keys(1)
    assert (head(*inputs) - standard(*inputs)).abs().max() > 1e-3


def test_clicks_of_both_signs_on_one_pixel_fix_nothing():
    head, features = build(), drawn(batch=1)[0]
    both, one = clicked((0, 5, 9), (1, 6, 10)), clicked((0, 5, 9))  # one pixel of the grid
    calls = seen_by_the_last_block(head)
    logits, changed = head(features, both), head(features, one)
    assert head.propagates
    masks = [fixed.nonzero().tolist() for _, _, _, fixed in calls]
    assert masks == [[], [[0, 1, 2]]]
    head.last.adapt_values(0)
    torch.testing.assert_close(head(features, both), logits)
    assert (head(features, one) - changed).abs().max() > 1e-4


def test_closeness_maps_fix_what_is_close():
    clicks = prompts((9, 9, 1), (22, 14, 0))
    maps = ClickMaps(clicks="distance", radius=8)(clicks, (20, 28))[:, 1:]
    head = build()
    calls = seen_by_the_last_block(head)
    logits = head(drawn(batch=1)[0], maps)
    assert logits.isfinite().all()
    near = 8 * math.atanh(0.5)  # 1 - tanh(distance / 8) = 0.5
    rows, columns = torch.meshgrid(torch.arange(20), torch.arange(28), indexing="ij")
    claimed = []
    for x, y in ((9, 9), (22, 14)):
        inside = ((rows - y) ** 2 + (columns - x) ** 2).sqrt() < near
        claimed.append(inside.reshape(5, 4, 7, 4).any(3).any(1))
    (_, _, values, fixed), positive, negative = calls[0], *claimed
    assert torch.equal(fixed[0], positive ^ negative)
    assert values[0, 0][positive & ~negative].unique().tolist() == [2.0]
    assert values[0, 0][negative & ~positive].unique().tolist() == [-2.0]


@each("layout", LAYOUTS)
def test_all_parameters_learn_with_learnt_priors(layout):
    options = {"learn_priors": True, "key_prior": 0.3}
    head = build(options=options, value_prior=0.5, **layout).train()
    assert head.last.log_value_prior.exp().item() == pytest.approx(0.5)
    head(*drawn()).square().sum().backward()
    named = dict(head.named_parameters())
    assert {"last.log_key_prior", "last.log_value_prior", "fixed_logits"} <= set(named)
    assert "height.log_value_prior" not in named
    assert_all_learn(head)
    assert (head.fixed_logits.grad != 0).all()


@each("layout", LAYOUTS)
def test_until_somebody_clicks_a_head_that_propagates_is_one_that_does_not(layout):
    plain, propagating = build(propagation_iterations=0, **layout), build(**layout)
    state = {**plain.state_dict(), "fixed_logits": propagating.fixed_logits}
    state["last.value.weight"] = 30 * state["last.value.weight"]  # large logits
    for head in (plain, propagating):
        head.load_state_dict({name: state[name] for name in head.state_dict()})
    features, clicks = drawn()
    with torch.no_grad():
        expected = plain(features, 0 * clicks)
        assert expected.abs().max() > 5
        torch.testing.assert_close(
            propagating(features, 0 * clicks), expected, atol=1e-4, rtol=1e-4
        )
        assert not torch.allclose(propagating(features, clicks), plain(features, clicks), atol=1e-3)
