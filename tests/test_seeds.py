"""Random numbers without state, against SplitMix64 written out with Python's whole numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from probseg.seeds import Draws, mix_seeds

NUMBERS = st.integers(-(2**70), 2**70)
SEEDS = st.integers(-(2**63), 2**63 - 1)


def splitmix(seed, number):
    """Output `number`, from 1, of the generator that starts with a seed."""
    z = (seed + number * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) >> 1


# The first outputs for the seed 1234567, as given with the algorithm on Rosetta Code
assert [splitmix(1234567, n) for n in (1, 2)] == [
    6457827717110365317 >> 1,
    3203168211198807973 >> 1,
]


@given(st.lists(SEEDS, min_size=1, max_size=5), st.integers(1, 9), st.integers(1, 2**40))
def test_draws_are_the_generators_outputs(seeds, count, limit):
    draws = Draws(torch.tensor(seeds))
    uniform = draws.uniform(count)
    limits = torch.full((len(seeds), 2), limit)
    below = draws.below(limits)
    for row, seed in enumerate(seeds):
        expected = [(splitmix(seed, n + 1) >> 39) / 2**24 for n in range(count)]
        assert uniform[row].tolist() == expected
        expected = [splitmix(seed, count + n + 1) % limit for n in range(2)]
        assert below[row].tolist() == expected


def test_draws_are_uniform_and_independent():
    drawn = Draws(torch.tensor([mix_seeds(n) for n in range(300)])).uniform(300).numpy()
    assert 0 <= drawn.min() < drawn.max() < 1
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 0.01
    shifts = [drawn[:, 1:].ravel(), drawn[1:].ravel()]
    for before, after in zip((drawn[:, :-1], drawn[:-1]), shifts, strict=True):
        assert abs(np.corrcoef(before.ravel(), after)[0, 1]) < 0.015


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_a_mix_is_a_seed_and_depends_on_the_order(numbers):
    assert 0 <= mix_seeds(*numbers) < 2**63
    assert mix_seeds(*numbers) == mix_seeds(*numbers)
    assert mix_seeds(*numbers) != mix_seeds(*numbers, 0)
    if len({number % 2**64 for number in numbers}) > 1 and numbers != numbers[::-1]:
        assert mix_seeds(*numbers) != mix_seeds(*numbers[::-1])


@pytest.mark.parametrize("seeds", [torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2)])
def test_seeds_must_be_whole_numbers_in_a_row(seeds):
    with pytest.raises(ValueError, match="seeds"):
        Draws(seeds)
