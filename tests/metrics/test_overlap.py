import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from probseg.metrics import iou
from probseg.types import IGNORE

SHAPE = (5, 6)


@given(hnp.arrays(np.bool_, SHAPE), hnp.arrays(np.bool_, SHAPE), hnp.arrays(np.bool_, SHAPE))
def test_iou_is_that_of_the_pixels_that_count(prediction, truth, ignored):
    mask = np.where(ignored, IGNORE, truth).astype(np.uint8)
    found, there = set(np.flatnonzero(prediction & ~ignored)), set(np.flatnonzero(mask == 1))
    expected = len(found & there) / len(found | there) if found | there else 1.0
    assert iou(prediction, mask) == expected
    assert iou(prediction ^ ignored, mask) == expected


@pytest.mark.parametrize("prediction", [np.zeros(SHAPE), np.zeros((6, 5), dtype=bool)])
def test_wrong_predictions_are_refused(prediction):
    with pytest.raises(ValueError, match="prediction"):
        iou(prediction, np.zeros(SHAPE, dtype=np.uint8))
