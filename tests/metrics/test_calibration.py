import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.evaluation.scorer import MaskScorer
from probseg.metrics import brier_score, expected_calibration_error
from probseg.types import IGNORE
from support.mask_cases import cases
from support.refusals import refused


def counted_pixels(probability, mask):
    """All pairs of probability and truth of the pixels that are not ignored."""
    return [
        (float(p), int(y)) for p, y in zip(probability.flat, mask.flat, strict=True) if y != IGNORE
    ]


def slow_brier(probability, mask):
    pixels = counted_pixels(probability, mask)
    return sum((p - y) ** 2 for p, y in pixels) / len(pixels) if pixels else None


def slow_ece(probability, mask, bins):
    pixels = counted_pixels(probability, mask)
    error = 0.0
    for b in range(bins):
        members = [
            (p, y)
            for p, y in pixels
            if b <= np.float32(p) * np.float32(bins) < b + 1 or (p == 1 and b == bins - 1)
        ]
        if members:
            confidence = sum(p for p, _ in members) / len(members)
            share = sum(y for _, y in members) / len(members)
            error += len(members) / len(pixels) * abs(confidence - share)
    return error if pixels else None


@given(cases(), st.sampled_from([1, 2, 7, 15]))
def test_scores_are_those_of_their_definitions(case, bins):
    _, probability, mask = case
    assert brier_score(probability, mask) == pytest.approx(slow_brier(probability, mask))
    error = expected_calibration_error(probability, mask, bins)
    assert error == pytest.approx(slow_ece(probability, mask, bins), abs=1e-12)


@given(cases())
def test_ignored_pixels_do_not_count(case):
    _, probability, mask = case
    other = np.where(mask == IGNORE, 1 - probability, probability)
    assert brier_score(other, mask) == brier_score(probability, mask)
    assert expected_calibration_error(other, mask) == expected_calibration_error(probability, mask)


def test_scores_by_hand():
    mask = np.array([[1, 1, 0, 0, IGNORE]], dtype=np.uint8)
    probability = np.array([[1.0, 0.5, 0.5, 0.25, 0.9]], dtype=np.float32)
    assert brier_score(probability, mask) == (0 + 0.25 + 0.25 + 0.0625) / 4
    # of two bins, [0, 0.5) has one pixel, and [0.5, 1] three with mean 2/3 and two of the object
    assert expected_calibration_error(probability, mask, bins=2) == pytest.approx(0.25 / 4)
    assert expected_calibration_error(probability, mask, bins=1) == pytest.approx(0.0625)


def test_probabilities_at_the_edges_of_bins():
    mask = np.array([[0, 1, 1, 0]], dtype=np.uint8)
    for edge in range(1, 15):
        at = np.float32(edge / 15)
        below = np.nextafter(at, np.float32(0))
        probability = np.array([[at - 0.05, below, at, at + 0.05]], dtype=np.float32)
        error = expected_calibration_error(probability, mask)
        assert error == pytest.approx(slow_ece(probability, mask, 15), abs=1e-12)
        assert MaskScorer(mask)(mask == 1, probability).ece == pytest.approx(error, abs=3.4e-5)


def test_true_probabilities_are_calibrated_and_certainty_is_not():
    random = np.random.default_rng(0)
    probability = random.random((300, 300))
    mask = (random.random((300, 300)) < probability).astype(np.uint8)
    assert expected_calibration_error(probability, mask) < 0.01
    assert brier_score(probability, mask) == pytest.approx(1 / 6, abs=0.005)  # mean of p (1 - p)
    certain = (probability > 0.5).astype(np.float32)
    assert expected_calibration_error(certain, mask) == pytest.approx(0.25, abs=0.01)
    assert brier_score(certain, mask) > brier_score(probability, mask)


@pytest.mark.parametrize("score", [brier_score, expected_calibration_error])
def test_wrong_arguments_are_refused(score):
    mask = np.zeros((1, 2), dtype=np.uint8)
    assert score(np.zeros((1, 2)), mask + IGNORE) is None
    for values in ([[0.5, np.nan]], [[0.5, 1.5]], [[-0.5, 0.5]], [[0, 1]], [[0.5], [0.5]]):
        refused(ValueError, lambda values=values: score(np.array(values), mask), "probability")
    refused(ValueError, lambda: expected_calibration_error(mask / 2, mask, bins=0), "bins")
