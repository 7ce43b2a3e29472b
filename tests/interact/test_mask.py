"""Leaving the predictor: masks as files, run lengths, outlines and cut-outs."""

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from probseg.formats import polygons
from probseg.interact.predictor import Mask

IMAGE = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)


@pytest.fixture
def mask():
    probability = np.full((9, 13), 0.2, dtype=np.float32)
    probability[2:7, 3:9] = 0.9
    probability[4, 5] = 0.5  # not more likely than not: a hole
    probability[8, 11] = 0.6
    return Mask(probability)


def test_save(mask, tmp_path):
    mask.save(tmp_path / "new" / "mask.png")
    saved = np.asarray(Image.open(tmp_path / "new" / "mask.png"))
    np.testing.assert_array_equal(saved, np.where(mask.binary, 255, 0))
    with pytest.raises(ValueError, match="path"):
        mask.save(str(tmp_path / "mask.jpg"))


def test_rle_and_polygons(mask):
    np.testing.assert_array_equal(coco_mask.decode(mask.rle), mask.binary)
    large, small = sorted(mask.polygons(), key=lambda polygon: -len(polygon.holes))
    assert (len(large.holes), len(small.holes)) == (1, 0)
    np.testing.assert_array_equal(polygons.fill([large, small], (9, 13)), mask.binary)


def test_crop(mask):
    part, box = mask.crop(IMAGE)
    assert box == (3, 2, 12, 9)
    assert (part.shape, part.dtype) == ((7, 9, 4), np.uint8)
    np.testing.assert_array_equal(part[..., :3], IMAGE[2:9, 3:12])
    np.testing.assert_array_equal(part[..., 3] == 255, mask.binary[2:9, 3:12])
    with pytest.raises(ValueError, match="image"):
        mask.crop(IMAGE[1:])
    with pytest.raises(ValueError, match="mask is empty"):
        Mask(np.zeros((9, 13), np.float32)).crop(IMAGE)
