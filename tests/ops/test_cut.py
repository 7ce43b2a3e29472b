"""Minimum cuts of small grids, against all their divisions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.data import astronaut

from probseg.heads.graph_cut import STEPS, minimum_cut
from support.rows import each


def cost(labels, advantage, image, smoothness):
    """Cost of a division, pixel by pixel and pair by pair."""
    height, width = advantage.shape
    places = list(itertools.product(range(height), range(width)))
    pairs = [
        (a, b)
        for a, b in itertools.combinations(places, 2)
        if max(abs(a[0] - b[0]), abs(a[1] - b[1])) == 1
    ]
    squares = [((image[a] - image[b]) ** 2).sum() for a, b in pairs]
    usual = 2 * np.mean(squares) if any(squares) else 1.0
    divided = sum(
        smoothness * math.exp(-square / usual) / math.dist(a, b)
        for (a, b), square in zip(pairs, squares, strict=True)
        if labels[a] != labels[b]
    )
    wrong = np.where(labels, np.maximum(-advantage, 0), np.maximum(advantage, 0))
    return divided + wrong.sum()


@given(
    st.integers(0, 10_000),
    st.tuples(st.integers(1, 4), st.integers(1, 4)).filter(lambda s: s[0] * s[1] <= 10),
    st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    st.booleans(),
)
def test_no_other_division_costs_less(seed, size, smoothness, plain):
    generator = np.random.default_rng(seed)
    advantage = generator.normal(size=size)
    image = np.zeros((*size, 3)) if plain else generator.normal(size=(*size, 3))
    found = minimum_cut(advantage, image, smoothness)
    divisions = itertools.product([False, True], repeat=advantage.size)
    least = min(cost(np.reshape(d, size), advantage, image, smoothness) for d in divisions)
    terms = advantage.size + 4 * advantage.size
    assert cost(found, advantage, image, smoothness) <= least + terms / STEPS


def test_without_smoothness_each_pixel_is_what_it_gains_by():
    advantage = np.random.default_rng(0).normal(size=(7, 5))
    found = minimum_cut(advantage, np.zeros((7, 5, 3)), 0.0)
    np.testing.assert_array_equal(found, advantage > 0.5 / STEPS)


def test_a_contour_follows_the_contrast():
    image = np.zeros((20, 30, 3))
    image[:, 17:] = 1.0
    advantage = np.zeros((20, 30))
    advantage[8:12, 3:6], advantage[8:12, 25:28] = 5.0, -5.0
    expected = np.zeros((20, 30), dtype=bool)
    expected[:, :17] = True
    np.testing.assert_array_equal(minimum_cut(advantage, image, 1.0), expected)


def test_of_equal_divisions_the_object_is_the_smallest():
    assert not minimum_cut(np.zeros((4, 4)), np.zeros((4, 4, 3)), 1.0).any()


def test_costs_of_a_whole_photograph_do_not_overflow():
    image = astronaut()[::2, ::2].astype(float)
    advantage = np.full(image.shape[:2], 1e6)
    advantage[:, 128:] = -1e6
    np.testing.assert_array_equal(minimum_cut(advantage, image, 1e5), advantage > 0)


@each(("advantage", "smoothness"), [(np.nan, 1.0), (np.inf, 1.0), (2e6, 1.0), (0.0, -1.0)])
def test_costs_that_do_not_fit_are_refused(advantage, smoothness):
    with pytest.raises(ValueError, match="`advantage` and `smoothness`"):
        minimum_cut(np.full((2, 2), advantage), np.zeros((2, 2, 3)), smoothness)
