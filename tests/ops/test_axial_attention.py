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
from probseg.ops.axial import from_lines, to_lines
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


@pytest.mark.parametrize("axis", ["height", "width"])
def test_lines_are_mixtures_of_their_own(axis):
    q, k, v, start = (draw(2, 2, c, 4, 5, seed=i) for i, c in enumerate((3, 3, 2, 2)))
    options = {"key_adaptation": KeyAdaptation(), "value_precision": 1.0}
    whole = along_lines(q, k, v, axis=axis, initial_values=start, **options)
    for i in range(4 if axis == "width" else 5):
        line = (..., i, slice(None)) if axis == "width" else (..., slice(None), i)
        tokens, before = (x[line].mT for x in (q, k, v)), start[line].mT
        single = probabilistic_attention(*tokens, initial_values=before, **options)
        torch.testing.assert_close(whole[line], single.values.mT)


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
    place = torch.arange(length)
    mask = torch.zeros(length, length)
    if span is not None:
        mask[(place[:, None] - place).abs() > 1] = -inf
    for i in range(lines):
        line = (..., i) if axis == "height" else (..., i, slice(None))
        tokens = (x[line].mT for x in (q, k, v))
        single = probabilistic_attention(*tokens, log_mask=mask, **options)
        torch.testing.assert_close(whole[line], single.values.mT)
    plain = along_lines(q, k, v, axis=axis, span=span, **{**options, "position": None})
    assert (plain - whole).abs().max() > 0.05


X = torch.zeros(1, 2, 3, 4, 5)
WRONG = [
    ({"axis": "heigth"}, UnknownNameError, "unknown axis 'heigth': did you mean 'height'"),
    ({"axis": "full", "span": 3}, ValueError, "`span`"),
    ({"axis": "width", "span": 0}, ValueError, "`span`"),
    (
        {"axis": "height", "position": build(draw_tables("full", (1, 5), 3))},
        ValueError,
        "1 x 5 = 5",
    ),
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
