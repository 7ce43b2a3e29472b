import dataclasses
import json

import numpy as np
import pytest

from probseg.evaluation.summary import Scores, Timing, percents_up_to, summarise
from probseg.metrics import (
    area_under_curve,
    clustered_bootstrap,
    noc,
)
from support.rows import each

NAN = float("nan")
# two photographs with three objects, one trial, K = 3 clicks, without a box
IOUS = np.array([[[0.0, 0.9, 0.9, 0.9]], [[0.0, 0.5, 0.4, 0.8]], [[0.0, 0.1, 0.2, 0.3]]])
SECONDS = np.array([[[NAN, 2.0, NAN, NAN]], [[NAN, 4.0, 1.0, 1.5]], [[NAN, 3.0, 1.1, 1.2]]])


def make_scores(ious=IOUS, seconds=SECONDS, photos=("a", "a", "b"), first=1, **arrays):
    """Scores whose other arrays hold a value wherever there was an answer by then."""
    answered = np.logical_or.accumulate(np.isfinite(seconds), axis=2)
    others = {
        "boundary_iou": ious / 2,
        "brier": np.where(answered, 0.2, NAN),
        "ece": np.where(answered, 0.1, NAN),
        "compliance": np.where(answered, 1.0, NAN),
    }
    values = {"iou": ious, **others, "jump": np.full_like(ious, NAN), **arrays}
    return Scores(values, seconds, photos, first)


def random_scores(objects=9, trials=3, clicks=5, photos=4):
    random = np.random.default_rng(0)
    shape = (objects, trials, clicks + 1)
    names = tuple(f"{n % photos}" for n in range(objects))
    return make_scores(random.random(shape), random.random(shape), names, first=0)


def test_summary_by_hand():
    brier = np.array([[[NAN, 0.1, 0.1, 0.1]], [[NAN, 0.4, 0.3, 0.2]], [[NAN, NAN, 0.2, 0.3]]])
    summary = summarise(make_scores(brier=brier), percents=(50, 90))
    assert (summary.n_objects, summary.n_photos, summary.n_trials) == (3, 2, 1)
    assert summary.max_clicks == 3
    assert summary.miou == pytest.approx([0, 0.5, 0.5, 2 / 3])
    assert summary.scores["boundary_iou"] == pytest.approx([0, 0.25, 0.25, 1 / 3])
    assert summary.scores["brier"] == [None, *(pytest.approx(value) for value in (0.25, 0.2, 0.2))]
    assert summary.scores["ece"] == [None, *[pytest.approx(0.1)] * 3]
    assert summary.scores["compliance"] == [None, 1, 1, 1]
    # without a prediction before the first click the curve begins after it
    areas = [0.9, (0.25 + 0.4 + 0.4) / 2, (0.05 + 0.2 + 0.15) / 2]
    assert summary.auc == pytest.approx(np.mean(areas))
    assert summary.auc_se == pytest.approx(np.std(areas, ddof=1) / 3**0.5)
    assert summary.noc == pytest.approx({50: 5 / 3, 90: 7 / 3})
    assert summary.noc_se[90] == pytest.approx(np.std([1, 3, 3], ddof=1) / 3**0.5)
    assert summary.noc_median == {50: 1, 90: None}
    assert summary.failures_at_cap == {50: 1, 90: 2}
    assert summary.failures_never == {50: 1, 90: 2}
    assert summary.survival[50] == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    assert summary.regressions == 1 / 4  # not of 7: the first answers had nothing before them
    assert summary.regression_size == pytest.approx(0.1)
    assert summary.first_seconds == Timing(3, pytest.approx(3.9))
    assert summary.next_seconds == Timing(pytest.approx(1.15), pytest.approx(1.455))


def test_with_a_box_the_curve_and_the_times_begin_before_the_first_click():
    seconds = SECONDS.copy()
    seconds[:2, :, 0] = 5.0  # the third run begins later
    summary = summarise(make_scores(seconds=seconds, first=0))
    assert summary.auc == pytest.approx(area_under_curve(IOUS).mean())
    assert summary.first_seconds.median == 5
    assert summary.next_seconds == Timing(*np.quantile([2, 4, 1, 1.5, 1.1, 1.2], (0.5, 0.95)))
    assert summary.regressions == 1 / 7


def test_a_mask_to_correct_is_a_result_that_clicks_can_harm():
    ious = np.array([[[0.8, 0.7, 0.9, 0.9]]])
    seconds = np.array([[[NAN, 1.0, 1.0, NAN]]])  # the model is first called after a click
    summary = summarise(make_scores(ious, seconds, ("a",), first=0))
    assert summary.regressions == 1 / 2
    assert summary.regression_size == pytest.approx(0.1)
    assert summary.auc == pytest.approx(area_under_curve(ious).mean())
    assert summary.first_seconds.median == 1


@each(
    ("target", "percents"),
    [(None, (80, 85, 90, 95)), (0.95, (80, 85, 90, 95)), (0.949, (80, 85, 90)), (0.5, ())],
)
def test_nothing_is_said_of_ious_above_the_one_at_which_runs_end(target, percents):
    assert percents_up_to(target) == percents
    summary = summarise(make_scores(), percents_up_to(target))
    for counts in (summary.noc, summary.noc_median, summary.failures_never, summary.survival):
        assert tuple(counts) == percents


def test_intervals_are_those_of_the_bootstrap():
    scores = random_scores()
    summary = summarise(scores, percents=(80,))
    low, high = clustered_bootstrap(scores.ious.mean(axis=1), scores.photos)
    assert summary.ci_low == pytest.approx(low)
    assert summary.ci_high == pytest.approx(high)
    areas = area_under_curve(scores.ious).mean(axis=1)
    low, high = (float(bound) for bound in clustered_bootstrap(areas, scores.photos))
    assert summary.auc_ci == pytest.approx((low, high))
    assert summary.auc_ci.low < summary.auc < summary.auc_ci.high
    assert summary.noc_ci[80].low < summary.noc[80] < summary.noc_ci[80].high


def test_standard_errors_are_over_objects():
    scores = random_scores()
    summary = summarise(scores)
    for percent in (80, 85, 90, 95):
        clicks = noc(scores.ious, percent / 100).mean(axis=1)
        assert summary.noc[percent] == pytest.approx(clicks.mean())
        assert summary.noc_se[percent] == pytest.approx(np.std(clicks, ddof=1) / 3)
    areas = area_under_curve(scores.ious).mean(axis=1)
    assert summary.auc_se == pytest.approx(np.std(areas, ddof=1) / 3)
    for spread, axis in ((summary.se_objects, 1), (summary.se_trials, 0)):
        means = scores.ious.mean(axis=axis)  # over trials, over objects
        expected = np.std(means, axis=0, ddof=1) / np.sqrt(len(means))
        assert spread == pytest.approx(expected.tolist())


def test_what_one_object_photograph_or_trial_cannot_tell_is_none():
    one = summarise(make_scores(IOUS[:1], SECONDS[:1], ("a",)))
    assert (one.se_objects, one.se_trials, one.ci_low, one.ci_high) == (None,) * 4
    assert (one.auc_se, one.auc_ci) == (None, None)
    assert set(one.noc_se.values()) == set(one.noc_ci.values()) == {None}
    assert one.next_seconds is None
    shared = summarise(make_scores(IOUS[:2], SECONDS[:2], ("a", "a")))
    assert shared.ci_low is None
    assert shared.auc_ci is None
    assert shared.auc_se > 0
    silent = summarise(make_scores(seconds=np.full(SECONDS.shape, NAN)))
    assert (silent.first_seconds, silent.next_seconds, silent.regressions) == (None,) * 3


def test_summary_does_not_depend_on_the_order_of_objects_and_trials():
    scores = random_scores()
    values = {name: array[::-1, ::-1] for name, array in scores.values.items()}
    other = Scores(values, scores.seconds[::-1, ::-1], scores.photos[::-1], scores.first)
    turned = summarise(other).as_json()
    assert json.loads(json.dumps(turned, allow_nan=False)).keys() == turned.keys()
    for name, value in summarise(scores).as_json().items():
        if isinstance(value, dict):
            assert list(turned[name]) == list(value), name
            turned[name], value = list(turned[name].values()), list(value.values())
        assert np.array(turned[name], float) == pytest.approx(
            np.array(value, float), nan_ok=True
        ), name


@each(
    ("name", "value"),
    [
        ("iou", IOUS * 100),
        ("iou", IOUS[0]),
        ("boundary_iou", IOUS[:, :, 1:]),
        ("brier", IOUS + 1),
        ("seconds", -SECONDS),
        ("photos", ("a", "b")),
        ("first", 4),
    ],
)
def test_what_are_no_scores_is_refused(name, value):
    good = make_scores()
    change = {"values": {**good.values, name: value}} if name in good.values else {name: value}
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(good, **change)
