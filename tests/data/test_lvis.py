"""LVIS: polygons and run lengths of a large JSON file."""

import json
import shutil

import numpy as np
import pytest
from fakes import draw_scene, save, write_lvis
from pycocotools import mask as coco_mask
from refusals import refused

from probseg.data import DATASETS, LVIS
from probseg.errors import DataError

SMALL = 50  # fewer pixels than any object of the drawn scenes


@pytest.fixture
def root(tmp_path):
    return write_lvis(tmp_path / "LVIS")


def edit(root, change, split="val"):
    """Change the content of the annotations, e.g. the first of them."""
    path = root / f"lvis_v1_{split}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def first(root, **entries):
    """Replace entries of the first annotation of `val`; None removes."""

    def change(content):
        annotation = content["annotations"][0] | entries
        content["annotations"][0] = {k: v for k, v in annotation.items() if v is not None}

    return edit(root, change)


def test_every_annotation_is_an_object(root):
    data = LVIS("val", root, SMALL)
    assert DATASETS["LVIS"] is LVIS
    assert len(data) == 3 * 2
    names = [data[i].name for i in range(6)]
    assert names[:3] == ["000000002000#4001", "000000002000#4002", "000000002001#4003"]
    assert len(set(names)) == 6
    for i in range(6):
        sample = data[i]
        assert sample.dataset == "LVIS"
        assert sample.mask.dtype == np.uint8
        assert sample.image.shape == (48, 64, 3)
        np.testing.assert_array_equal(
            sample.mask, draw_scene(objects=2, seed=i // 2)[1] == i % 2 + 1
        )


def test_a_rectangle(root):
    first(root, segmentation=[[3, 4, 10, 4, 10, 9, 3, 9]])
    expected = np.zeros((48, 64), np.uint8)
    expected[4:9, 3:10] = 1
    np.testing.assert_array_equal(LVIS("val", root, SMALL)[0].mask, expected)


def test_polygons_are_drawn_from_the_decimals_of_the_file(root):
    # Tenths lie on the edges of the finest pixels, where 32 bits would fall to the wrong side.
    random = np.random.default_rng(0)
    for _ in range(20):
        polygons = [(random.integers(0, 480, 12) / 10).tolist() for _ in range(2)]
        first(root, segmentation=[*polygons, [1, 2, 3, 4]])
        expected = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(polygons, 48, 64)))
        np.testing.assert_array_equal(LVIS("val", root, SMALL)[0].mask, expected)


@pytest.mark.parametrize("kind", ["compressed", "lists"])
def test_run_lengths(root, kind):
    mask = np.random.default_rng(0).integers(0, 2, (48, 64), dtype=np.uint8)
    if kind == "compressed":
        runs = coco_mask.encode(np.asfortranarray(mask))
        runs["counts"] = runs["counts"].decode()
    else:
        column = np.concatenate([[0], mask.ravel(order="F"), [2]])
        changes = np.flatnonzero(np.diff(column))
        runs = {"counts": np.diff(changes, prepend=0).tolist(), "size": [48, 64]}
    first(root, segmentation=runs)
    data = LVIS("val", root, SMALL)
    assert len(data) == 6
    np.testing.assert_array_equal(data[0].mask, mask)
    np.testing.assert_array_equal(data[1].mask, draw_scene(objects=2)[1] == 2)


def test_overlapping_annotations_keep_their_own_masks(root):
    def twice(content):
        content["annotations"].append(content["annotations"][0] | {"id": 9})

    edit(root, twice)
    data = LVIS("val", root, SMALL)
    assert data[6].name == "000000002000#9"
    np.testing.assert_array_equal(data[6].mask, data[0].mask)
    assert set(np.unique(data[6].mask)) == {0, 1}


@pytest.mark.parametrize(
    "entries",
    [{"iscrowd": 1}, {"area": SMALL - 0.5}, {"segmentation": []}, {"segmentation": [[1, 2, 3, 4]]}],
)
def test_crowds_tiny_and_empty_objects_are_left_out(root, entries):
    first(root, **entries)
    data = LVIS("val", root, SMALL)
    assert [data[i].name for i in range(2)] == ["000000002000#4002", "000000002001#4003"]
    np.testing.assert_array_equal(data[0].mask, draw_scene(objects=2)[1] == 2)


def test_the_smallest_area_is_400(root):
    first(root, area=399.9)
    assert LVIS("val", root).ids[0] != 4001
    first(root, area=400, iscrowd=0)
    assert LVIS("val", root).ids[0] == 4001
    path = root / "lvis_v1_val.json"
    refused(DataError, lambda: LVIS("val", root, 10**6), path, "min_area=1000000;")


def test_the_url_decides_the_folder(root):
    data = LVIS("val", root, SMALL)
    files = [data.index.file(image) for image in range(3)]
    assert files == [
        "train2017/000000002000.jpg",
        "val2017/000000002001.jpg",
        "val2017/000000002002.jpg",
    ]
    np.testing.assert_array_equal(data[0].image, LVIS("train", root, SMALL)[0].image)
    shutil.rmtree(root / "val2017")
    assert len(LVIS("train", root, SMALL)) == 6  # needs train2017 only


def test_images_without_objects_may_be_missing(root):
    edit(root, lambda content: content["annotations"].__delitem__(slice(0, 2)))
    (root / "train2017" / "000000002000.jpg").unlink()
    assert len(LVIS("val", root, SMALL)) == 4


def test_a_missing_image(root):
    path = root / "val2017" / "000000002001.jpg"
    path.unlink()
    parts = (path, "no such file", "lvis_v1_val.json", "1 missing", "val2017.zip")
    refused(DataError, lambda: LVIS("val", root, SMALL), *parts)


def test_broken_annotations(root):
    path = first(root, area="large")
    parts = (path, "'annotations'", "'large'", "4001", "download")
    refused(DataError, lambda: LVIS("val", root, SMALL), *parts)
    path = first(root, area=500, image_id=None)
    refused(DataError, lambda: LVIS("val", root, SMALL), path, "image_id", "download")
    path = first(root, area=500, segmentation=[["x"] * 6])
    refused(DataError, lambda: LVIS("val", root, SMALL), path, "LVIS v1", "download")
    path.write_text(path.read_text()[:-20])
    refused(DataError, lambda: LVIS("val", root, SMALL), path, "LVIS v1", "download")
    write_lvis(root)
    path = edit(root, lambda content: content["images"][0].pop("coco_url"))
    refused(DataError, lambda: LVIS("val", root, SMALL), path, "coco_url", "[2000]", "download")


def test_an_image_of_another_size(root):
    path = save(draw_scene(20, 30)[0], root / "val2017" / "000000002001.jpg")
    parts = (path, "lvis_v1_val.json", "64 x 48", "30 x 20")
    refused(DataError, lambda: LVIS("val", root, SMALL)[2], *parts)


def test_an_outline_outside_the_image(root):
    path = first(root, segmentation=[[100, 100, 110, 100, 110, 110]])
    refused(DataError, lambda: LVIS("val", root, SMALL)[0], path, "annotation 4001", "`min_area`")
