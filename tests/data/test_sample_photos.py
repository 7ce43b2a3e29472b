"""Photographs that other packages install, and the outlines of their objects."""

import cv2
import numpy as np
import pytest

from probseg.data import sample_photos
from probseg.data.sample_photos import SamplePhotos, photo_path, rasterise, read_outlines
from probseg.errors import DataError

PHOTOS = {p["name"]: p for p in read_outlines()}
OUTLINES = [(p, o) for p in PHOTOS.values() for o in p["objects"]]


@pytest.fixture(scope="module")
def samples():
    photos = SamplePhotos()
    return [photos[i] for i in range(len(photos))]


def crossings(points):
    """Number of pairs of edges of a polygon that properly cross."""
    a = points.astype(np.int64)
    b = np.roll(a, -1, axis=0)

    def side(p, q, r):
        d, e = q - p, r - p
        return np.sign(d[..., 0] * e[..., 1] - d[..., 1] * e[..., 0])

    p, q, r, s = a[:, None], b[:, None], a[None], b[None]
    cross = (side(p, q, r) * side(p, q, s) < 0) & (side(r, s, p) * side(r, s, q) < 0)
    return int(cross.sum()) // 2


def contour(mask):
    """Pixels of the object with a background neighbour, away from the border of the image."""
    edge = (mask == 1) & (cv2.erode(mask, np.ones((3, 3), np.uint8)) == 0)
    margin = 12
    edge[:margin] = edge[-margin:] = edge[:, :margin] = edge[:, -margin:] = False
    return edge


def edge_strength(image):
    """Largest gradient magnitude of the channels, at its maximum within two pixels."""
    smooth = cv2.GaussianBlur(image, (0, 0), 1.0).astype(np.float32)
    dx, dy = cv2.Sobel(smooth, cv2.CV_32F, 1, 0), cv2.Sobel(smooth, cv2.CV_32F, 0, 1)
    return cv2.dilate(np.hypot(dx, dy).max(axis=2), np.ones((5, 5), np.uint8))


def test_samples(samples):
    assert len(SamplePhotos()) == len(samples) == len(OUTLINES)
    names = [s.name for s in samples]
    assert len(set(names)) == len(names)
    assert {"cat", "coffee/cup", "cameraman/tripod", "motorcycle"} <= set(names)
    assert SamplePhotos()[-1].name == names[-1]
    for index in (len(samples), -len(samples) - 1):
        with pytest.raises(IndexError, match="`index`"):
            SamplePhotos()[index]
    for s in samples:
        assert s.dataset == "SamplePhotos"
        assert s.name.startswith(s.photo)
        assert s.image.dtype == s.mask.dtype == np.uint8
        assert s.image.shape == (*s.mask.shape, 3)
        assert s.image.std() > 10
        assert set(np.unique(s.mask)) == {0, 1}, s.name
        assert 0.002 < s.mask.mean() < 0.75, s.name


def test_outlines_name_objects_of_their_photograph():
    for photo in PHOTOS.values():
        names = [o["name"] for o in photo["objects"]]
        assert len(set(names)) == len(names)
        for outline in photo["objects"]:
            assert set(outline.get("without", [])) <= set(names) - {outline["name"]}


def test_polygons_are_inside_and_simple():
    for photo, outline in OUTLINES:
        height, width = cv2.imread(str(photo_path(photo))).shape[:2]
        for polygon in outline["polygons"] + outline.get("holes", []):
            xy = np.array(polygon).reshape(-1, 2)
            assert 3 <= len(xy) <= 250
            assert xy.min() >= 0
            assert (xy < (width, height)).all()
            assert crossings(xy) == 0, outline["name"]
            assert cv2.contourArea(xy.astype(np.int32)) >= 20


def test_objects_that_overlap(samples):
    masks = {s.name: s.mask for s in samples}
    cup, spoon, saucer = (masks[f"coffee/{n}"] for n in ("cup", "spoon", "saucer"))
    assert (cup + spoon + saucer).max() == 1  # objects in front are left out
    hat = masks["grace_hopper/hat"] == 1
    assert masks["grace_hopper/woman"][hat].mean() > 0.99  # but parts are not


def test_contours_lie_on_image_edges(samples):
    """On the contour the image changes more than on the same contour moved by 8 pixels."""
    shifts = [(8, 8), (-8, 8), (8, -8), (-8, -8)]
    ratios = {}
    for s in samples:
        strength, edge = edge_strength(s.image), contour(s.mask)
        moved = [strength[np.roll(edge, shift, axis=(0, 1))].mean() for shift in shifts]
        ratios[s.name] = strength[edge].mean() / np.mean(moved)
    assert min(ratios.values()) > 1.15, ratios
    assert np.median(list(ratios.values())) > 1.5, ratios


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
