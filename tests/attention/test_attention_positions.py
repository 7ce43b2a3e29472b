"""Position embeddings of the attention layers."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probseg.attention import Attention2d, build_attention
from probseg.attention.base import POSITIONS
from probseg.errors import UnknownNameError
from support.network_cases import draw
from support.refusals import refused
from support.rows import COMPILES_WHOLE, each

VIEWS = [{"axis": "full"}, {"axis": "height"}, {"axis": "width", "span": 3}]
NAMES = ("standard", "probabilistic")
PLACES = [(name, position) for name in NAMES for position in POSITIONS]


def build(name: str, position: str | None, **options: object) -> Attention2d:
    torch.manual_seed(0)
    options = {"num_heads": 2, "head_channels": 4, "position_size": (3, 5), **options}
    return build_attention(name, 8, 6, position=position, **options)


@pytest.fixture(params=PLACES, ids=str)
def place(request) -> tuple[str, str]:
    return request.param


@given(
    st.sampled_from(PLACES),
    st.sampled_from(VIEWS),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_any_nominal_size_serves_any_map(place, view, nominal, size):
    layer = build(*place, position_size=nominal, **view)
    features = draw(2, 8, *size).requires_grad_()
    output = layer(features)
    assert output.shape == (2, 6, *size)
    assert output.isfinite().all()
    output.square().sum().backward()
    for tensor in (features, *layer.parameters()):
        assert tensor.grad is None or tensor.grad.isfinite().all()


@each("view", VIEWS)
def test_the_embeddings_decide_where_to_look(place, view):
    """With equal tables for all offsets, softmax attention does not notice those of the queries."""
    layer = build(*place, **view)
    features = draw(1, 8, 3, 5)
    output = layer(features)
    for parameter in layer.position.parameters():
        assert parameter.numel() > 0
        torch.nn.init.zeros_(parameter)
    plain = build(place[0], None, **view)
    assert (output - plain(features)).abs().max() > 0.05
    torch.testing.assert_close(layer(features), plain(features))


@each("view", VIEWS)
def test_tables_learn(place, view):
    layer = build(*place, **view)
    layer(draw(2, 8, 3, 5)).square().sum().backward()
    rows, columns = {"full": (5, 9), "height": (5, 1), "width": (1, 9)}[view["axis"]]
    sizes = {name: tuple(table.shape) for name, table in layer.position.named_parameters()}
    if place[1] == "full":
        assert sizes == {"query": (rows, columns, 4), "key": (rows, columns, 4)}
    else:
        heights = {"query_height": (rows, 4), "key_height": (rows, 4)}
        assert sizes == heights | {"query_width": (columns, 4), "key_width": (columns, 4)}
    for table in layer.position.parameters():
        if table.shape[0] > 1:
            learnt = (table.grad.abs() > 0).any(-1)
            assert learnt.sum() == (3 if "span" in view else learnt.numel())  # offsets in sight


@pytest.mark.parametrize(
    ("name", "view", "size"), [("standard", VIEWS[1], (3, 5)), ("probabilistic", VIEWS[2], (6, 4))]
)
def test_along_a_line_both_kinds_are_the_same(name, view, size):
    factored, full = (build(name, position, **view) for position in ("factored", "full"))
    for projection in ("query", "key", "value"):
        getattr(full, projection).load_state_dict(getattr(factored, projection).state_dict())
    tables = factored.position
    with torch.no_grad():
        for of in ("query", "key"):
            rows, columns = (getattr(tables, f"{of}_{axis}") for axis in ("height", "width"))
            getattr(full.position, of).copy_(rows[:, None] + columns)
    features = draw(2, 8, *size)
    torch.testing.assert_close(full(features), factored(features), rtol=1e-5, atol=1e-5)


@each("name", NAMES)
def test_unknown_kinds_are_named(name):
    build = partial(build_attention, name, 8, 6)
    refused(UnknownNameError, lambda: build(position="factord"), "unknown position", "'factored'")
    refused(ValueError, lambda: build(position="full", position_size=(0, 3)), "height")


def test_under_autocast(place):
    layer = build(*place)
    features = draw(1, 8, 3, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(features)
        half.float().square().sum().backward()
    assert half.dtype == torch.bfloat16
    exact = layer(features)
    assert half.isfinite().all()
    assert (half - exact).norm() / exact.norm() < 3e-2
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@COMPILES_WHOLE
@pytest.mark.parametrize(
    ("position", "view"),
    [("factored", VIEWS[0]), pytest.param("full", VIEWS[2], marks=pytest.mark.slow)],
    ids=str,
)
def test_compiled_layers_give_the_same(view, position):
    layer = build("probabilistic", position, key_iterations=1, **view)

    def derived(call) -> list[Tensor]:
        features = draw(2, 8, 4, 5).requires_grad_()
        output = call(features)
        leaves = [features, *layer.parameters()]
        weights = draw(*output.shape, seed=1)
        return [output, *torch.autograd.grad(output, leaves, weights)]

    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    torch.testing.assert_close(derived(compiled), derived(layer), rtol=1e-5, atol=1e-5)
