"""Maps of clicks that have spread to pixels of like colour and place."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.clicks import PropagatedClicks
from probseg.clicks.propagated import FEW_CLICKS, LARGEST_ODDS, SMALLEST_SHARE
from support.network_cases import prompts
from support.rows import each


def halves():
    """Two colours, left and right of a column."""
    image = torch.full((1, 3, 48, 64), 0.25)
    image[..., 40:] = 0.75
    return image


def soft(queries, keys):
    distances = ((queries[:, None] - keys[None]) ** 2).sum(-1) / 2
    weights = np.exp(distances.min(1, keepdims=True) - distances)
    return weights / weights.sum(1, keepdims=True)


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 3), st.integers(6, 14))
def test_maps_are_those_of_em_written_out(seed, units, iterations, width):
    generator = np.random.default_rng(seed)
    height = 9
    image = generator.normal(size=(1, 3, height, width)).astype(np.float32)
    clicks = [(3.0, 2.0, 1.0), (width - 2.0, height - 3.0, 0.0)]
    scales = [(1.3, 0.0), (0.7, 2.5)]
    module = PropagatedClicks(units, iterations, scales, stride=1)
    found = module(torch.from_numpy(image), prompts(*clicks)).double().numpy()[0]
    y, x = np.mgrid[:height, :width].astype(np.float64)
    longer = max(height, width)
    far = [np.hypot(x - cx, y - cy) for cx, cy, _ in clicks]
    nearest = far[0] <= far[1]
    positive = (far[0] <= max(0.02 * longer, 0.75)) & nearest
    negative = (far[1] <= max(0.02 * longer, 0.75)) & ~nearest
    share = ((far[0] <= 0.1 * longer) & nearest).astype(float)
    share = np.where(positive, 1.0, np.where(negative, 0.0, share))
    said = np.stack([share, positive, negative]).reshape(3, -1).T  # (N, 3)

    def odds(values):
        kept = np.clip(values, SMALLEST_SHARE, 1 - SMALLEST_SHARE)
        return np.log(kept / (1 - kept))

    for space, (colour, place) in enumerate(scales):
        tokens = np.concatenate([colour * image[0], place * np.stack([y, x]) / longer])
        queries = tokens.reshape(5, -1).T  # (N, 5)
        edges = [
            [(n * size // units, -(-(n + 1) * size // units)) for n in range(units)]
            for size in (height, width)
        ]
        keys = np.stack(
            [tokens[:, a:b, c:d].mean((1, 2)) for a, b in edges[0] for c, d in edges[1]]
        )
        for _ in range(iterations):
            weights = soft(queries, keys)
            keys = weights.T @ queries / weights.sum(0)[:, None]
        weights = soft(queries, keys)
        read = weights @ (weights.T @ said / weights.sum(0)[:, None])  # (N, 3)
        more = (odds(read[:, 0]) - odds(share.mean())) / LARGEST_ODDS
        clicked = (read[:, 1] - read[:, 2]) / (read[:, 1] + read[:, 2] + FEW_CLICKS)
        np.testing.assert_allclose(found[2 * space].ravel(), more, atol=2e-3)
        np.testing.assert_allclose(found[2 * space + 1].ravel(), clicked, atol=2e-3)


def test_a_box_is_the_object_until_there_is_an_answer():
    module = PropagatedClicks(units=6)
    box = (40.0, 0.0, 64.0, 48.0)
    odds = module(halves(), prompts(box=box))[0, 0]
    assert odds[10, 60] > 0.5 > 0 > odds[10, 10]
    answer = torch.zeros(1, 1, 48, 64)
    answer[..., :40] = 1
    odds = module(halves(), prompts(box=box, previous=answer))[0, 0]
    assert odds[10, 10] > 0 > odds[10, 60]


def test_an_answer_without_any_object_is_none():
    module = PropagatedClicks(units=6)
    given = prompts((10, 10, 1))
    empty = given._replace(previous=torch.zeros(1, 1, 48, 64))
    torch.testing.assert_close(module(halves(), empty), module(halves(), given))
    nothing = module(halves(), prompts())
    torch.testing.assert_close(nothing, torch.zeros_like(nothing), atol=1e-3, rtol=0)


@each("size", [(33, 47), (5, 60), (3, 3), (1, 1)])
def test_sizes_need_not_be_whole_cells(size):
    maps = PropagatedClicks(units=3)(torch.rand(1, 3, *size), prompts((0, 0, 1)))
    assert maps.shape == (1, 6, *size)
    assert maps.isfinite().all()
    assert maps.abs().max() <= 2


@each(
    "arguments",
    [
        {"units": 0},
        {"key_iterations": 0},
        {"stride": 0},
        {"scales": []},
        {"scales": [(0.0, 0.0)]},
        {"scales": [(-1.0, 2.0)]},
    ],
)
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}`"):
        PropagatedClicks(**arguments)


def test_maps_stay_in_place_where_the_last_cell_is_cut():
    whole, cut = (halves()[..., :width].contiguous() for width in (64, 61))
    module = PropagatedClicks(2, 1, [(20.0, 0.0)], stride=8)
    given = prompts((10.0, 20.0, 1.0), (50.0, 20.0, 0.0))
    borders = [(module(image, given)[0, 0, 24] < 0).int().argmax() for image in (whole, cut)]
    assert borders[0] == borders[1]
