"""DAVIS-585: objects one by one, and masks to correct."""

import shutil

import numpy as np
import pytest
from drawn_sets import write_davis585
from fakes import draw_scene, save
from refusals import refused

from probseg.data import DATASETS, DAVIS585
from probseg.errors import DataError, UnknownNameError


@pytest.fixture
def root(tmp_path):
    return write_davis585(tmp_path / "DAVIS585")


def test_each_object_of_a_frame(root):
    data = DAVIS585(root)
    assert DATASETS[DAVIS585.name] is DAVIS585
    assert len(data) == 4
    assert {s.dataset for s in data} == {"DAVIS585"}
    assert [(s.photo, s.name) for s in data] == [
        ("bear", "bear/object1_00009"),  # frames of a video are not independent
        ("bear", "bear/object2_00009"),
        ("bear", "bear/object1_00018"),
        ("camel", "camel/object1_00000"),
    ]
    scenes = [(2, 1), (2, 1), (1, 0), (1, 2)]
    for sample, (objects, seed), number in zip(data, scenes, (1, 2, 1, 1), strict=True):
        assert sample.mask.dtype == np.uint8
        np.testing.assert_array_equal(sample.mask, draw_scene(48, 64, objects, seed)[1] == number)
        assert sample.initial is None
    np.testing.assert_array_equal(data[0].image, data[1].image)


@pytest.mark.parametrize(("initial", "axis"), [("stm", 1), ("sp", 0)])
def test_initial_masks(root, initial, axis):
    data = DAVIS585(root, initial)
    assert data.name == f"DAVIS585_{initial}"
    for sample in data:
        assert sample.dataset == data.name
        assert sample.initial.dtype == np.bool_
        np.testing.assert_array_equal(sample.initial, np.roll(sample.mask == 1, 3, axis=axis))


def test_the_tenth_object_comes_after_the_second(root):
    files = ("object{}_00009.png", "init_stm_object{}_00009.png")
    for file in files:
        shutil.copy(root / "bear" / file.format(1), root / "bear" / file.format(10))
    names = [s.name for s in DAVIS585(root, "stm") if s.name.endswith("_00009")]
    assert names == [f"bear/object{i}_00009" for i in (1, 2, 10)]


def test_values_above_128_are_the_object(root):
    mask = np.full((48, 64), 128, np.uint8)
    mask[3:6, 4:9] = 129
    save(mask, root / "camel" / "object1_00000.png")
    save(np.repeat(mask[..., None], 3, axis=2), root / "camel" / "init_sp_object1_00000.png")
    sample = DAVIS585(root, "sp")[3]
    assert sample.mask.sum() == sample.initial.sum() == 15
    assert (sample.mask[3:6, 4:9] == 1).all()


def test_suffixes_and_files_that_play_no_part(root):
    (root / "bear" / "00018.jpg").rename(root / "bear" / "00018.JPG")
    save(draw_scene()[0], root / "bear" / "00027.jpg")  # a frame without masks
    (root / ".DS_Store").write_bytes(b"?")
    (root / ".cache").mkdir()
    (root / "bear" / "._00009.jpg").write_bytes(b"?")
    assert len(DAVIS585(root, "sp")) == 4


def test_missing_files(root):
    (root / "bear" / "init_sp_object1_00018.png").unlink()
    assert len(DAVIS585(root)) == len(DAVIS585(root, "stm")) == 4
    refused(
        DataError, lambda: DAVIS585(root, "sp"),
        root / "bear", "['init_sp_object1_00018'] (1 in all)", "unpack",
    )  # fmt: skip
    (root / "bear" / "00009.jpg").unlink()
    refused(DataError, lambda: DAVIS585(root), root / "bear", "['00009'] (1 in all)", "unpack")


def test_unknown_initial_masks(root):
    refused(UnknownNameError, lambda: DAVIS585(root, "zero"), "initial masks", "'zero'", "stm")


@pytest.mark.parametrize("file", ["object1_00000.png", "init_stm_object1_00000.png"])
def test_masks_that_cannot_be_used(root, file):
    path = save(draw_scene()[1], root / "camel" / file)  # 0 and 1
    refused(DataError, lambda: DAVIS585(root, "stm")[3], path, "255", "up to 1;")
    save(draw_scene(9, 9)[1] * 255, path)
    refused(DataError, lambda: DAVIS585(root, "stm")[3], path, "9 x 9", "00000.jpg", "64 x 48")
