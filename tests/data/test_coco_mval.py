"""COCO_MVal: objects named after their photograph in COCO."""

import numpy as np
import pytest
from drawn_sets import write_coco_mval
from fakes import draw_scene, save
from refusals import refused

from probseg.data import DATASETS, COCOMVal
from probseg.errors import DataError


@pytest.fixture
def root(tmp_path):
    return write_coco_mval(tmp_path / "COCO_MVal")


def test_objects_and_their_photographs(root):
    data = COCOMVal(root)
    assert DATASETS["COCO_MVal"] is COCOMVal
    assert [(s.name, s.photo) for s in data] == [
        ("bear10_000000000285", "000000000285"),
        ("bicycle01_000000000139", "000000000139"),
        ("dining_table04_000000000139", "000000000139"),
    ]
    assert {s.dataset for s in data} == {"COCO_MVal"}
    for sample, seed, number in zip(data, (285, 139, 139), (1, 1, 2), strict=True):
        assert sample.mask.dtype == np.uint8
        np.testing.assert_array_equal(sample.mask, draw_scene(48, 64, 2, seed)[1] == number)


def test_stray_values(root):
    mask = np.zeros((48, 64), np.uint8)
    mask[5:9, 5:9] = 255
    mask[0, :3] = (1, 128, 129)
    save(mask, root / "gt" / "bear10_000000000285.png")
    np.testing.assert_array_equal(COCOMVal(root)[0].mask, mask > 128)


def test_upper_case_suffixes(root):
    path = root / "img" / "bear10_000000000285.jpg"
    path.rename(path.with_suffix(".JPG"))
    assert COCOMVal(root)[0].image.shape == (48, 64, 3)


@pytest.mark.parametrize("name", ["bear10", "bear10_00000000028", "bear10_0000000002\uff18\uff15"])
def test_names_without_number(root, name):
    (root / "gt" / "bear10_000000000285.png").rename(root / "gt" / f"{name}.png")
    (root / "img" / "bear10_000000000285.jpg").rename(root / "img" / f"{name}.jpg")
    refused(DataError, lambda: COCOMVal(root), f"{name}.jpg", "twelve digits", "ImageMaskFolder")
