import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probseg.clicks import CLICK_RULES
from probseg.clicks.annotators import clicked_pixels
from probseg.evaluation.scores import MaskScorer
from probseg.losses import BinaryCrossEntropy, NormalizedFocalLoss, SoftIoULoss, iou_cross_entropy
from probseg.metrics import (
    boundary_iou,
    brier_score,
    click_compliance,
    expected_calibration_error,
    iou,
)
from probseg.types import IGNORE, Click
from support.mask_cases import cases, readable
from support.refusals import refused

SHAPE = (5, 6)


@given(hnp.arrays(np.bool_, SHAPE), hnp.arrays(np.bool_, SHAPE), hnp.arrays(np.bool_, SHAPE))
def test_iou_is_that_of_the_pixels_that_count(prediction, truth, ignored):
    mask = np.where(ignored, IGNORE, truth).astype(np.uint8)
    assume(readable(mask))
    found, there = set(np.flatnonzero(prediction & ~ignored)), set(np.flatnonzero(mask == 1))
    expected = len(found & there) / len(found | there) if found | there else 1.0
    assert iou(prediction, mask) == expected
    assert iou(prediction ^ ignored, mask) == expected


HALF = np.repeat([[0, 1]], 2, axis=0).astype(np.uint8)
ODD = [(HALF * 255, "// 255"), (HALF * 7, "got 7"), (HALF * 0.5, "threshold")]


@pytest.mark.parametrize(("mask", "message"), ODD)
def test_masks_of_other_values_are_refused_by_all_that_read_masks(mask, message):
    prediction, probability = HALF == 1, HALF.astype(np.float32)
    batch, logits = torch.from_numpy(mask)[None], torch.zeros(1, 1, 2, 2)
    doors = [lambda s=score: s(prediction, mask) for score in (iou, boundary_iou)]
    scores = (brier_score, expected_calibration_error)
    doors += [lambda s=score: s(probability, mask) for score in scores]
    losses = (BinaryCrossEntropy(), NormalizedFocalLoss(), SoftIoULoss())
    doors += [lambda loss=loss: loss(logits, batch) for loss in losses]
    doors += [lambda: iou_cross_entropy(torch.zeros(1), logits, batch)]
    draws = np.random.default_rng(0)
    doors += [lambda rule=rule: rule(prediction, mask, [], draws) for rule in CLICK_RULES.values()]
    for door in doors:
        refused(ValueError, door, message)


def slow_region(inside, width):
    """Pixels of the object with a pixel outside it, or outside the image, within `width`."""
    height, breadth = inside.shape
    region = set()
    for y, x in zip(*np.nonzero(inside), strict=True):
        for v in range(y - width, y + width + 1):
            for u in range(x - width, x + width + 1):
                if not (0 <= v < height and 0 <= u < breadth) or not inside[v, u]:
                    region.add((y, x))
    return region


def slow_boundary_iou(prediction, mask, width):
    found = slow_region(prediction & (mask != IGNORE), width)
    truth = slow_region(mask == 1, width)
    return len(found & truth) / len(found | truth) if found | truth else 1.0


@given(cases(), st.sampled_from([0.001, 0.1, 0.17, 0.3, 2.0]))
def test_boundary_iou_is_that_of_its_definition(case, dilation):
    prediction, _, mask = case
    width = max(1, round(dilation * (mask.shape[0] ** 2 + mask.shape[1] ** 2) ** 0.5))
    assert boundary_iou(prediction, mask, dilation) == slow_boundary_iou(prediction, mask, width)


@given(cases())
def test_what_is_predicted_on_ignored_pixels_does_not_matter(case):
    prediction, _, mask = case
    assert boundary_iou(prediction ^ (mask == IGNORE), mask) == boundary_iou(prediction, mask)
    assert boundary_iou((mask == 1) | (mask == IGNORE), mask) == 1


def test_wrong_arguments_are_refused():
    mask = np.zeros((1, 2), dtype=np.uint8)
    for score in (iou, boundary_iou):
        for prediction in (np.zeros((1, 2)), np.zeros((2, 1), dtype=bool)):
            refused(ValueError, lambda s=score, p=prediction: s(p, mask), "prediction")
    for dilation in (0, -1, float("nan")):
        refused(ValueError, lambda d=dilation: boundary_iou(mask == 1, mask, d), "dilation")
    for score in (brier_score, expected_calibration_error):
        assert score(np.zeros((1, 2)), mask + IGNORE) is None
        for values in ([[0.5, np.nan]], [[0.5, 1.5]], [[-0.5, 0.5]], [[0, 1]], [[0.5], [0.5]]):
            refused(ValueError, lambda s=score, v=values: s(np.array(v), mask), "probability")
    refused(ValueError, lambda: expected_calibration_error(mask / 2, mask, bins=0), "bins")


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


def test_a_click_counts_at_the_pixel_that_it_lies_on():
    prediction = np.zeros((3, 4), np.bool_)
    prediction[2, 3] = True
    assert click_compliance(prediction, [Click(3.7, 2.9)]) == 1
    assert clicked_pixels([Click(3.7, 2.9)], (3, 4)) == [(3, 2)]


@pytest.mark.parametrize("score", [iou, boundary_iou, brier_score, expected_calibration_error])
def test_tensors_are_scored_as_arrays(score):
    mask = np.eye(9, dtype=np.uint8)
    given = np.linspace(0, 1, 81).reshape(9, 9)
    given = given > 0.5 if score in (iou, boundary_iou) else given
    assert score(torch.from_numpy(given), torch.from_numpy(mask)) == score(given, mask)


def test_probabilities_at_the_edges_of_bins():
    mask = np.array([[0, 1, 1, 0]], dtype=np.uint8)
    for edge in range(1, 15):
        at = np.float32(edge / 15)
        below = np.nextafter(at, np.float32(0))
        probability = np.array([[at - 0.05, below, at, at + 0.05]], dtype=np.float32)
        error = expected_calibration_error(probability, mask)
        assert error == pytest.approx(slow_ece(probability, mask, 15), abs=1e-12)
        assert MaskScorer(mask)(mask == 1, probability).ece == pytest.approx(error, abs=3.4e-5)
