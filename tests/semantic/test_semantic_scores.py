"""Scores of a confusion matrix, against counts of pixels one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from probseg.semantic.scores import semantic_scores


def counted(truth, predicted, classes):
    """The matrix, and IoU and accuracy of each class from sets of pixels; None where undefined."""
    matrix = np.zeros((classes, classes), np.int64)
    for t, p in zip(truth, predicted, strict=True):
        matrix[t, p] += 1
    ious, accuracies = [], []
    for number in range(classes):
        true = {i for i, t in enumerate(truth) if t == number}
        said = {i for i, p in enumerate(predicted) if p == number}
        ious.append(len(true & said) / len(true | said) if true | said else None)
        accuracies.append(len(true & said) / len(true) if true else None)
    return matrix, ious, accuracies


def mean(values):
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


@given(
    pixels=arrays(np.int64, st.tuples(st.integers(1, 40), st.just(2)), elements=st.integers(0, 4))
)
def test_scores_are_those_of_the_sets_of_pixels(pixels):
    truth, predicted = pixels.T.tolist()
    matrix, ious, accuracies = counted(truth, predicted, classes=6)
    scores = semantic_scores(matrix)
    nan = [[np.nan if value is None else value for value in of] for of in (ious, accuracies)]
    np.testing.assert_allclose(scores.iou, nan[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(scores.accuracy, nan[1], rtol=0, atol=1e-12)
    assert scores.miou == pytest.approx(mean(ious), abs=1e-12)
    assert scores.mean_accuracy == pytest.approx(mean(accuracies), abs=1e-12)
    right = sum(t == p for t, p in zip(truth, predicted, strict=True))
    assert scores.pixel_accuracy == pytest.approx(right / len(truth), abs=1e-12)
    shares = [truth.count(number) / len(truth) for number in range(6)]
    np.testing.assert_allclose(scores.share, shares, rtol=0, atol=1e-12)
    assert np.isnan(scores.iou[5]), "a class that nobody knows is left out"


def test_without_any_pixel_nothing_is_known():
    scores = semantic_scores(np.zeros((3, 3), np.int64))
    assert np.isnan([*scores.iou, *scores.share, *scores[3:]]).all()


def test_a_matrix_has_two_equal_sides():
    with pytest.raises(ValueError, match=r"shape \(C, C\), got \(3, 2\)"):
        semantic_scores(np.zeros((3, 2), np.int64))
