"""Relative position embeddings against Eqs. 25 and 26, pixel by pixel."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from probseg.ops import Block, probabilistic_attention
from probseg.ops.backends.interface import EVERYTHING
from support.ops_cases import draw, tiles_of
from support.position_cases import (
    ALPHAS,
    SIZES,
    PositionCase,
    assert_same,
    build,
    draw_tables,
    position_cases,
)
from support.rows import each, pairwise

SERVED = {
    "factored": ("auto", "reference", "chunked", "sdpa"),
    "full": ("auto", "reference", "chunked"),
}
TILED = [("factored", "chunked"), ("factored", "sdpa"), ("full", "chunked")]
KINDS = list(SERVED)
RICH = {"beta": 0.4, "key_iterations": 2, "key_prior": 0.5, "propagations": 2}


def check(case):
    wanted = case.derive("oracle")
    for backend in SERVED[case.kind]:
        check_backend(case, backend, wanted)


def check_backend(case, backend, wanted):
    if backend == "sdpa" and case.propagations:  # refuses the gradients of written-out pairs
        with torch.no_grad():
            outputs = case.run(backend, case.tensors())
        torch.testing.assert_close(outputs, wanted.outputs, rtol=1e-8, atol=1e-9)
        return
    assert_same(case.derive(backend), wanted)


@pytest.mark.parametrize(
    ("key_tables", "own", "size", "kind"), pairwise([False, True], [False, True], SIZES, KINDS)
)
def test_a_read_out_on_any_map(kind, size, own, key_tables):
    check(PositionCase(kind, size, own=own, key_tables=key_tables))


@pytest.mark.parametrize(("iterations", "alpha", "kind"), pairwise([1, 2], ALPHAS, KINDS))
def test_keys_adapt_with_their_embeddings(kind, alpha, iterations):
    prior = {"key_prior": 0.7, "masked": True} if iterations == 2 else {}
    check(PositionCase(kind, alpha=alpha, key_iterations=iterations, **prior))


@pytest.mark.parametrize("kind", KINDS)
def test_any_call(kind):
    @given(position_cases(kind))
    @example(PositionCase(kind, alpha="unit", masked=True, value_iterations=2, **RICH))
    def any_call(case):
        check(case)

    any_call()


@pytest.mark.parametrize(("kind", "backend"), TILED)
@pytest.mark.parametrize(
    ("tile", "alpha"), [(1, "unit"), (64, "default"), (8 * 30, "unit"), (8 * 100, "default")]
)
def test_any_tiles(kind, backend, tile, alpha):
    """Tiles that cut rows of the map, heads and items of the batch from each other."""
    case = PositionCase(kind, (5, 3), 3, 2, alpha=alpha, masked=True, **RICH)
    wanted = case.derive("reference")
    with tiles_of(tile):
        check_backend(case, backend, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", ["default", "unit"])
def test_gradients_by_differences(kind, alpha):
    case = PositionCase(kind, (2, 2), 1, 2, own=alpha == "unit", alpha=alpha, **RICH)
    tensors = case.tensors()

    def run(*leaves):
        return tuple(case.run("chunked", dict(zip(tensors, leaves, strict=True))).values())

    leaves = tuple(tensor.requires_grad_() for tensor in tensors.values())
    assert gradcheck(run, leaves, fast_mode=True)


@each("alpha", ["float", "unit"])
@each("own", [False, True])
def test_full_tables_of_factored_sums_are_the_same(alpha, own):
    case = PositionCase("factored", (3, 4), own=own, alpha=alpha, masked=True, **RICH)
    tensors = {name: tensor.requires_grad_() for name, tensor in case.tensors().items()}
    full = {
        of: tensors[f"{of}_height"].unsqueeze(-2) + tensors[f"{of}_width"].unsqueeze(-3)
        for of in ("query", "key")
    }
    factored, summed = (
        case.run("reference", tensors),
        case.run("chunked", tensors, position=build(full)),
    )
    torch.testing.assert_close(summed, factored, rtol=1e-9, atol=1e-10)
    gradients = []
    for outputs in (factored, summed):
        total = sum(outputs[name].square().sum() for name in ("values", "keys", "unit_values"))
        gradients.append(torch.autograd.grad(total, list(tensors.values())))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)
    assert all(gradient.abs().max() > 1e-6 for gradient in gradients[0])


def test_defaults_are_softmax_attention_with_relative_embeddings():
    """`softmax((q·k + q·r) / sqrt(D))`: Shaw et al., 2018, and BoTNet."""
    height, width, channels = 4, 5, 8
    q, k, v = (draw(2, 3, 20, channels, seed=seed).float() for seed in range(3))
    tables = draw_tables("factored", (height, width), channels, heads=3, keys=False)
    tables = {name: table.float() for name, table in tables.items()}
    y, x = torch.arange(20) // width, torch.arange(20) % width
    rows = tables["query_height"][:, y - y[:, None] + height - 1]  # (G, N, M, D)
    columns = tables["query_width"][:, x - x[:, None] + width - 1]
    logits = q @ k.mT + torch.einsum("bgnd,gnmd->bgnm", q, rows + columns)
    expected = (logits / channels**0.5).softmax(-1) @ v
    for backend in SERVED["factored"]:
        got = probabilistic_attention(q, k, v, position=build(tables), backend=backend).values
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    plain = probabilistic_attention(q, k, v).values
    assert (plain - expected).abs().max() > 0.1


@given(st.data())
def test_blocks_are_parts_of_the_whole(data):
    """Any rows and columns, also where they begin in the middle of a row of the map."""
    height, width = data.draw(st.sampled_from([(3, 4), (1, 5), (4, 1)]))
    count = height * width
    q, k = draw(2, 3, count, 2), draw(2, 3, count, 2, seed=1)
    heads = data.draw(st.sampled_from([None, 3]))
    position = build(draw_tables("full", (height, width), 2, heads=heads))
    alpha = data.draw(st.sampled_from([0.7, draw(2, 3, count).exp(), draw(2, 1, 1).exp()]))
    prior = position.prior(q, k, alpha)
    whole = prior.block(EVERYTHING)
    assert whole.shape == (2, 3, count, count)

    def cut(length):
        first = data.draw(st.integers(0, length - 1))
        return slice(first, data.draw(st.integers(first + 1, length)))

    def some():
        indices = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4))
        return torch.tensor(indices)

    rows = some() if data.draw(st.booleans()) else cut(count)
    columns = some() if data.draw(st.booleans()) else cut(count)
    block = Block(cut(2), cut(3), rows, columns)
    expected = whole[block.batch, block.heads][:, :, rows][..., columns]
    torch.testing.assert_close(prior.block(block), expected)
