"""The frames of DAVIS, whose masks hold the colours of a palette."""

import numpy as np
import pytest
from drawn_sets import write_davis
from fakes import draw_scene, save
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from refusals import refused

from probseg.data import DATASETS, DAVIS
from probseg.errors import DataError


@pytest.fixture
def root(tmp_path):
    return write_davis(tmp_path / "DAVIS")


def test_all_objects_of_a_frame_are_one(root):
    data = DAVIS(root)
    assert DATASETS[DAVIS.name] is DAVIS
    assert [(s.name, s.photo, s.dataset) for s in data] == [
        ("000", "000", "DAVIS"), ("001", "001", "DAVIS"), ("002", "002", "DAVIS")
    ]  # fmt: skip
    for i, objects in enumerate((2, 1, 1)):
        assert data[i].mask.dtype == np.uint8
        assert data[i].image.shape == (48, 64, 3)
        np.testing.assert_array_equal(data[i].mask, draw_scene(objects=objects, seed=i)[1] > 0)


@given(hnp.arrays(np.uint8, (4, 5, 3), elements=st.sampled_from([0, 0, 1, 64, 128, 192, 255])))
def test_whatever_is_not_black_is_the_object(tmp_path_factory, colours):
    root = write_davis(tmp_path_factory.mktemp("davis"), size=(4, 5))
    colours[0, 0, 1] = 128
    save(colours, root / "gt" / "001.png")
    mask = DAVIS(root)[1].mask
    for y in range(4):
        for x in range(5):
            assert mask[y, x] == (list(colours[y, x]) != [0, 0, 0])


def test_palette_files_are_read_by_their_colours(root):
    labels = draw_scene(objects=2)[1]
    picture = Image.fromarray(labels)
    picture.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    picture.save(root / "gt" / "000.png")
    np.testing.assert_array_equal(DAVIS(root)[0].mask, labels > 0)


def test_masks_that_cannot_be_used(root):
    path = save(np.zeros((48, 64, 3), np.uint8), root / "gt" / "001.png")
    refused(DataError, lambda: DAVIS(root)[1], path, "black alone", "unpack")
    save(draw_scene(9, 9)[0], path)
    refused(DataError, lambda: DAVIS(root)[1], path, "9 x 9", "001.JPG", "64 x 48")
    save(draw_scene()[0], root / "x.jpg").rename(path)  # its black is not black
    refused(DataError, lambda: DAVIS(root)[1], path, "JPEG", "lossless")
