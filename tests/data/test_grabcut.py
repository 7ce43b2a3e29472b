"""The GrabCut test set."""

import shutil

import numpy as np
import pytest
from fakes import draw_scene, save, with_band, write_grabcut
from refusals import refused

from probseg.data import GrabCut
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError


def test_all_suffixes_of_the_archive_are_read(tmp_path):
    data = GrabCut(write_grabcut(tmp_path))
    assert len(data) == 3
    assert [data[i].name for i in range(3)] == ["Cross", "banana", "llama"]
    assert {data[i].dataset for i in range(3)} == {"GrabCut"}
    np.testing.assert_array_equal(data[2].image, draw_scene(seed=2)[0])  # .bmp is lossless


def test_255_is_object_and_128_ignored(tmp_path):
    mask = GrabCut(write_grabcut(tmp_path))[1].mask
    stored = with_band(draw_scene(seed=0)[1], 128)
    assert set(np.unique(stored)) == {0, 128, 255}
    for value, meaning in ((0, 0), (128, 255), (255, 1)):
        assert (mask[stored == value] == meaning).all()


def test_masks_without_band(tmp_path):
    np.testing.assert_array_equal(GrabCut(write_grabcut(tmp_path))[2].mask, draw_scene(seed=2)[1])


@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (draw_scene()[1], "[0, 1]"),
        (np.zeros((48, 64), np.uint8), "[0]"),
        (draw_scene()[0][..., 0], ", ...]"),
        (with_band(draw_scene()[1], 64), "[0, 64, 255]"),
    ],
)
def test_masks_of_another_convention(tmp_path, mask, got):
    write_grabcut(tmp_path)
    path = save(mask, tmp_path / "boundary_GT" / "llama.bmp")
    parts = got.split(", ...]")
    refused(
        DataError, lambda: GrabCut(tmp_path)[2],
        path, "0 (background)", "128 (ignored)", "255 (object)", *parts, "ImageMaskFolder",
    )  # fmt: skip


def test_real_photographs(data_root):
    if not (data_root / "grabcut" / "data_GT").is_dir():
        pytest.skip(f"no grabcut/ in {data_root}")
    data = GrabCut(data_root / "grabcut")
    assert len(data) == 50
    banded = 0
    for i in range(50):
        sample = data[i]
        assert sample.image.shape[:2] == sample.mask.shape
        assert (sample.mask == 1).any()
        banded += bool((sample.mask == 255).any())
    assert banded == 42  # the other eight have no band


# --- scribbles ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("scribbles", "pixels"), [("set1", 5), ("set2", 15)])
def test_scribbles(tmp_path, scribbles, pixels):
    data = GrabCut(write_grabcut(tmp_path), scribbles)
    for i, seed in enumerate((1, 0, 2)):  # Cross, banana, llama
        strokes = data[i].scribbles
        assert strokes.dtype == np.uint8
        assert strokes.shape == data[i].mask.shape
        assert (strokes[0] == 0).all()
        assert np.isin(strokes[1:], (1, 255)).all()
        assert (strokes == 1).sum() == pixels
        assert (draw_scene(seed=seed)[1][strokes == 1] == 1).all()


def test_without_scribbles(tmp_path):
    root = write_grabcut(tmp_path)
    shutil.rmtree(root / "scribbles_set1")
    assert all(sample.scribbles is None for sample in GrabCut(root))


@pytest.mark.parametrize("scribbles", ["set1", "set2"])
def test_missing_scribbles(tmp_path, scribbles):
    root = write_grabcut(tmp_path)
    (root / f"scribbles_{scribbles}" / "banana.png").unlink()
    refused(
        DataError, lambda: GrabCut(root, scribbles),
        root / f"scribbles_{scribbles}", "no scribble", "banana", "add",
    )  # fmt: skip
    shutil.rmtree(root / f"scribbles_{scribbles}")
    refused(
        DatasetNotFoundError, lambda: GrabCut(root, scribbles),
        "GrabCut", root, f"scribbles_{scribbles}/<id>.png", f"scribbles-set-{scribbles[-1]}",
        "dataset-interactive-algorithms", "124084", "`scribbles`",
    )  # fmt: skip


def test_unknown_scribbles(tmp_path):
    root = write_grabcut(tmp_path)
    refused(UnknownNameError, lambda: GrabCut(root, "set3"), "scribbles", "'set3'", "set1", "set2")


@pytest.mark.parametrize(
    ("strokes", "got"),
    [
        (np.zeros((48, 64), np.uint8), "[0]"),
        (draw_scene()[1], "[0, 1]"),
        (draw_scene()[0][..., 0], ", ...;"),
    ],
)
def test_scribbles_of_another_convention(tmp_path, strokes, got):
    root = write_grabcut(tmp_path)
    path = save(strokes, root / "scribbles_set1" / "llama.png")
    refused(
        DataError, lambda: GrabCut(root, "set1")[2],
        path, "255 (on the object)", "128 (on the background)", "0 (no stroke)", got, "replace",
    )  # fmt: skip


def test_scribbles_of_another_size(tmp_path):
    root = write_grabcut(tmp_path)
    path = save(draw_scene(9, 9)[1] * 255, root / "scribbles_set1" / "llama.png")
    refused(DataError, lambda: GrabCut(root, "set1")[2], path, "9 x 9", "llama.bmp", "64 x 48")


@pytest.mark.parametrize(("scribbles", "strays"), [("set1", 0), ("set2", 3)])
def test_real_scribbles(data_root, scribbles, strays):
    if not (data_root / "grabcut" / f"scribbles_{scribbles}").is_dir():
        pytest.skip(f"no grabcut/ with scribbles in {data_root}")
    data = GrabCut(data_root / "grabcut", scribbles)
    assert len(data) == 50
    leaving = 0
    for sample in data:
        assert sample.scribbles.shape == sample.mask.shape
        assert (sample.scribbles == 1).any()
        assert (sample.scribbles == 0).any()
        assert (sample.mask[sample.scribbles == 0] == 1).mean() < 0.01, sample.name
        leaving += (sample.mask[sample.scribbles == 1] == 0).mean() > 0.02
    assert leaving == strays  # the strokes of three photographs leave the object
