import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.metrics import boundary_iou
from probseg.metrics.boundary import boundary_width
from probseg.types import IGNORE
from support.mask_cases import cases


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


def test_width_is_a_fraction_of_the_diagonal():
    assert boundary_width((300, 400)) == 10
    assert boundary_width((300, 400), 0.1) == 50
    assert boundary_width((3, 4)) == 1


def test_wrong_arguments_are_refused():
    mask = np.zeros((5, 6), dtype=np.uint8)
    for prediction in (np.zeros((5, 6)), np.zeros((6, 5), dtype=bool)):
        with pytest.raises(ValueError, match="prediction"):
            boundary_iou(prediction, mask)
    for dilation in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="dilation"):
            boundary_iou(mask == 1, mask, dilation)
