import math

import numpy as np
import pytest

from probseg.metrics import (
    Failures,
    failures,
    miou_at,
    noc,
    standard_error_objects,
    standard_error_trials,
    summarise,
)

# four objects, one trial, K = 3 clicks after a first prediction
IOUS = np.array(
    [
        [[0.95, 0.5, 0.5, 0.5]],  # there before any click
        [[0.0, 0.7, 0.92, 0.93]],  # after two clicks
        [[0.0, 0.1, 0.2, 0.9]],  # exactly at the last one, and exactly 0.9
        [[0.0, 0.1, 0.2, 0.89]],  # never
    ]
)


def test_number_of_clicks_and_failures_by_hand():
    assert noc(IOUS, 0.9).tolist() == [[0], [2], [3], [3]]
    assert noc(IOUS, 0.7).tolist() == [[0], [1], [3], [3]]
    assert failures(IOUS, 0.9) == Failures(at_cap=2, never=1)
    assert failures(IOUS, 0.7) == Failures(at_cap=2, never=0)


def test_ious_that_are_exact_ratios_reach_their_percent():
    for percent in (80, 85, 90):
        run = np.array([[[0.0, percent / 100]]])
        assert failures(run, percent / 100).never == 0


def test_standard_errors_are_the_textbook_ones():
    ious = np.random.default_rng(0).random((7, 5, 4))
    for k in range(4):
        by_object = [sum(ious[n, :, k]) / 5 for n in range(7)]
        by_trial = [sum(ious[:, t, k]) / 7 for t in range(5)]
        for values, spread in (
            (by_object, standard_error_objects(ious)),
            (by_trial, standard_error_trials(ious)),
        ):
            mean = sum(values) / len(values)
            variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
            assert spread[k] == pytest.approx(math.sqrt(variance / len(values)))
        assert miou_at(ious)[k] == pytest.approx(sum(by_trial) / 5)


def test_standard_errors_see_only_their_own_noise():
    objects_differ = np.broadcast_to(np.array([0.2, 0.4, 0.9])[:, None, None], (3, 4, 2))
    assert standard_error_trials(objects_differ) == pytest.approx(0)
    assert (standard_error_objects(objects_differ) > 0.1).all()
    trials_differ = objects_differ.swapaxes(0, 1)
    assert standard_error_objects(trials_differ) == pytest.approx(0)
    assert (standard_error_trials(trials_differ) > 0.1).all()


def test_standard_error_of_one_is_unknown():
    assert np.isnan(standard_error_trials(IOUS)).all()
    assert np.isnan(standard_error_objects(IOUS[:1])).all()
    assert summarise(IOUS).se_trials is None
    assert summarise(IOUS[:1]).se_objects is None


def test_summary_by_hand():
    summary = summarise(IOUS, percents=(70, 90))
    assert (summary.n_objects, summary.n_trials, summary.max_clicks) == (4, 1, 3)
    assert summary.miou == pytest.approx([0.2375, 0.35, 0.455, 0.805])
    assert summary.noc == {70: 7 / 4, 90: 2.0}
    assert summary.failures_at_cap == {70: 2, 90: 2}
    assert summary.failures_never == {70: 0, 90: 1}


def test_summary_does_not_depend_on_the_order_of_objects_and_trials():
    ious = np.random.default_rng(1).random((6, 3, 5))
    turned = summarise(ious[::-1, ::-1])
    assert turned.noc == summarise(ious).noc
    assert turned.miou == pytest.approx(summarise(ious).miou)


@pytest.mark.parametrize(
    "ious", [np.zeros((2, 3)), np.zeros((0, 1, 4)), np.full((1, 1, 2), 90.0), [[[np.nan]]]]
)
def test_what_is_no_iou_is_refused(ious):
    with pytest.raises(ValueError, match="ious"):
        summarise(ious)


@pytest.mark.parametrize("threshold", [0, 90])
def test_threshold_is_a_fraction(threshold):
    with pytest.raises(ValueError, match="threshold"):
        noc(IOUS, threshold)
