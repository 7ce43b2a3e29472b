"""The Berkeley test set."""

import shutil

import numpy as np
import pytest
from fakes import draw_scene, save, write_berkeley

from probseg.data import DATASETS, Berkeley
from probseg.errors import DataError, DatasetNotFoundError


@pytest.fixture
def root(tmp_path):
    return write_berkeley(tmp_path / "Berkeley")


def refused(error, action, *parts):
    with pytest.raises(error) as caught:
        action()
    for part in parts:
        assert str(part) in str(caught.value)


def test_each_mask_is_an_object(root):
    data = Berkeley(root)
    assert DATASETS["Berkeley"] is Berkeley
    assert len(data) == 3
    assert [data[i].name for i in range(3)] == ["189011", "189011a", "8023"]
    assert {data[i].dataset for i in range(3)} == {"Berkeley"}
    labels = draw_scene(objects=2, seed=1)[1]
    for i in range(2):
        assert data[i].mask.dtype == np.uint8
        np.testing.assert_array_equal(data[i].mask, labels == i + 1)
    np.testing.assert_array_equal(data[0].image, data[1].image)


def test_above_128_is_object_and_128_is_ignored(root):
    expected = draw_scene(seed=0)[1]
    expected[0, 1] = 255  # 10 beside it is background
    np.testing.assert_array_equal(Berkeley(root)[2].mask, expected)


@pytest.mark.parametrize("second", ["189011a", "189011#2"])
def test_a_photograph_may_be_there_once(root, second):
    (root / "images" / "189011a.jpg").unlink()
    (root / "masks" / "189011a.png").rename(root / "masks" / f"{second}.png")
    data = Berkeley(root)
    assert {image.name for image, mask in data.pairs if "189011" in mask.name} == {"189011.jpg"}
    assert {data[i].name for i in range(3)} == {"189011", second, "8023"}


def test_grey_and_slightly_coloured_masks(root):
    labels = draw_scene(seed=0)[1]
    save(labels * 255, root / "masks" / "8023.png")
    np.testing.assert_array_equal(Berkeley(root)[2].mask, labels)
    colours = np.repeat(labels[..., None] * 255, 3, axis=2)
    colours[labels > 0] = (255, 197, 243)
    save(colours, root / "masks" / "8023.png")
    np.testing.assert_array_equal(Berkeley(root)[2].mask, labels)


@pytest.mark.parametrize("folder", ["Berkeley", "berkeley"])
def test_default_place(root, monkeypatch, folder):
    root.rename(root.parent / folder)
    monkeypatch.setenv("PROBSEG_DATA", str(root.parent))
    assert len(Berkeley()) == 3


@pytest.mark.parametrize("gone", ["images", "masks"])
def test_missing_folders(root, gone):
    shutil.rmtree(root / gone)
    refused(
        DatasetNotFoundError, lambda: Berkeley(root),
        "Berkeley", root, "images/", "masks/", "Berkeley.zip", "`root`", "PROBSEG_DATA",
    )  # fmt: skip


def test_files_without_partner(root):
    (root / "masks" / "8023.png").unlink()
    refused(DataError, lambda: Berkeley(root), root / "masks", "no mask for ['8023']", "add")
    (root / "images" / "8023.jpg").unlink()
    save(draw_scene()[1] * 255, root / "masks" / "12003.png")
    refused(DataError, lambda: Berkeley(root), root / "images", "no image for ['12003']", "add")


def test_duplicate_stems(root):
    path = save(draw_scene()[1], root / "masks" / "8023.bmp")
    refused(DataError, lambda: Berkeley(root), path.parent, "8023.", "same stem", "remove")


def test_masks_that_cannot_be_used(root):
    path = save(draw_scene()[1], root / "masks" / "8023.png")  # 0 and 1
    refused(DataError, lambda: Berkeley(root)[2], path, "255", "up to 1;", "ImageMaskFolder")
    save(draw_scene(9, 9)[1] * 255, path)
    refused(DataError, lambda: Berkeley(root)[2], path, "9 x 9", "8023.jpg", "64 x 48")
