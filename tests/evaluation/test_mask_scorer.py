from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from probseg.evaluation.scores import SCORES, MaskScorer
from probseg.metrics import (
    boundary_iou,
    brier_score,
    click_compliance,
    expected_calibration_error,
    iou,
)
from probseg.types import IGNORE, Click
from support.mask_cases import cases
from support.rows import each


def scored(answer):
    """Scores that an answer has, by name."""
    found = {name: score.measure(answer) for name, score in SCORES.items()}
    return {name: value for name, value in found.items() if value is not None}


@given(cases(largest=80), st.data())
def test_scorer_agrees_with_the_plain_functions(case, data):
    prediction, probability, mask = case
    height, width = mask.shape
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    crop = data.draw(st.sampled_from([None, (x0, y0, x1, y1)]))
    clicks = [Click(x0, y0, True), Click(x1 - 1, y1 - 1, False)]
    seen = np.s_[:, :] if crop is None else np.s_[y0:y1, x0:x1]
    assume({*mask[seen].flat} != {0, 255})  # which the plain functions refuse

    scores = MaskScorer(mask, crop)(prediction, probability, clicks)
    assert scores.iou == iou(prediction, mask)
    assert scores.boundary_iou == boundary_iou(prediction, mask)
    brier = brier_score(probability[seen], mask[seen])
    assert scores.brier == (None if brier is None else pytest.approx(brier, abs=6.6e-5))
    error = expected_calibration_error(probability[seen], mask[seen])
    assert scores.ece == (None if error is None else pytest.approx(error, abs=3.4e-5))
    assert scored(scores).get("compliance") == click_compliance(prediction, clicks)


def draw_maps(seed, shape=(120, 160)):
    """A smooth probability and a mask with ignored pixels."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[0], : shape[1]]
    logits = 6 * np.sin(x / random.uniform(9, 30)) + 6 * np.cos(y / random.uniform(9, 30))
    probability = (1 / (1 + np.exp(-logits))).astype(np.float32)
    mask = (random.random(shape) < probability).astype(np.uint8)
    mask[random.random(shape) < 0.05] = IGNORE
    return probability, mask


def test_threads_may_share_a_scorer_which_changes_no_argument():
    maps = [draw_maps(seed)[0] for seed in range(16)]
    before = [probability.copy() for probability in maps]
    scorer = MaskScorer(draw_maps(0)[1], crop=(10, 20, 150, 110))
    alone = [scored(scorer(p > 0.5, p)) for p in maps]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda p: scored(scorer(p > 0.5, p)), maps)) == alone
    np.testing.assert_array_equal(maps, before)


def test_without_answer_or_pixels_there_is_no_calibration():
    _, mask = draw_maps(2)
    nothing = scored(MaskScorer(mask)(np.zeros(mask.shape, dtype=bool), None))
    assert nothing == {"iou": 0, "boundary_iou": 0}
    mask = np.array([[1, 0, IGNORE]], dtype=np.uint8)
    scores = MaskScorer(mask, crop=(2, 0, 3, 1))(mask == 1, np.zeros(mask.shape, dtype=np.float32))
    assert scored(scores) == {"iou": 1, "boundary_iou": 1}


def test_scores_of_the_worst_prediction_are_within_their_range():
    mask = np.zeros((1, 4), dtype=np.uint8)
    worst = np.ones(mask.shape, dtype=np.float32)
    found = scored(MaskScorer(mask)(worst > 0.5, worst, [Click(0, 0, False)], before=worst > 0.5))
    assert found == {"iou": 0, "boundary_iou": 0, "brier": 1, "ece": 1, "compliance": 0, "jump": 0}


def test_a_jump_is_a_change_of_size_by_more_than_half():
    mask = np.ones((4, 25), dtype=np.uint8)
    scorer, ten = MaskScorer(mask), np.arange(100).reshape(4, 25) < 10
    for size, expected in ((5, 0), (4, 1), (10, 0), (15, 0), (16, 1), (0, 1)):
        after = np.arange(100).reshape(4, 25) < size
        assert SCORES["jump"].measure(scorer(after, None, before=ten)) == expected
    assert SCORES["jump"].measure(scorer(ten, None, before=ten & ~ten)) is None


@pytest.mark.parametrize("place", [(0, 0), (100, 100)])  # within the crop and outside
def test_nan_is_refused(place):
    probability, mask = draw_maps(3)
    probability[place] = np.nan
    with pytest.raises(ValueError, match="NaN at 1 of 19200 pixels"):
        MaskScorer(mask, crop=(0, 0, 50, 50))(mask == 1, probability)


@each(
    ("action", "message"),
    [
        (lambda mask, _: MaskScorer(mask.astype(np.int64)), "mask"),
        *(
            (lambda mask, _, crop=crop: MaskScorer(mask, crop), "crop")
            for crop in ((0, 0, 0, 5), (0, 0, 161, 5), (-1, 0, 5, 5), (5, 0, 4, 5))
        ),
        (lambda mask, probability: MaskScorer(mask)(probability, probability), "prediction"),
        (lambda mask, probability: MaskScorer(mask)(mask == 1, probability.T), "probability"),
        (lambda mask, p: scored(MaskScorer(mask)(mask == 1, p, [Click(160, 0)])), "clicks"),
    ],
)
def test_wrong_arguments_are_refused(action, message):
    probability, mask = draw_maps(4)
    with pytest.raises(ValueError, match=message):
        action(mask, probability)
