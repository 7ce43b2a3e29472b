"""Standard, hard, kernel, additive and predictive coding attention as layers."""

import math

import pytest
import torch
from torch import Tensor

from probseg.attention.base import StandardAttention2d
from probseg.family.hard import HardAttention2d
from probseg.family.kernels import AdditiveAttention2d, KernelRegressionAttention2d
from probseg.family.predictive_coding import PredictiveCodingAttention2d
from support.ops_cases import draw
from support.rows import each

WITH_KEYS = [
    StandardAttention2d,
    HardAttention2d,
    KernelRegressionAttention2d,
    AdditiveAttention2d,
]
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


def test_a_fixed_bandwidth_is_where_the_learnt_one_starts():
    torch.manual_seed(0)
    learnt = KernelRegressionAttention2d(8, 6, num_heads=2, head_channels=9)
    assert learnt.log_bandwidth_inverse.exp().tolist() == [[pytest.approx(9**-0.25)]] * 2
    fixed = KernelRegressionAttention2d(8, 6, num_heads=2, head_channels=9, learn_bandwidth=False)
    fixed.load_state_dict(learnt.state_dict(), strict=False)
    features = draw(2, 8, 4, 5).float()
    torch.testing.assert_close(fixed(features), learnt(features))
    assert "log_bandwidth_inverse" not in fixed.state_dict()
    learnt(features).square().sum().backward()
    assert learnt.log_bandwidth_inverse.grad.abs().min() > 0


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


def test_causes_are_learnt():
    torch.manual_seed(0)
    layer = PredictiveCodingAttention2d(8, 6, num_heads=2, head_channels=4)
    shapes = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    assert shapes == {
        "query.weight": (8, 8, 1, 1),
        "value.weight": (6, 8, 1, 1),
        "causes": (2, 8, 4),
        "generative": (2, 4, 4),
    }
    identity = layer.generative @ layer.generative.mT
    torch.testing.assert_close(identity, torch.eye(4).expand(2, 4, 4))
    layer(draw(2, 8, 4, 5).float()).square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad.abs().max() > 1e-4


@each(
    ("kind", "options", "message"),
    [
        (KernelRegressionAttention2d, {"position": "full"}, "Eq. 26"),
        (AdditiveAttention2d, {"position": "full"}, "not dot products"),
        (PredictiveCodingAttention2d, {"position": "full"}, "no place in the map"),
        (PredictiveCodingAttention2d, {"axis": "height", "span": 3}, "their whole line"),
        (
            PredictiveCodingAttention2d,
            {"num_causes": 0},
            "`num_causes` and `steps` .* got 0, 3 and 1",
        ),
        (PredictiveCodingAttention2d, {"steps": 0}, "got 8, 0 and 1"),
        (PredictiveCodingAttention2d, {"prior_precision": 0.0}, "`prior_precision`"),
    ],
)
def test_wrong_arguments_are_named(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(8, 6, **options)
