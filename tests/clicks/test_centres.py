import cv2
import numpy as np
import pytest
from scipy import ndimage

from probseg.clicks.centres import HIGH, LOW, deepest


@pytest.mark.parametrize("with_ipp", [False, True])
def test_chamfer_distances_are_as_close_as_the_search_assumes(with_ipp):
    used = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(with_ipp)
    away = np.ones((401, 601), dtype=np.uint8)
    away[90, 120] = 0
    chamfer = cv2.distanceTransform(away, cv2.DIST_L2, cv2.DIST_MASK_5)
    cv2.ipp.setUseIPP(used)
    exact = ndimage.distance_transform_edt(away)
    ratio = chamfer[away == 1] / exact[away == 1]
    assert LOW < ratio.min() < 0.985  # tight, too: the windows stay small
    assert HIGH > ratio.max() > 1.015


def disks(shape, centres, radius):
    y, x = np.ogrid[: shape[0], : shape[1]]
    return np.any([(y - v) ** 2 + (x - u) ** 2 <= radius**2 for u, v in centres], axis=0)


def test_equally_deep_pixels_far_apart_are_told_apart():
    centres = [(u, v) for v in (20, 60, 140) for u in (170, 20, 90)]
    first, second = disks((160, 200), centres, 15), disks((160, 200), [(100, 100)], 15)
    assert deepest([second], [])[1] == (100, 100, 226)
    assert deepest([first, second], []) == (0, (20, 20, 226))
    assert deepest([second, first], []) == (0, (100, 100, 226))
    assert deepest([first], [(20, 20), (90, 20)]) == (0, (170, 20, 226))
    deeper = disks((160, 200), [(180, 140)], 16)
    assert deepest([first, deeper], [])[0] == 1


def test_pixels_that_are_taken_do_not_make_an_error_shallower():
    square = np.zeros((11, 11), dtype=bool)
    square[1:10, 1:10] = True
    assert deepest([square], [(5, 5), (40, -3)]) == (0, (4, 4, 16))  # 4 and not 1 away
