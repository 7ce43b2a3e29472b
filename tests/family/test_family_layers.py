"""The layers of the family against all pairs written out, and what one learns."""

import math
import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from probseg.attention import Attention2d
from probseg.attention.base import StandardAttention2d
from probseg.family.energy import HopfieldAttention2d
from probseg.family.hard import HardAttention2d
from probseg.family.kernels import AdditiveAttention2d, KernelRegressionAttention2d
from probseg.family.predictive_coding import PredictiveCodingAttention2d
from probseg.family.slots import BlockSlotAttention2d, GRUSlotAttention2d, SlotAttention2d
from probseg.ops.axial import from_lines, to_lines
from support.ops_cases import draw
from support.rows import each, pairwise

AXES = ["full", "height", "width"]


def build(layer: type[Attention2d], **options: object) -> Attention2d:
    torch.manual_seed(0)
    options = {"num_heads": 2, "head_channels": 4, **options}
    return layer(8, 6, **options).double()


def lines(layer: Attention2d, projection: nn.Conv2d, features: Tensor) -> Tensor:
    """Project a map, as lines `(B', G, N, C)`."""
    return to_lines(projection(features).unflatten(1, (layer.num_heads, -1)), layer.axis)


def plain(layer: Attention2d, features: Tensor) -> Tensor:
    """What the layers compute, written out with all N x N pairs."""
    q, v = (lines(layer, projection, features) for projection in (layer.query, layer.value))
    p = PLAIN[type(layer)](layer, q, features)
    return from_lines(p @ v, layer.axis, *features.shape[-2:]).flatten(1, 2)


def plain_hopfield(layer, states, features):
    k = lines(layer, layer.key, features)
    for _ in range(layer.iterations):
        states = (states @ k.mT / 2).softmax(-1) @ k
    return (states @ k.mT / 2).softmax(-1)


def through(w: Tensor) -> Tensor:
    """From a pixel to a slot, from there to a pixel."""
    return w @ (w / w.sum(-2, keepdim=True)).mT


def plain_slots(layer, q, features):
    slots = layer.initial
    for _ in range(layer.iterations):
        w = (q @ slots.mT).softmax(-1)
        slots = w.mT @ q / w.sum(-2)[..., None]
    return through((q @ slots.mT).softmax(-1))


def plain_gru_slots(layer, q, features):
    """Alg. 1 of Locatello et al. (2020), and the equations of the recurrent unit."""
    cell, first, second = layer.cell, layer.perceptron[1], layer.perceptron[3]

    def normalised(norm, x):
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        return norm.weight * x + norm.bias

    def weights(slots):
        return (q @ normalised(layer.norm, slots).mT / 2).softmax(-1)

    slots = layer.initial
    for _ in range(layer.iterations):
        w = weights(slots)
        means = (w / w.sum(-2, keepdim=True)).mT @ q
        of_means = (means @ cell.weight_ih.mT + cell.bias_ih).chunk(3, -1)
        of_slots = (slots @ cell.weight_hh.mT + cell.bias_hh).chunk(3, -1)
        reset = (of_means[0] + of_slots[0]).sigmoid()
        keep = (of_means[1] + of_slots[1]).sigmoid()
        new = (of_means[2] + reset * of_slots[2]).tanh()
        slots = (1 - keep) * new + keep * slots
        hidden = normalised(layer.perceptron[0], slots) @ first.weight.mT + first.bias
        slots = slots + hidden.clamp(min=0) @ second.weight.mT + second.bias
    return through(weights(slots))


def plain_block_slots(layer, q, features):
    q = q - q.mean(-2, keepdim=True)
    slots, m = layer.initial, layer.memories
    share = q.shape[-2] / slots.shape[-2]
    for _ in range(layer.iterations):
        w = (q @ slots.mT).softmax(-1)
        blocks = slots.expand(len(q), -1, -1, -1).chunk(m.shape[1], -1)
        recalled = [(z @ m[:, b].mT).softmax(-1) @ m[:, b] for b, z in enumerate(blocks)]
        slots = w.mT @ q / share + torch.cat(recalled, -1)
    return through((q @ slots.mT).softmax(-1))


PLAIN = {
    HopfieldAttention2d: plain_hopfield,
    SlotAttention2d: plain_slots,
    GRUSlotAttention2d: plain_gru_slots,
    BlockSlotAttention2d: plain_block_slots,
}


@pytest.fixture(params=PLAIN)
def layer(request) -> type[Attention2d]:
    return request.param


@pytest.mark.parametrize(("iterations", "axis"), pairwise([1, 3], AXES))
def test_equals_the_plain_implementation(layer, axis, iterations):
    attention = build(layer, axis=axis, iterations=iterations)
    features = draw(2, 8, 5, 7)
    torch.testing.assert_close(attention(features), plain(attention, features))


def test_the_same_pixels_in_a_larger_map_get_the_same_answer(layer):
    """Sums over pixels do not grow with their number."""
    attention = build(layer)
    features = draw(1, 8, 4, 5)
    tiled = attention(features.repeat(1, 1, 3, 2))
    torch.testing.assert_close(tiled, attention(features).repeat(1, 1, 3, 2))


WITH_KEYS = [StandardAttention2d, HardAttention2d, KernelRegressionAttention2d, AdditiveAttention2d]


VIEWS = [
    {"axis": "full"},
    {"axis": "height"},
    {"axis": "width"},
    {"axis": "height", "span": 3},
    {"axis": "width", "span": 2},
]


def projected(layer: torch.nn.Module, features: Tensor, name: str) -> Tensor:
    """All pixels of the map as tokens, (B, G, H * W, C)."""
    maps = getattr(layer, name)(features)
    return maps.reshape(len(maps), layer.num_heads, -1, features[0, 0].numel()).mT


def as_map(tokens: Tensor, features: Tensor) -> Tensor:
    return tokens.mT.reshape(len(features), -1, *features.shape[-2:])


def hidden(view: dict, height: int, width: int) -> Tensor:
    """-inf where a pixel does not see another one, (H * W, H * W)."""
    pixels = torch.arange(height * width)
    y, x = pixels // width, pixels % width
    along, across = {"height": (y, x), "width": (x, y), "full": (0 * x, 0 * x)}[view["axis"]]
    distance = (along[:, None] - along).abs()
    seen = (across[:, None] == across) & (distance <= view.get("span", 99) // 2)
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -math.inf)


def weights_of(layer: torch.nn.Module, features: Tensor) -> Tensor:
    """The logits that a layer is meant to have, (B, G, N, N)."""
    queries, keys = (projected(layer, features, name) for name in ("query", "key"))
    if isinstance(layer, AdditiveAttention2d):
        units = torch.tanh(queries[:, :, :, None] + keys[:, :, None])
        return torch.einsum("bgnmh,gh->bgnm", units, layer.score)
    if isinstance(layer, KernelRegressionAttention2d):
        width = layer.log_bandwidth_inverse.exp()[..., None]  # (G, 1, 1)
        return -0.5 * (width * torch.cdist(queries, keys)).square()
    return queries @ keys.mT / queries.shape[-1] ** 0.5


@each("kind", WITH_KEYS)
@each("view", VIEWS)
def test_layers_are_their_formulas(kind, view):
    layer = kind(8, 6, num_heads=2, head_channels=4, **view).double().eval()
    if isinstance(layer, KernelRegressionAttention2d):
        torch.nn.init.normal_(layer.log_bandwidth_inverse)
    features = draw(2, 8, 4, 5)
    logits = weights_of(layer, features) + hidden(view, 4, 5)
    weights = logits.softmax(-1)
    if kind is HardAttention2d:
        weights = torch.nn.functional.one_hot(logits.argmax(-1), 20).double()
    wanted = as_map(weights @ projected(layer, features, "value"), features)
    torch.testing.assert_close(layer(features), wanted)


@pytest.mark.parametrize("axis", ["full", "height"])
def test_hard_attention_draws_in_training(axis):
    torch.manual_seed(0)
    layer = HardAttention2d(8, 6, num_heads=2, head_channels=4, axis=axis).double()
    features = draw(1, 8, 4, 5)
    values = projected(layer, features, "value")  # (1, G, N, V)
    one, two = layer(features), layer(features)
    assert (one != two).any()
    for output in (one, two):
        taken = output.reshape(1, 2, 3, 20).mT
        nearest = torch.cdist(taken, values).amin(-1)
        assert nearest.abs().max() < 1e-12  # each is the value of some pixel
    mean = torch.stack([layer(features) for _ in range(1500)]).mean(0)
    standard = StandardAttention2d(8, 6, num_heads=2, head_channels=4, axis=axis).double()
    standard.load_state_dict(layer.state_dict())
    soft = standard(features)
    # Hoeffding's bound for 120 means, each wrong once in 1e6.
    bound = float(values.detach().abs().max()) * math.sqrt(2 * math.log(2e6 * 120) / 1500)
    assert (mean - soft).abs().max() < bound
    upstream = draw(1, 6, 4, 5, seed=2)
    gradients = [
        torch.autograd.grad(output, list(part.parameters()), upstream)
        for output, part in ((one, layer), (soft, standard))
    ]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_hard_attention_in_evaluation_has_gradients_of_the_values_only():
    layer = HardAttention2d(8, 6, head_channels=4).eval()
    features = draw(1, 8, 4, 5).float()
    assert torch.equal(layer(features), layer(features))
    layer(features).sum().backward()
    assert layer.value.weight.grad.abs().max() > 0
    assert layer.query.weight.grad is None


def causes_of(layer: PredictiveCodingAttention2d, tokens: Tensor) -> Tensor:
    """Predictions `(K, D)` of one line and the first head, by the dynamics in loops."""
    matrix, causes = layer.generative[0], layer.causes[0].clone()
    kappa = tokens.shape[-1] ** -0.5
    norm = torch.linalg.svdvals(matrix)[0] ** 2
    for _ in range(layer.steps):
        predictions = causes @ matrix.T
        w = (-kappa / 2 * torch.cdist(tokens, predictions).square()).softmax(-1)
        moved = []
        for k, cause in enumerate(causes):
            errors = kappa * (tokens - predictions[k])
            direction = (w[:, k, None] * errors).sum(0) @ matrix - layer.prior_precision * cause
            moved.append(cause + direction / (norm * kappa * w[:, k].sum() + layer.prior_precision))
        causes = torch.stack(moved)
    return causes @ matrix.T


@each("axis", ["full", "height", "width"])
def test_predictive_coding_finds_causes_and_looks_through_them(axis):
    layer = PredictiveCodingAttention2d(
        8, 3, head_channels=4, num_causes=3, steps=2, prior_precision=0.7, axis=axis
    ).double()
    torch.nn.init.normal_(layer.generative)
    features = draw(1, 8, 4, 5)
    output = layer(features)
    for y, x in torch.cartesian_prod(torch.arange(4), torch.arange(5)).tolist():
        rows = {"full": slice(None), "height": slice(None), "width": slice(y, y + 1)}[axis]
        columns = {"full": slice(None), "width": slice(None), "height": slice(x, x + 1)}[axis]
        line = features[:, :, rows, columns]
        tokens, values = (projected(layer, line, name)[0, 0] for name in ("query", "value"))
        predictions = causes_of(layer, tokens)
        z = (-0.25 * torch.cdist(tokens, predictions).square()).softmax(-1)
        means = (z / z.sum(0)).T @ values
        own = layer.query(features)[0, :, y, x]
        share = (-0.25 * (own - predictions).square().sum(-1)).softmax(-1)
        torch.testing.assert_close(output[0, :, y, x], share @ means)


@each(
    ("kind", "options", "message"),
    [
        *((kind, {"iterations": 0}, "`iterations`") for kind in PLAIN),
        *((kind, {"position": "factored"}, "`position` .*got 'factored'") for kind in PLAIN),
        (SlotAttention2d, {"num_slots": 0}, "num_slots"),
        (SlotAttention2d, {"axis": "width", "span": 3}, "`span` .*got 3: its slots are shared"),
        (BlockSlotAttention2d, {"num_blocks": 3}, "num_blocks=3, got 32"),
        (BlockSlotAttention2d, {"num_memories": 0}, "num_memories"),
        (KernelRegressionAttention2d, {"position": "full"}, "Eq. 26"),
        (AdditiveAttention2d, {"position": "full"}, "not dot products"),
        (PredictiveCodingAttention2d, {"position": "full"}, "no place in the map"),
        (PredictiveCodingAttention2d, {"axis": "height", "span": 3}, "their whole line"),
        (PredictiveCodingAttention2d, {"num_causes": 0}, "num_causes"),
        (PredictiveCodingAttention2d, {"steps": 0}, "steps"),
        (PredictiveCodingAttention2d, {"prior_precision": 0.0}, "`prior_precision`"),
    ],
)
def test_wrong_arguments_are_named(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(8, 6, **options)


RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "translate.py"


def test_it_learns_to_translate(capsys):
    recipe = runpy.run_path(str(RECIPE))
    pad = recipe["PAD"]
    torch.manual_seed(0)
    translator = recipe["Translator"]()
    source, target = recipe["sentences"](400)

    def right() -> float:
        written = translator(source).logits.argmax(-1)
        return ((written == target) | (target == pad)).all(1).float().mean().item()

    assert right() < 0.1
    recipe["train"](translator, steps=100)
    assert right() > 0.93
    assert "step 100: loss" in capsys.readouterr().out
    with torch.no_grad():
        weights = translator(source).weights
    assert weights.masked_select((source == pad).unsqueeze(1)).eq(0).all()
    # A sentence is written from its end: each digit comes from further left than the one before.
    whole = weights[source.ne(pad).all(1)].mean(0)  # (T, T)
    places = whole @ torch.arange(5.0)
    assert (places.diff() < 0).all()
    assert places[0] > 3
    assert places[-1] < 1.5
