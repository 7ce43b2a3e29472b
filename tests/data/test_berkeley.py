"""The Berkeley test set."""

import numpy as np
import pytest
from fakes import draw_scene, save, write_berkeley

from probseg.data import DATASETS, Berkeley


@pytest.fixture
def root(tmp_path):
    return write_berkeley(tmp_path / "Berkeley")


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
