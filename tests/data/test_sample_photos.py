"""Photographs that other packages install, and the outlines of their objects."""

import numpy as np
import pytest

from probseg.data import sample_photos
from probseg.data.sample_photos import SamplePhotos, rasterise, read_outlines
from probseg.errors import DataError


def test_samples():
    data = SamplePhotos()
    samples = [data[i] for i in range(len(data))]
    masks = {s.name: s.mask for s in samples}
    assert len(masks) == len(samples) == sum(len(photo["objects"]) for photo in read_outlines())
    assert {"cat", "coffee/cup", "cameraman/tripod", "motorcycle"} <= set(masks)
    assert data[-1].name == samples[-1].name
    for index in (len(samples), -len(samples) - 1):
        with pytest.raises(IndexError):
            data[index]
    for s in samples:
        assert s.dataset == "SamplePhotos"
        assert s.name.startswith(s.photo)
        assert s.image.dtype == s.mask.dtype == np.uint8
        assert s.image.shape == (*s.mask.shape, 3)
        assert set(np.unique(s.mask)) == {0, 1}, s.name
        assert 0.002 < s.mask.mean() < 0.75, s.name
    cup, spoon, saucer = (masks[f"coffee/{n}"] for n in ("cup", "spoon", "saucer"))
    assert (cup + spoon + saucer).max() == 1  # objects in front are left out
    hat = masks["grace_hopper/hat"] == 1
    assert masks["grace_hopper/woman"][hat].mean() > 0.99  # but parts are not


def test_rasterise_unites_polygons_and_clears_holes():
    outline = {
        "name": "x",
        "polygons": [[1, 1, 6, 1, 6, 6, 1, 6], [4, 4, 9, 4, 9, 9, 4, 9]],
        "holes": [[2, 2, 2, 3, 3, 3, 3, 2]],
    }
    mask = rasterise(outline, (11, 12))
    expected = np.zeros((11, 12), np.uint8)
    expected[1:7, 1:7] = expected[4:10, 4:10] = 1
    expected[2:4, 2:4] = 0
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("package", ["skimage", "no_such_package_here"])
def test_missing_photo_names_the_file_and_the_way_out(monkeypatch, package):
    photo = {"name": "dog", "package": package, "file": "data/dog.png", "objects": []}
    monkeypatch.setattr(sample_photos, "read_outlines", lambda: [photo])
    with pytest.raises(DataError, match=r"dog\.png.*pip install"):
        SamplePhotos()
