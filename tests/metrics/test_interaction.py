import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torchmetrics import MetricCollection

from probseg.metrics import (
    ClickAUC,
    Failures,
    MeanIoUAtK,
    NumberOfClicks,
    area_under_curve,
    failures,
    median_noc,
    miou_at,
    noc,
    regressions,
    standard_error,
    survival,
)
from support.refusals import refused
from support.runs import in_two_processes

RUNS = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=3, max_dims=3, max_side=5),
    elements=st.sampled_from([0, 0.25, 0.5, 0.8, 1.0]) | st.floats(0, 1),
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


def test_standard_errors_are_the_textbook_ones():
    ious = np.random.default_rng(0).random((7, 5, 4))
    for k in range(4):
        by_object = [sum(ious[n, :, k]) / 5 for n in range(7)]
        by_trial = [sum(ious[:, t, k]) / 7 for t in range(5)]
        for values, spread in (
            (by_object, standard_error(ious.mean(axis=1))),
            (by_trial, standard_error(ious.mean(axis=0))),
        ):
            mean = sum(values) / len(values)
            variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
            assert spread[k] == pytest.approx(math.sqrt(variance / len(values)))
        assert miou_at(ious)[k] == pytest.approx(sum(by_trial) / 5)
    assert np.isnan(standard_error(IOUS.mean(axis=0))).all()
    assert np.isnan(standard_error(IOUS[:1].mean(axis=1))).all()


def slow_area(run, first):
    """The area of the polygon under the curve, one trapezium at a time."""
    pieces = [(run[k] + run[k + 1]) / 2 for k in range(first, len(run) - 1)]
    return sum(pieces) / len(pieces) if pieces else run[first]


@given(RUNS, st.integers(0, 3))
def test_area_under_curve_is_a_mean_along_the_clicks(ious, first):
    first = min(first, ious.shape[2] - 1)
    areas = area_under_curve(ious, first)
    for area, run in zip(areas.flat, ious.reshape(-1, ious.shape[2]), strict=True):
        assert area == pytest.approx(slow_area(run, first))
    assert area_under_curve(np.full((2, 3, 4), 0.7), first) == pytest.approx(0.7)


@given(RUNS, st.sampled_from([0.25, 0.5, 0.8, 1.0]))
def test_clicks_and_their_distribution_are_those_of_a_loop(ious, threshold):
    last = ious.shape[2] - 1
    needed = []  # None: never
    for run in ious.reshape(-1, last + 1).tolist():
        needed.append(next((k for k, iou in enumerate(run) if iou >= threshold), None))
    capped = [last if k is None else k for k in needed]
    assert noc(ious, threshold).ravel().tolist() == capped
    assert failures(ious, threshold) == (capped.count(last), needed.count(None))
    alive = [sum(k is None or k > clicks for k in needed) for clicks in range(last + 1)]
    assert survival(ious, threshold) == pytest.approx([n / len(needed) for n in alive])
    middle = sorted(last + 1 if k is None else k for k in needed)[(len(needed) - 1) // 2]
    assert median_noc(ious, threshold) == (None if middle > last else middle)


def test_regressions_are_clicks_that_do_harm():
    ious = np.array([[[0.0, 0.5, 0.4, 0.4], [0.8, 0.5, 0.9, 0.9]]])
    given = np.array([[[False, True, True, True], [True, True, True, False]]])
    share, size = regressions(ious, given)
    assert share == 2 / 5  # the last entry of the second run repeats what was
    assert size == pytest.approx((0.1 + 0.3) / 2)
    assert regressions(ious, given & False) == (None, None)
    assert regressions(np.sort(ious, axis=2), given) == (0, None)


SCORES = (
    miou_at,
    area_under_curve,
    lambda ious: noc(ious, 0.9),
    lambda ious: failures(ious, 0.9),
    lambda ious: survival(ious, 0.9),
    lambda ious: median_noc(ious, 0.9),
    lambda ious: regressions(ious, np.ones(np.shape(ious), dtype=bool)),
)


def test_wrong_arguments_are_refused():
    for score in SCORES:
        for ious in (np.zeros((2, 3)), np.zeros((0, 1, 4)), np.full((1, 1, 2), 90.0), [[[np.nan]]]):
            refused(ValueError, lambda score=score, ious=ious: score(ious), "ious")
    for first in (-1, 4):
        refused(ValueError, lambda first=first: area_under_curve(IOUS, first), "`first`", "0 ... 3")
    for score in (noc, failures, survival, median_noc):
        for threshold in (0, 90):
            refused(ValueError, lambda s=score, t=threshold: s(IOUS, t), "threshold")


RUNS_ACCUMULATED = np.random.default_rng(0).uniform(size=(7, 3, 5))
RUNS_ACCUMULATED[0, 0, 2] = 0.9  # exactly there


def collection():
    return MetricCollection([NumberOfClicks(), MeanIoUAtK(3), ClickAUC(1)], compute_groups=False)


def expected(runs):
    values = {
        "noc@90": noc(runs, 0.9).mean(axis=1),
        "miou@3": runs.mean(axis=1)[:, 3],
        "auc": area_under_curve(runs, 1).mean(axis=1),
    }
    figures = {name: value.mean() for name, value in values.items()}
    figures |= {f"{name}_se": float(standard_error(value)) for name, value in values.items()}
    return {name: torch.tensor(figure, dtype=torch.float32) for name, figure in figures.items()}


def test_figures_over_batches_and_merged_states_are_those_of_all_objects():
    first, second = collection(), collection()
    first.update(torch.from_numpy(RUNS_ACCUMULATED[:2]))
    first.update(RUNS_ACCUMULATED[2:3])
    second.update(torch.from_numpy(RUNS_ACCUMULATED[3:]))
    for name, metric in first.items():
        metric.merge_state(second[name])
    torch.testing.assert_close(dict(first.compute()), expected(RUNS_ACCUMULATED))
    first.reset()
    first.update(RUNS_ACCUMULATED[:4, 0])
    torch.testing.assert_close(dict(first.compute()), expected(RUNS_ACCUMULATED[:4, :1]))


def test_objects_of_one_number_count_once_in_any_order():
    metrics, order = collection(), [4, 0, 6, 3, 0, 5, 2, 1, 4]
    for index in order:
        metrics.update(RUNS_ACCUMULATED[index : index + 1], index=torch.tensor([index]))
    assert dict(metrics.compute()) == expected(RUNS_ACCUMULATED)
    metrics.update(RUNS_ACCUMULATED[:1])
    refused(ValueError, metrics.compute, "`index`", "10 objects", "(9,)")


def test_what_no_figure_can_be_made_of_is_refused_at_once():
    for metric in (NumberOfClicks(90), MeanIoUAtK(5), ClickAUC(5)):
        refused(ValueError, lambda m=metric: m.update(RUNS_ACCUMULATED), "must be", "got")
    refused(ValueError, lambda: MeanIoUAtK(1.5), "clicks", "integer")
    metric = NumberOfClicks()
    metric.update(RUNS_ACCUMULATED)
    refused(ValueError, lambda: metric.update(RUNS_ACCUMULATED[..., :4]), "update", "(7, 3, 4)")
    assert metric.compute()["noc@90"] == np.float32(noc(RUNS_ACCUMULATED, 0.9).mean())


def score_in_a_process(rank, shares):
    """Score this process's share of the runs; return the figures, or the refusal."""
    warnings.simplefilter("ignore", UserWarning)  # that nothing was added here
    metrics, mine = collection(), range(sum(shares[:rank]), sum(shares[: rank + 1]))
    for number in mine:
        metrics.update(RUNS_ACCUMULATED[number : number + 1], index=[number])
    try:
        return {name: float(figure) for name, figure in metrics.compute().items()}
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("shares", [(7, 0), (0, 7), (3, 4), (0, 0)])
def test_processes_of_which_some_have_no_object_find_the_same(shares, tmp_path):
    found = in_two_processes(tmp_path, score_in_a_process, shares)
    assert found[0] == found[1]
    if sum(shares):
        figures = {name: float(figure) for name, figure in expected(RUNS_ACCUMULATED).items()}
        assert found[0] == pytest.approx(figures)
    else:
        assert "object" in found[0]


def test_masks_are_scored():
    truth = torch.zeros(2, 4, 4, dtype=torch.uint8)
    truth[:, :2] = 1
    answers = torch.stack([truth == 0, truth == 2, truth == 1], dim=1)  # IoU 0, 0 and 1
    metric = NumberOfClicks(0.5)
    metric.update(answers, truth)
    assert metric.compute()["noc@50"] == 2
    refused(ValueError, lambda: metric.update(answers, truth * 255), "// 255")
    refused(ValueError, lambda: metric.update(RUNS_ACCUMULATED * 100), "percent")
