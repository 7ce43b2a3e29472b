"""Relative position embeddings: tables for other maps, logits against the equations."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.ops import (
    BackendError,
    Block,
    DistancePrior,
    FactoredPosition,
    FullPosition,
    KeyAdaptation,
    ValuePropagation,
    probabilistic_attention,
)
from probseg.ops.backends.interface import EVERYTHING
from support.ops_cases import draw, tiles_of
from support.position_cases import PositionCase, assert_same, build, draw_tables, position_cases
from support.refusals import refused
from support.rows import each

KINDS = ("factored", "full")


sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def tables_of(position):
    names = ("query", "key", "query_height", "query_width", "key_height", "key_width")
    found = {name: getattr(position, name, None) for name in names}
    return {name: table for name, table in found.items() if table is not None}


def middle(table, dims):
    """The embedding of offset 0."""
    for dim in dims:
        table = table.select(dim, table.shape[dim] // 2)
    return table


def spatial(position):
    """Dimensions of offsets, the last one first: taking one leaves the others in place."""
    return (-2,) if isinstance(position, FactoredPosition) else (-2, -2)


@each("kind", KINDS)
@each("heads", [None, 3])
@each("keys", [False, True])
def test_the_same_size_keeps_the_tables(kind, heads, keys):
    position = build(draw_tables(kind, (3, 5), 2, heads=heads, keys=keys))
    assert position.size == (3, 5)
    same = tables_of(position.resized(3, 5))
    assert len(same) == {"factored": 2, "full": 1}[kind] * (1 + keys)
    for name, table in tables_of(position).items():
        assert torch.equal(same[name], table)


@given(st.sampled_from(KINDS), st.sampled_from([None, 3]), sizes, sizes)
def test_offset_zero_keeps_its_embedding(kind, heads, old, new):
    position = build(draw_tables(kind, old, 2, heads=heads))
    resized = position.resized(*new)
    assert resized.size == new
    before, after = tables_of(position), tables_of(resized)
    assert before.keys() == after.keys()
    for name, table in before.items():
        centre = middle(after[name], spatial(position))
        torch.testing.assert_close(centre, middle(table, spatial(position)), rtol=0, atol=1e-12)


@each(("old", "new"), [(4, 22), (7, 22), (27, 12), (16, 33)])
def test_offset_zero_stays_exactly_in_float32(old, new):
    line = draw(2 * old - 1, 3).float()
    resized = FactoredPosition(line, line).resized(new, new)
    assert torch.equal(resized.query_height[new - 1], line[old - 1])


@given(st.integers(2, 9), st.integers(2, 9), st.integers(2, 9), st.integers(2, 9))
def test_linear_tables_stay_linear(h, w, new_h, new_w):
    """From end to end: the slope follows the size of the map."""

    def lines(height, width):
        return torch.linspace(-1, 1, 2 * height - 1), torch.linspace(-1, 1, 2 * width - 1)

    def plane(height, width):
        down, right = lines(height, width)
        return (2 * down[:, None] - 3 * right + 0.5 * down[:, None] * right + 1).unsqueeze(-1)

    down, right = (line.unsqueeze(-1) for line in lines(h, w))
    factored = FactoredPosition(2 * down + 1, 3 * right).resized(new_h, new_w)
    down, right = (line.unsqueeze(-1) for line in lines(new_h, new_w))
    torch.testing.assert_close(factored.query_height, 2 * down + 1, rtol=0, atol=2e-6)
    torch.testing.assert_close(factored.query_width, 3 * right, rtol=0, atol=2e-6)
    full = FullPosition(plane(h, w)).resized(new_h, new_w)
    torch.testing.assert_close(full.query, plane(new_h, new_w), rtol=0, atol=5e-6)


T = torch.zeros


def factored(*shapes):
    return lambda: FactoredPosition(*(None if shape is None else T(shape) for shape in shapes))


BAD_TABLES = [
    (factored((4, 3), (5, 3)), "`query_height` .*(4, 3).*offsets of a line is odd"),
    (lambda: FactoredPosition(T(3, 3), T(5, 3).long()), "query_width"),
    (factored((3,), (5, 3)), r"`query_height` .* shape \(2H-1, D\)"),
    (factored((3, 3), (5, 3), (3, 3)), "`key_height` and `key_width`"),
    (factored((3, 3), (5, 3), None, (5, 3)), "`key_height` and `key_width`"),
    (lambda: FullPosition(T(3, 4, 3)), r"`query` .*\(2H-1, 2W-1, D\).*\(3, 4, 3\).* odd"),
    (lambda: FullPosition(T(3, 3, 3), T(2, 3, 3)), r"`key` .*\(2, 3, 3\).* odd"),
    (lambda: FullPosition(T(3, 3)), "query"),
    (factored((3, 3), (5, 3), (3, 3), (7, 3)), "`key_width` .*`query_width`"),
    (lambda: FullPosition(T(3, 3, 3), T(3, 5, 3)), "`key` .*`query`"),
]


@each(("make", "message"), BAD_TABLES)
def test_wrong_tables_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


FITS = {"factored": FactoredPosition(T(3, 2), T(5, 2)), "full": FullPosition(T(3, 5, 2))}
MISFITS = [
    (FullPosition(T(3, 3, 2)), 6, "2 x 2 = 4 tokens of the map .* got 6; use `position.resized`"),
    (FITS["full"], 4, "`keys`"),
    (FullPosition(T(3, 5, 4)), 6, "position.query"),
    (FactoredPosition(T(3, 2), T(5, 3)), 6, "position.query_width"),
    (FullPosition(T(4, 3, 5, 2)), 6, "position.query"),
    (FactoredPosition(T(4, 3, 2), T(5, 2)), 6, "position.query_height"),
]


@each(("position", "units", "message"), MISFITS)
def test_misfits_are_named(position, units, message):
    tokens, keys = torch.zeros(1, 3, 6, 2), torch.zeros(1, 3, units, 2)
    with pytest.raises(ValueError, match=message):
        probabilistic_attention(tokens, keys, keys, position=position)


def test_fused_kernels_refuse_full_tables():
    tokens = torch.zeros(1, 3, 6, 2)
    with pytest.raises(BackendError, match=r"'sdpa' .* because a fused kernel cannot compute the"):
        probabilistic_attention(tokens, tokens, tokens, position=FITS["full"], backend="sdpa")
    probabilistic_attention(tokens, tokens, tokens, position=FITS["factored"], backend="sdpa")


@each("kind", KINDS)
@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_tables_follow_half_precision_tokens(kind, backend):
    """As precisions and priors do: a converted module has tables in half precision too."""
    tokens = [draw(1, 3, 6, 2, seed=seed) for seed in range(3)]
    tables = draw_tables(kind, (2, 3), 2)
    exact = probabilistic_attention(*tokens, position=build(tables), backend=backend).values
    half = probabilistic_attention(
        *(x.bfloat16() for x in tokens),
        position=build({name: table.bfloat16() for name, table in tables.items()}),
        backend=backend,
    ).values
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=0.05)


@each("kind", KINDS)
@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_an_empty_batch(kind, backend):
    tokens = torch.zeros(0, 3, 6, 2)
    fixed = {
        "value_precision": 0.1,
        "value_propagation": ValuePropagation(),
        "fixed_values": tokens,
        "fixed_mask": torch.zeros(0, 6, dtype=torch.bool),
    }
    for options in ({}, fixed):
        result = probabilistic_attention(
            tokens, tokens, tokens, position=FITS[kind], backend=backend, **options
        )
        assert result.values.shape == tokens.shape


@each("size", [(1, 4), (4, 1), (1, 1)])
def test_full_tables_of_a_line_are_factored_ones_too(size):
    height, width = size
    table = torch.randn(2 * height - 1, 2 * width - 1, 3)
    position = FullPosition(table, 2 * table).factored()
    assert position.size == size
    assert torch.equal(position.full().query, table)
    assert torch.equal(position.full().key, 2 * table)


SERVED = {
    "factored": ("auto", "reference", "chunked", "sdpa"),
    "full": ("auto", "reference", "chunked"),
}


TILED = [("factored", "chunked"), ("factored", "sdpa"), ("full", "chunked")]
TABLES = list(SERVED)
RICH = {"beta": 0.4, "key_iterations": 2, "key_prior": 0.5, "propagations": 2}


def check_backend(case, backend, wanted):
    if backend == "sdpa" and case.propagations:  # refuses the gradients of written-out pairs
        with torch.no_grad():
            outputs = case.run(backend, case.tensors())
        torch.testing.assert_close(outputs, wanted.outputs, rtol=1e-8, atol=1e-9)
        return
    assert_same(case.derive(backend), wanted)


@pytest.mark.parametrize("kind", TABLES)
def test_any_call(kind):
    @given(position_cases(kind))
    @example(PositionCase(kind, alpha="unit", masked=True, value_iterations=2, **RICH))
    @example(PositionCase(kind, (5, 1), own=False, key_tables=False))
    @example(PositionCase(kind, (1, 4), key_iterations=2, key_prior=0.7, masked=True))
    def any_call(case):
        wanted = case.derive("oracle")
        for backend in SERVED[kind]:
            check_backend(case, backend, wanted)

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


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("alpha", ["default", "unit"])
def test_gradients_by_differences(kind, alpha):
    case = PositionCase(kind, (2, 2), 1, 2, own=alpha == "unit", alpha=alpha, **RICH)
    tensors = case.tensors()

    def run(*leaves):
        return tuple(case.run("chunked", dict(zip(tensors, leaves, strict=True))).values())

    leaves = tuple(tensor.requires_grad_() for tensor in tensors.values())
    assert gradcheck(run, leaves, fast_mode=True)


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


P, ONE = torch.zeros(4, 2), torch.tensor(1.0)


def dense(prior: DistancePrior, batch: int, heads: int) -> Tensor:
    """`-|p_i - p_j| / length` in loops, (B, G, N, M)."""
    rows, columns = prior.query_positions.tolist(), prior.key_positions.tolist()
    distance = torch.tensor([[math.dist(p, r) for r in columns] for p in rows], dtype=torch.float64)
    length = prior.length.double().expand(batch, heads)[..., None, None]
    return -distance / length


def prior_of(n: int, m: int, *length: int, coordinates: int = 2, seed: int = 0) -> DistancePrior:
    return DistancePrior(
        3 * draw(n, coordinates, seed=seed),
        3 * draw(m, coordinates, seed=seed + 1),
        draw(*length, seed=seed + 2).exp(),
    )


@given(
    st.tuples(*(st.integers(1, 6),) * 2), st.integers(1, 3), st.integers(0, 2), st.integers(0, 99)
)
def test_blocks_and_scores_are_distances(tokens, coordinates, length_dims, seed):
    b, g = 2, 3
    prior = prior_of(*tokens, *(b, g)[2 - length_dims :], coordinates=coordinates, seed=seed)
    wanted = dense(prior, b, g)
    assert prior.shape == (b if length_dims == 2 else 1, g if length_dims else 1, *tokens)
    torch.testing.assert_close(prior.block(EVERYTHING).expand_as(wanted), wanted)
    last = [slice(size // 2, None) for size in (b, g, *tokens)]
    part = wanted[tuple(last)]
    torch.testing.assert_close(prior.block(Block(*last)).expand_as(part), part)
    rows = torch.arange(tokens[0]).flip(0)
    picked = prior.block(Block(slice(1, 2), slice(0, 2), rows, slice(None)))
    torch.testing.assert_close(picked.expand(1, 2, *tokens), wanted[1:2, :2, rows])
    places = torch.meshgrid(*(torch.arange(size) for size in wanted.shape), indexing="ij")
    torch.testing.assert_close(prior.score(*places), wanted)


@each("shape", [(), (2,), (3, 2), (3, 1)])
def test_gradients_of_the_length(shape):
    prior = prior_of(4, 3, *shape)
    places = torch.meshgrid(*(torch.arange(size) for size in (3, 2, 4, 3)), indexing="ij")
    block = Block(slice(None), slice(None), slice(1, 3), slice(None))

    def run(length: Tensor) -> tuple[Tensor, Tensor]:
        other = DistancePrior(prior.query_positions, prior.key_positions, length)
        return other.block(block), other.score(*places)

    assert gradcheck(run, prior.length.requires_grad_())


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_tokens_in_the_same_place_give_finite_gradients(backend):
    prior = DistancePrior(P.double(), P.double(), torch.tensor(1.5).double().requires_grad_())
    x = draw(1, 2, 4, 3, seed=3).requires_grad_()
    result = probabilistic_attention(
        x, x, x, log_prior=prior, key_adaptation=KeyAdaptation(2), backend=backend
    )
    outputs = result.values.square().sum() + result.log_evidence.sum()
    gradients = torch.autograd.grad(outputs, (x, prior.length))
    assert gradients[0].isfinite().all()
    assert gradients[0].abs().max() > 1e-3
    assert gradients[1] == 0  # all distances are


@each("backend", ["reference", "chunked"])
def test_distances_have_the_dtype_of_the_tokens(backend):
    x = draw(1, 1, 12, 3)
    prior = DistancePrior.on_map(3, 4, length=3)
    written_out = dense(prior, 1, 1)
    for tokens, bound in ((x, 1e-15), (x.float(), 1e-6)):
        got, wanted = (
            probabilistic_attention(tokens, tokens, tokens, log_prior=of, backend=backend).values
            for of in (prior, written_out.to(tokens.dtype))
        )
        assert got.dtype == tokens.dtype
        assert (got - wanted).abs().max() < bound


@each("tokens", [5, 60])
@each("offset", [0.0, 0.3])
def test_distances_keep_their_digits_in_single_precision(offset, tokens):
    """Those of a token to itself above all, on a map of 256 pixels and between its pixels."""
    positions = (256 * draw(tokens, 2).sigmoid()).round().float() + offset
    prior = DistancePrior(positions, positions, ONE)
    rows = positions.double()
    wanted = -(rows[:, None] - rows).square().sum(-1).sqrt()
    error = (prior.block(EVERYTHING)[0, 0].double() - wanted).abs()
    assert error.max() < 1e-4
    assert error.diagonal().max() == 0


@each(
    ("fields", "message"),
    [
        ((P[0], P, ONE), "query_positions"),
        ((P, P.clone().requires_grad_(), ONE), "`key_positions` .*gradient"),
        ((P, P, 2.0), "length"),
        ((P, P[None], ONE), "key_positions"),
        ((P.long(), P, ONE), "query_positions"),
        ((P[:, :0], P[:, :0], ONE), "query_positions"),
        ((P, P[:, :1], ONE), "same number of coordinates, got 2 and 1"),
        ((P, P, ONE.expand(1, 1, 1)), "length"),
    ],
)
def test_wrong_fields_are_named(fields, message):
    with pytest.raises((ValueError, TypeError), match=message):
        DistancePrior(*fields)


@pytest.mark.parametrize("prior", [DistancePrior.on_map(2, 3), DistancePrior(P, P, torch.ones(3))])
def test_another_number_of_tokens_or_heads_is_named(prior):
    x = torch.zeros(1, 2, 4, 3)
    refused(ValueError, lambda: probabilistic_attention(x, x, x, log_prior=prior), "log_prior")
