"""Lines along wrong regions, and objects painted along them."""

from types import SimpleNamespace

import numpy as np
import pytest
from snapping import STROKES, Way, middle, next_line, painted

from probseg.interact import begin, image_tensor
from probseg.interact.session import Session
from probseg.interact.steps import MaskStep
from probseg.metrics import iou
from probseg.types import Sample


def test_the_middle_of_a_bar():
    points, half_width = middle(np.ones((11, 40), np.bool_))
    assert half_width == 5.5
    assert np.median(points[:, 1]) == 5.5
    np.testing.assert_allclose(points[:, 1], 5.5, atol=3)  # ends turn to a corner
    columns = sorted(points[:, 0])
    assert columns[0] < 11
    assert columns[-1] > 29
    assert np.diff(columns).max() == 1


def test_narrow_parts_of_a_region_have_no_line():
    region = np.zeros((21, 60), np.bool_)
    region[:, :21] = True
    region[10:13, 21:] = True
    points, half_width = middle(region)
    assert points[:, 0].max() < 25
    assert half_width > 5


@pytest.mark.parametrize("positive", [True, False])
def test_the_line_of_the_largest_region_that_is_wide_enough(positive):
    mask, truth = np.zeros((60, 80), np.bool_), np.zeros((60, 80), np.uint8)
    truth[5:55, 5:75] = 1
    mask[5:55, 5:75] = True
    mask[10:19, 10:40] = False  # a missed bar
    mask[5:55, 73:75] = mask[53:55, 5:75] = mask[5:55, 5:7] = False  # more pixels, but narrow
    truth[30:39, 10:30] = 0  # a smaller bar of false alarm
    assert np.count_nonzero(~mask[5:55, 5:75]) - 270 > 270
    if not positive:
        mask, truth = ~mask, 1 - truth
    line = next_line(mask, truth)
    assert line.positive is positive
    assert line.half_width == 4.5
    assert np.median(line.points[:, 1]) == 14.5
    assert 10 < line.points[:, 0].min() < 20
    assert 30 < line.points[:, 0].max() < 40


def test_no_line_without_a_wide_region():
    truth = np.zeros((40, 40), np.uint8)
    truth[10:30, 10:30] = 1
    mask = truth == 1
    mask[10, 10:30] = False
    assert next_line(mask, truth) is None


@pytest.mark.parametrize(("factor", "harms"), [(1.0, False), (3.0, True)])
def test_a_snapped_stroke_of_a_wide_brush_leaves_what_is_right(factor, harms):
    truth = np.zeros((48, 64), np.uint8)
    truth[8:40, 8:56] = 1
    answer = np.where(truth == 1, 0.9, 0.02).astype(np.float32)
    answer[8:17, 12:52] = 0.2  # missed, at the contour
    sample = Sample(np.full((48, 64, 3), 128, np.uint8), truth, "drawn", "drawn")
    ious = {}
    for snaps in (False, True):
        session = Session(SimpleNamespace(answer=list), begin(image_tensor(sample.image)))
        session.add(MaskStep(answer))
        assert iou(session.answer.state.probability > 0.5, truth) < 0.8
        ious[snaps] = painted(session, sample, Way(factor, 0, snaps), seed=0)
        assert ious[snaps].shape == (max(STROKES),)
    assert ious[True][0] > 0.95
    assert bool(ious[False][0] < 0.9) is harms
