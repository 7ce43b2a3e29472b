import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.metrics import clustered_bootstrap, statistics
from probseg.metrics.statistics import draw_weights, holm, mcnemar, signed_rank
from support.rows import each


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=12), st.integers(0, 5))
def test_intervals_are_those_of_a_loop_over_the_same_draws(photos, seed):
    values = np.random.default_rng(seed).random((len(photos), 2))
    names = sorted(set(photos))
    weights = draw_weights(len(names), 40, np.random.default_rng(seed))
    means = []
    for draw in weights:
        resampled = []
        for name, times in zip(names, draw, strict=True):
            members = [value for value, photo in zip(values, photos, strict=True) if photo == name]
            resampled += members * int(times)
        means.append(np.mean(resampled, axis=0))
    low, high = clustered_bootstrap(values, photos, draws=40, seed=seed, level=0.8)
    if len(names) == 1:
        assert np.isnan([low, high]).all()
    else:
        assert low == pytest.approx(np.percentile(means, 10, axis=0))
        assert high == pytest.approx(np.percentile(means, 90, axis=0))


def test_weights_are_draws_with_replacement():
    weights = draw_weights(5, 20_000, np.random.default_rng(0))
    assert (weights.sum(axis=1) == 5).all()
    assert weights.mean(axis=0) == pytest.approx(1, abs=0.03)
    assert weights.var(axis=0) == pytest.approx(1 - 1 / 5, abs=0.03)  # of a multinomial
    covariance = np.cov(weights.T)[~np.eye(5, dtype=bool)]
    assert covariance == pytest.approx(-1 / 5, abs=0.03)


def test_draws_in_blocks_are_the_same(monkeypatch):
    values, photos = np.random.default_rng(0).random((30, 3)), [f"{n % 10}" for n in range(30)]
    whole = clustered_bootstrap(values, photos, draws=100)
    monkeypatch.setattr("probseg.metrics.statistics._BLOCK", 35)
    for bound, expected in zip(clustered_bootstrap(values, photos, draws=100), whole, strict=True):
        assert bound == pytest.approx(expected)


def draw_objects(random, photos, per_photo):
    """Objects of one photograph are alike: standard deviation 1 between, 0.3 within; mean 0."""
    between = random.normal(size=(photos, 1))
    return (between + 0.3 * random.normal(size=(photos, per_photo))).ravel()


def test_intervals_hold_the_true_mean_as_often_as_they_say():
    random = np.random.default_rng(0)
    photos, per_photo, studies = 40, 5, 300
    names = [f"{n}" for n in range(photos) for _ in range(per_photo)]
    objects = [f"{n}" for n in range(photos * per_photo)]
    hits = {"clustered": 0, "as if independent": 0}
    for _ in range(studies):
        values = draw_objects(random, photos, per_photo)
        for kind, clusters in (("clustered", names), ("as if independent", objects)):
            low, high = clustered_bootstrap(values, clusters, draws=300)
            hits[kind] += low <= 0 <= high
    assert 0.89 < hits["clustered"] / studies < 0.98
    assert hits["as if independent"] / studies < 0.8


def alone(values):
    """Photographs that hold one object each."""
    return [f"photo {number}" for number in range(len(values))]


def midranks(sizes):
    """Rank of each size, the mean rank where several are equal."""
    return [
        Fraction(sum(2 * (other < size) + (other == size) for other in sizes) + 1, 2)
        for size in sizes
    ]


def enumerated(terms, signs):
    """Two-sided p-value of the positive terms' sum, over all ways to choose signs."""
    sums = [
        sum(term for term, plus in zip(terms, choice, strict=True) if plus)
        for choice in itertools.product((False, True), repeat=len(terms))
    ]
    got = sum(term for term, sign in zip(terms, signs, strict=True) if sign > 0)
    lower = sum(total <= got for total in sums)
    upper = sum(total >= got for total in sums)
    return min(1, Fraction(2 * min(lower, upper), len(sums)))


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_signed_ranks_count_all_ways_to_choose_signs(values):
    ranks = midranks([abs(value) for value in values])
    some = [(rank, value) for rank, value in zip(ranks, values, strict=True) if value]
    found = signed_rank(np.array(values) / 7, alone(values))
    expected = enumerated([rank for rank, _ in some], [value for _, value in some])
    assert found.p == pytest.approx(float(expected))
    balance = sum(rank * (1 if value > 0 else -1) for rank, value in some)
    assert found.direction == (balance > 0) - (balance < 0)
    assert found.zeros == values.count(0)
    sizes = [abs(value) for value in values if value]
    assert found.ties == sum(sizes.count(size) > 1 for size in sizes)


def test_exact_and_approximate_signed_ranks_meet(monkeypatch):
    values = np.round(np.random.default_rng(4).normal(0.01, 0.2, 300), 2)  # with ties
    values = np.append(values, np.zeros(100))  # without a rank, they would make p a third smaller
    approximate = signed_rank(values, alone(values))
    monkeypatch.setattr(statistics, "EXACT_RANKS", 1000)
    exact = signed_rank(values, alone(values))
    assert exact.zeros > 100
    assert exact.ties > 100
    assert 0.001 < exact.p < 0.2
    assert approximate.p == pytest.approx(exact.p, rel=0.03)
    assert approximate.p != exact.p


def test_rounding_errors_break_no_ties():
    values = np.array([1.8 - 2.2, 2.6 - 3.0, 0.3 - 0.1 - 0.2, 0.1 + 0.2 - 0.3])
    found = signed_rank(values, alone(values))
    assert found.zeros == 2
    assert found.ties == 2


def test_ranks_are_of_photographs():
    values = np.array([0.3, -0.1, 0.4, 0.2, -0.5])
    photos = ["b", "b", "a", "c", "c"]
    assert signed_rank(values, photos) == signed_rank(np.array([0.4, 0.1, -0.15]), "abc")
    copied = signed_rank(np.repeat(values, 6), np.repeat(alone(values), 6))
    assert copied.p == signed_rank(values, alone(values)).p


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 5), st.integers(0, 5))
def test_mcnemar_is_binomial_on_discordant_objects(only_first, only_second, both, neither):
    pairs = [(1, 0)] * only_first + [(0, 1)] * only_second + [(1, 1)] * both + [(0, 0)] * neither
    pairs = pairs or [(1, 1)]
    first, second = np.array(pairs, dtype=bool).T
    found = mcnemar(first, second, alone(pairs))
    n, least = only_first + only_second, min(only_first, only_second)
    tail = Fraction(sum(math.comb(n, i) for i in range(least + 1)), 2**n)
    assert found == pytest.approx(float(min(1, 2 * tail)))
    assert mcnemar(second, first, alone(pairs)) == found


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1))
def test_objects_of_a_photograph_change_sides_together(objects):
    photos, first, second = zip(*objects, strict=True)
    net = [
        sum(a - b for photo, a, b in objects if photo == number) for number in sorted(set(photos))
    ]
    found = mcnemar(np.array(first), np.array(second), [str(photo) for photo in photos])
    assert found == pytest.approx(float(enumerated([abs(sum_) for sum_ in net], net)))


@given(st.lists(st.floats(0, 1), max_size=20), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_procedure_rejects(p_values, level):
    """Holm (1979): go up from the smallest, stop at the first above level / (m - i)."""
    rejected = set()
    for i, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] * (len(p_values) - i) > level:
            break
        rejected.add(place)
    corrected = holm(p_values)
    assert {place for place, p in enumerate(corrected) if p <= level} == rejected


@each(
    ("call", "told"),
    [
        (lambda: clustered_bootstrap(np.zeros(0), []), "values"),
        (lambda: clustered_bootstrap(np.array([0, np.nan]), ["a", "b"]), "NaN"),
        (lambda: clustered_bootstrap(np.zeros(2), ["a"]), "photos"),
        (lambda: signed_rank(np.array([]), []), "at least one"),
        (lambda: signed_rank(np.zeros(3), ["a"]), "got 1 for 3"),
        (lambda: signed_rank(np.array([0.1, np.nan]), ["a", "b"]), "NaN"),
        (lambda: signed_rank(np.zeros((2, 2)), ["a", "b"]), r"\(2, 2\)"),
        (lambda: mcnemar(np.ones(2, bool), np.ones(2, bool), ["a"]), "got 1 for 2"),
    ],
)
def test_what_cannot_be_tested_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()
