import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.metrics import clustered_bootstrap
from probseg.metrics.bootstrap import draw_weights
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
    monkeypatch.setattr("probseg.metrics.bootstrap._BLOCK", 35)
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


def test_the_order_of_objects_and_the_names_do_not_matter():
    values, photos = np.random.default_rng(0).random(12), list("abcabcabcdef")
    low, high = clustered_bootstrap(values, photos)
    assert low.shape == high.shape == ()
    assert low < values.mean() < high
    turned = clustered_bootstrap(values[::-1], photos[::-1])
    assert np.array(turned) == pytest.approx(np.array([low, high]))
    longer = clustered_bootstrap(values, [f"photo {name}" for name in photos])
    assert longer == (low, high)
    assert clustered_bootstrap(values, photos, seed=1) != (low, high)


@each(
    ("values", "photos", "options", "message"),
    [
        (np.zeros(0), [], {}, "values"),
        (np.array([0, np.nan]), ["a", "b"], {}, "NaN"),
        (np.zeros(2), ["a"], {}, "photos"),
        (np.zeros(2), ["a", "b"], {"draws": 0}, "draws"),
        (np.zeros(2), ["a", "b"], {"level": 95}, "level"),
    ],
)
def test_wrong_arguments_are_refused(values, photos, options, message):
    with pytest.raises(ValueError, match=message):
        clustered_bootstrap(values, photos, **options)
