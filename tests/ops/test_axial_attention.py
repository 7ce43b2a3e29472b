"""Attention along rows, columns and local spans."""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.errors import UnknownNameError
from probseg.ops import (
    InferenceSettings,
    KeyAdaptation,
    ValuePropagation,
    axial_attention,
    probabilistic_attention,
)
from probseg.ops.axial import from_lines, line_mask, span_mask, to_lines
from support.ops_cases import draw
from support.position_cases import build, draw_tables
from support.rows import each

OF_THE_MAP = ("axis", "span", "position", "initial_values", "fixed_values", "fixed_mask")


def along_lines(queries, keys, values, **options):
    of_map = {name: value for name, value in options.items() if name in OF_THE_MAP}
    settings = {name: value for name, value in options.items() if name not in OF_THE_MAP}
    return axial_attention(queries, keys, values, InferenceSettings(**settings), **of_map)


@given(st.tuples(*[st.integers(1, 5)] * 5), st.sampled_from(["full", "height", "width"]))
def test_lines_there_and_back(shape, axis):
    maps = draw(*shape)
    b, g, c, h, w = shape
    lines = to_lines(maps, axis)
    layout = {"full": (b, g, h * w, c), "height": (b * w, g, h, c), "width": (b * h, g, w, c)}
    assert lines.shape == layout[axis]
    assert torch.equal(from_lines(lines, axis, h, w), maps)


def test_lines_hold_the_right_pixels():
    maps = draw(2, 3, 4, 5, 6)
    assert torch.equal(to_lines(maps, "height")[6 + 2], maps[1, :, :, :, 2].mT)
    assert torch.equal(to_lines(maps, "width")[5 + 3], maps[1, :, :, 3].mT)
    assert torch.equal(to_lines(maps, "full")[1, :, 6 * 3 + 2], maps[1, :, :, 3, 2])


@pytest.mark.parametrize("axis", ["height", "width"])
def test_lines_are_mixtures_of_their_own(axis):
    q, k, v = draw(2, 2, 3, 4, 5), draw(2, 2, 3, 4, 5, seed=1), draw(2, 2, 2, 4, 5, seed=2)
    whole = along_lines(q, k, v, axis=axis, key_adaptation=KeyAdaptation())
    for i in range(4 if axis == "width" else 5):
        line = (..., i, slice(None)) if axis == "width" else (..., slice(None), i)
        single = probabilistic_attention(
            q[line].mT, k[line].mT, v[line].mT, key_adaptation=KeyAdaptation()
        )
        torch.testing.assert_close(whole[line], single.values.mT)


def test_span_mask_is_a_band():
    mask = span_mask(9, 4)
    for i in range(9):
        for j in range(9):
            assert mask[i, j] == (0.0 if abs(i - j) <= 2 else -inf)
    assert torch.equal(span_mask(3, 1), torch.zeros(3, 3).fill_(-inf).fill_diagonal_(0.0))


def test_no_mask_where_the_span_covers_the_line():
    assert line_mask("height", 5, 9, 8) is None
    assert line_mask("height", 5, 9, 7).shape == (5, 5)
    assert line_mask("width", 5, 9, 8).shape == (9, 9)
    assert line_mask("full", 5, 9, None) is None


@each("axis", ["height", "width"])
@each("span", [1, 2, 3, 4])
def test_span_is_a_banded_dense_computation(axis, span):
    """One softmax over all pixels of the map, with those outside the line's band taken out."""
    h, w = 5, 6
    q, k, v = draw(1, 2, 3, h, w), draw(1, 2, 3, h, w, seed=1), draw(1, 2, 2, h, w, seed=2)
    y, x = torch.arange(h * w) // w, torch.arange(h * w) % w
    along, across = (y, x) if axis == "height" else (x, y)
    seen = (across[:, None] == across) & ((along[:, None] - along).abs() <= span // 2)
    weights = (q.flatten(3).mT @ k.flatten(3) / 3**0.5).exp() * seen
    weights = weights / weights.sum(-1, keepdim=True)
    expected = (v.flatten(3) @ weights.mT).unflatten(-1, (h, w))
    torch.testing.assert_close(along_lines(q, k, v, axis=axis, span=span), expected)
    shares = weights / weights.sum(-2, keepdim=True)
    adapted = (q.flatten(3) @ shares).unflatten(-1, (h, w))
    torch.testing.assert_close(
        along_lines(q, k, v, axis=axis, span=span, key_adaptation=KeyAdaptation()),
        along_lines(q, adapted, v, axis=axis, span=span),
    )


def test_clicks_propagate_along_their_line_only():
    q, k, v = draw(1, 1, 3, 4, 5), draw(1, 1, 3, 4, 5, seed=1), draw(1, 1, 2, 4, 5, seed=2)
    clicked = torch.zeros(1, 4, 5, dtype=torch.bool)
    clicked[0, 2, 1] = True
    options = {
        "value_precision": 0.5,
        "log_prior": "uniform",
        "value_propagation": ValuePropagation(1, 0.1),
        "fixed_mask": clicked,
    }
    before = along_lines(q, k, v, axis="width", value_precision=0.5, log_prior="uniform")
    after = along_lines(q, k, v, axis="width", fixed_values=v + 5, **options)
    changed = (after - before).abs().amax((0, 1, 2)) > 1e-6
    assert changed[2].all()
    assert not changed[[0, 1, 3]].any()
    clamped = along_lines(q, k, v, axis="height", fixed_values=v + 5, **options, clamp_fixed=True)
    torch.testing.assert_close(clamped[..., 2, 1], v[..., 2, 1] + 5)


def test_initial_values_go_to_their_lines():
    q, k, v = draw(2, 1, 3, 3, 4), draw(2, 1, 3, 3, 4, seed=1), draw(2, 1, 2, 3, 4, seed=2)
    start = draw(2, 1, 2, 3, 4, seed=3)
    whole = along_lines(q, k, v, axis="height", value_precision=1.0, initial_values=start)
    column = probabilistic_attention(
        *(x[..., 1].mT for x in (q, k, v)), value_precision=1.0, initial_values=start[..., 1].mT
    )
    torch.testing.assert_close(whole[..., 1], column.values.mT)


@each("kind", ["factored", "full"])
@each("axis", ["height", "width"])
@each("span", [None, 3])
def test_each_line_has_the_position_of_its_pixels(kind, axis, span):
    q, k, v = draw(2, 2, 3, 4, 5), draw(2, 2, 3, 4, 5, seed=1), draw(2, 2, 2, 4, 5, seed=2)
    length, lines = (4, 5) if axis == "height" else (5, 4)
    size = (length, 1) if axis == "height" else (1, length)
    position = build(draw_tables(kind, size, 3, heads=2))
    options = {"position": position, "key_adaptation": KeyAdaptation(2, 0.3), "query_precision": 1}
    whole = along_lines(q, k, v, axis=axis, span=span, **options)
    mask = torch.full((length, length), -inf)
    for i in range(length):
        for j in range(length):
            if span is None or abs(i - j) <= 1:
                mask[i, j] = 0.0
    for i in range(lines):
        line = (..., i) if axis == "height" else (..., i, slice(None))
        tokens = (x[line].mT for x in (q, k, v))
        single = probabilistic_attention(*tokens, log_mask=mask, **options)
        torch.testing.assert_close(whole[line], single.values.mT)
    plain = along_lines(q, k, v, axis=axis, span=span, **{**options, "position": None})
    assert (plain - whole).abs().max() > 0.05


@pytest.mark.parametrize("axis", ["height", "width"])
def test_only_the_offset_along_the_line_counts(axis):
    """Softmax attention of a single pixel's line, with the offset key minus query."""
    q, k, v = draw(1, 1, 3, 4, 4), draw(1, 1, 3, 4, 4, seed=1), draw(1, 1, 2, 4, 4, seed=2)
    size = (4, 1) if axis == "height" else (1, 4)
    position = build(draw_tables("full", size, 3))
    tables = [table.reshape(7, 3) for table in (position.query, position.key)]
    whole = along_lines(q, k, v, axis=axis, position=position)
    line = (0, 0, slice(None), slice(None), 1) if axis == "height" else (0, 0, slice(None), 1)
    query, keys, values = q[line][:, 2], k[line], v[line]
    scores = [
        query @ keys[:, j] + query @ tables[0][j - 2 + 3] + keys[:, j] @ tables[1][j - 2 + 3]
        for j in range(4)
    ]
    weights = (torch.stack(scores) / 3**0.5).softmax(0)
    torch.testing.assert_close(whole[line][:, 2], values @ weights)


@each("kind", ["factored", "full"])
@each(("axis", "size"), [("height", (7, 1)), ("width", (1, 7))])
def test_with_position_a_map_of_one_line_is_full_attention(kind, axis, size):
    q, k, v = draw(2, 2, 3, *size), draw(2, 2, 3, *size, seed=1), draw(2, 2, 2, *size, seed=2)
    options = {
        "position": build(draw_tables(kind, size, 3, heads=2)),
        "key_adaptation": KeyAdaptation(2, 0.3),
        "value_precision": 0.2,
        "value_propagation": ValuePropagation(),
        "fixed_values": 3 * v,
        "fixed_mask": draw(2, *size) > 0,
    }
    line = along_lines(q, k, v, axis=axis, **options)
    torch.testing.assert_close(line, along_lines(q, k, v, axis="full", **options))


@pytest.mark.parametrize("kind", ["factored", "full"])
def test_tables_of_another_line_are_named(kind):
    position = build(draw_tables(kind, (1, 5), 3))
    maps = draw(1, 2, 3, 4, 5)
    along_lines(maps, maps, maps, axis="width", position=position)
    with pytest.raises(ValueError, match="1 x 5 = 5 tokens of the map that `position` has tables"):
        along_lines(maps, maps, maps, axis="height", position=position)


X = torch.zeros(1, 2, 3, 4, 5)
WRONG = [
    ({"axis": "heigth"}, UnknownNameError, "unknown axis 'heigth': did you mean 'height'"),
    ({"axis": "full", "span": 3}, ValueError, "`span`"),
    ({"axis": "width", "span": 0}, ValueError, "`span`"),
    ({"axis": "width", "keys": X[..., :4]}, ValueError, "keys"),
    ({"axis": "width", "values": X.mT}, ValueError, "values"),
    ({"axis": "width", "queries": X.long()}, TypeError, "queries"),
    ({"axis": "width", "initial_values": X.double()}, TypeError, "initial_values"),
    ({"axis": "width", "queries": X[0]}, ValueError, "queries"),
    ({"axis": "width", "initial_values": X.mT}, ValueError, "initial_values"),
    ({"axis": "width", "initial_values": X[0]}, ValueError, "initial_values"),
    ({"axis": "width", "fixed_values": X[:, :, :2]}, ValueError, "fixed_values"),
    ({"axis": "width", "fixed_mask": X[:, 0] > 0}, ValueError, "fixed_mask"),
]


@each(("options", "error", "message"), WRONG)
def test_wrong_arguments_are_named(options, error, message):
    arguments = {"queries": X, "keys": X, "values": X, **options}
    with pytest.raises(error, match=message):
        along_lines(**arguments)
