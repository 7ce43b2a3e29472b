"""COCO: polygons and run lengths, what takes part, and files that are not what they should be."""

import copy
import json
import pickle
import shutil
import tracemalloc
from collections import namedtuple

import numpy as np
import pytest
from drawn_sets import polygons_of, runs_of, write_coco
from fakes import draw_scene, save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

import probseg.data.annotation_files as annotation_files
from probseg.data import COCO, DATASETS, COCOInstances
from probseg.data.annotation_index import AnnotationIndex
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError


class Drawn:
    """Annotations, their images, and changes of both."""

    def __init__(self, root, count=3):
        self.path = write_coco(root / "my.json", root / "photos", count)
        self.images = root / "photos"

    def open(self, **options):
        return COCO(self.path, self.images, **options)

    def edit(self, change):
        content = json.loads(self.path.read_text())
        change(content)
        self.path.write_text(json.dumps(content, indent=1))  # of another size in any case

    def first(self, key="annotations", **entries):
        """Replace entries of the first annotation or image; None removes."""

        def change(content):
            entry = content[key][0] | entries
            content[key][0] = {k: v for k, v in entry.items() if v is not None}

        self.edit(change)

    def refused(self, *parts, error=DataError, **options):
        with pytest.raises(error) as caught:
            self.open(**options)
        for part in parts:
            assert str(part) in str(caught.value)


@pytest.fixture
def drawn(tmp_path):
    return Drawn(tmp_path)


def masks_of(data):
    return [data[i].mask for i in range(len(data))]


def test_every_annotation_but_crowds_is_an_object(drawn):
    data = drawn.open(name="mine")
    assert (DATASETS["COCO"], DATASETS["COCOInstances"]) == (COCO, COCOInstances)
    assert [data.object_name(i) for i in range(6)] == [
        "1#10", "1#11", "2#20", "2#21", "3#30", "3#31",
    ]  # fmt: skip
    for i in range(6):
        image, labels = draw_scene(objects=2, seed=i // 2 + 1)
        sample = data[i]
        assert (sample.name, sample.dataset) == (data.object_name(i), "mine")
        assert sample.photo == f"{i // 2 + 1}"
        assert sample.image.shape == image.shape
        assert sample.mask.dtype == np.uint8
        np.testing.assert_array_equal(sample.mask, labels == i % 2 + 1)
    assert data.areas.dtype == np.int64
    assert data.areas.tolist() == [mask.sum() for mask in masks_of(data)]
    with pytest.raises(IndexError):
        data[6]


def test_crowds_on_request(drawn):
    data = drawn.open(crowd=True)
    assert len(data) == 9
    np.testing.assert_array_equal(data[2].mask, draw_scene(objects=2, seed=1)[1] > 0)


def test_selection_by_area(drawn):
    areas = drawn.open().areas
    small = int(np.sort(areas)[2])
    kept = drawn.open(min_area=small)
    assert kept.areas.tolist() == [area for area in areas if area >= small]
    large = (np.sort(areas)[3] + 0.5) / (48 * 64)
    assert drawn.open(max_fraction=large).areas.tolist() == [
        area for area in areas if area <= large * 48 * 64
    ]


def test_what_was_asked_for_is_told_when_nothing_is_left(drawn):
    told = "none of its 9 annotations with an outline is left with "
    drawn.refused(drawn.path, f"{told}min_area=1000000;", min_area=10**6)
    drawn.refused(f"{told}min_area=16, max_fraction=0;", max_fraction=0)
    drawn.edit(lambda content: content["categories"].append({"id": 8, "name": "cat"}))
    drawn.refused(
        f"{told}min_area=16, crowd=True, categories=['cat'], part='val'; choose fewer",
        crowd=True, categories=["cat"], part="val",
    )  # fmt: skip


def test_selection_by_category(drawn):
    bats = drawn.open(categories=["bat"])
    assert [bats.object_name(i) for i in range(3)] == ["1#10", "2#20", "3#30"]
    assert len(drawn.open(categories=["ball", "bat"])) == 6
    drawn.refused("'batt'", "'bat'", error=UnknownNameError, categories=["batt"])


def test_objects_without_category_belong_to_none(drawn):
    drawn.first(category_id=None)
    assert len(drawn.open()) == 6
    assert len(drawn.open(categories=["ball", "bat"])) == 5
    drawn.edit(lambda content: content.pop("categories"))
    assert len(drawn.open()) == 6


def test_parts_share_the_images(tmp_path):
    drawn = Drawn(tmp_path, count=15)
    train, val = drawn.open(part="train"), drawn.open(part="val")
    photos = [{part.object_name(i).split("#")[0] for i in range(len(part))}
              for part in (train, val)]  # fmt: skip
    assert not photos[0] & photos[1]
    assert [len(part) for part in photos] == [13, 2]
    assert len(train) + len(val) == len(drawn.open())
    # What else is selected moves no image from one part to the other.
    for options in ({"categories": ["bat"]}, {"crowd": True}):
        other = drawn.open(part="train", **options)
        assert {other.object_name(i).split("#")[0] for i in range(len(other))} == photos[0]


def test_annotations_of_unlisted_images_that_are_not_wanted(tmp_path):
    drawn = Drawn(tmp_path, count=4)
    parts = [drawn.open(part=part) for part in ("train", "val")]
    names = [[part.object_name(i) for i in range(len(part))] for part in parts]
    drawn.edit(lambda content: content["annotations"].append(
        content["annotations"][0] | {"id": 99, "image_id": 99, "area": 1}))  # fmt: skip
    parts = [drawn.open(part=part) for part in ("train", "val")]
    assert [[part.object_name(i) for i in range(len(part))] for part in parts] == names
    drawn.refused("does not list", "[99]", min_area=1, part="val")
    drawn.edit(lambda content: content["images"].clear())
    drawn.refused("does not list", "[1, 2, 3] (4 in all)", max_fraction=0.5)
    drawn.refused("is left with min_area=1000000", min_area=10**6, max_fraction=0.5)


def test_parts_need_two_images(tmp_path):
    for count, sizes in ((2, (2, 2)), (3, (4, 2))):
        drawn = Drawn(tmp_path / str(count), count)
        assert (len(drawn.open(part="train")), len(drawn.open(part="val"))) == sizes
    drawn = Drawn(tmp_path / "one", count=1)
    drawn.refused("at least 2 images", "`part`", part="train")


def corners():
    number = st.decimals(-20, 90, places=2).map(float) | st.floats(-20, 90)
    return st.lists(number, min_size=6, max_size=14).filter(lambda p: len(p) % 2 == 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outline=st.lists(corners(), min_size=1, max_size=3), pending=st.integers(1, 30))
def test_polygons_are_drawn_as_from_the_file(drawn, monkeypatch, outline, pending):
    # Two decimals are kept in 32 bits, others in 64: neither may move a pixel.
    monkeypatch.setattr(annotation_files, "PENDING", pending)
    drawn.first(segmentation=outline, area=1000)
    expected = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(outline, 48, 64)))
    data = drawn.open()
    if expected.any():
        np.testing.assert_array_equal(data[0].mask, expected)
    else:
        with pytest.raises(DataError, match=r"annotation 10 of .* has no pixel"):
            data[0]
    np.testing.assert_array_equal(data[1].mask, draw_scene(objects=2, seed=1)[1] == 2)


def test_two_decimals_take_half_the_memory(drawn):
    assert drawn.open().index.coordinates.dtype == np.float32
    drawn.first(segmentation=[[1.001, 2, 30, 4, 5, 20]])
    assert drawn.open().index.coordinates.dtype == np.float64


def test_areas_that_are_not_stated(drawn):
    mask = draw_scene(objects=2, seed=1)[1] == 1
    outlines = (polygons_of(mask), {"size": [48, 64], "counts": runs_of(mask)})
    for outline in outlines:
        for area in (None, 0):
            drawn.first(segmentation=outline, area=area)
            assert drawn.open().areas[0] == mask.sum()


def test_folders_in_file_names(drawn):
    (drawn.images / "a" / "b").mkdir(parents=True)
    (drawn.images / "1.jpg").rename(drawn.images / "a" / "b" / "2.x.jpg")
    drawn.first("images", file_name="a/b/2.x.jpg")
    data = drawn.open()
    assert data[0].name == "a/b/2.x#10"
    assert data[0].photo == "a/b/2.x" != data[2].photo
    shutil.rmtree(drawn.images / "a")
    drawn.refused("a/b", "`images`", error=DatasetNotFoundError)


@pytest.mark.parametrize(
    "name", ["../1.jpg", "a/../../1.jpg", "/etc/1.jpg", "C:\\1.jpg", "..\\1.jpg", "C:1.jpg", ""]
)
def test_paths_out_of_the_folder(drawn, name):
    drawn.first("images", file_name=name)
    drawn.refused(drawn.path, repr(name), "inside the folder")


@pytest.mark.parametrize(
    ("entries", "part"),
    [
        ({"id": None}, "'id'"),
        ({"image_id": None}, "'image_id'"),
        ({"id": "ten"}, "'ten'"),
        ({"id": 11}, "the id 11 is there more than once in 'annotations'"),
        ({"image_id": 4}, "does not list with a file_name: [4] (1 in all)"),
        ({"segmentation": [["x"] * 6]}, "'annotations'"),
        ({"segmentation": 5}, "'annotations'"),
        ({"segmentation": {"size": [48, 64], "counts": [10, 20]}}, "fill 30 pixels"),
        ({"segmentation": {"size": [48, 64], "counts": [-5, 3077]}}, "'annotations'"),
        ({"segmentation": {"size": [48, 64], "counts": "10"}}, "run lengths fill"),
        ({"segmentation": {"size": [48, 64], "counts": "~~"}}, "compressed run lengths"),
        ({"segmentation": {"counts": [48 * 64]}}, "'size'"),
        ({"area": "wide"}, "'wide'"),
        ({"area": -1}, "area must be finite and at least 0, got -1.0: {'id': 10,"),
        ({"area": float("nan")}, "cannot be read"),
    ],
)
def test_broken_annotations(drawn, entries, part):
    drawn.first(**entries)
    drawn.refused(drawn.path, part, "download or export")


@pytest.mark.parametrize(("number", "place"), [(1e9, 0), (-1e9, 3), (1e9, 5)])
def test_coordinates_far_outside_the_image(drawn, number, place):
    outline = [1.0, 2, 3, 4, 5, 6]
    outline[place] = number
    drawn.first(segmentation=[[1, 2, 3, 4, 9, 5], outline], area=None)
    drawn.refused(drawn.path, "coordinate", "{'id': 10,", "download or export")


@pytest.mark.parametrize("key", ["id", "file_name", "height", "width"])
def test_broken_images(drawn, key):
    drawn.first("images", **{key: None})
    drawn.refused(drawn.path, "'images'", f"'{key}'")


def test_files_that_are_no_annotations(drawn):
    whole = drawn.path.read_text()
    texts = ["", "{", "[]", '{"images": 5}', '{"images": [5]}', "\x89PNG", f"{whole} x"]
    texts += [whole[: len(whole) * part // 7] for part in range(1, 7)]  # downloads cut off
    for text in texts:
        drawn.path.write_text(text, encoding="latin-1")
        drawn.refused(drawn.path)


def test_layouts_of_the_file(drawn):
    content = drawn.path.read_text()
    expected = masks_of(drawn.open())
    backwards = dict(reversed(json.loads(content).items()))
    for text in (json.dumps(backwards, separators=(",", ":")), f"\ufeff{content}"):
        drawn.path.write_text(text, encoding="utf-8")
        np.testing.assert_array_equal(masks_of(drawn.open()), expected)


def test_memory_does_not_grow_with_the_file(drawn):
    entry = {"id": 5, "segmentation": [], "notes": "x" * 1000}
    drawn.edit(lambda content: content["annotations"].extend([entry] * 5000))
    tracemalloc.start()
    try:
        drawn.open()
        assert tracemalloc.get_traced_memory()[1] < 10**6 < drawn.path.stat().st_size / 5
    finally:
        tracemalloc.stop()


def test_boxes_and_empty_outlines_are_left_out(drawn):
    for outline in ([], [[1, 2, 3, 4]], None):
        drawn.first(segmentation=outline)
        data = drawn.open()
        assert len(data) == 5
        np.testing.assert_array_equal(data[0].mask, draw_scene(objects=2, seed=1)[1] == 2)


def test_run_lengths_of_another_size(drawn):
    drawn.first(segmentation={"size": [64, 48], "counts": [0, 48 * 64]})
    with pytest.raises(DataError, match=r"annotation 10 of .*1\.jpg .* 48 x 64 pixels, .* 64 x 48"):
        drawn.open()[0]


def test_missing_files(drawn, tmp_path):
    (drawn.images / "2.jpg").unlink()
    drawn.refused(drawn.images / "2.jpg", "no such file", "1 missing", "my.json", "`images`")
    drawn.images.rename(tmp_path / "elsewhere")
    drawn.refused(drawn.images, "`images`", error=DatasetNotFoundError)
    drawn.path.unlink()
    drawn.refused("my.json", "`annotations`", "PROBSEG_DATA", error=DatasetNotFoundError)


def test_images_that_are_added_or_changed_later(drawn):
    image = drawn.images / "2.jpg"
    content = image.read_bytes()
    drawn.open()
    image.unlink()
    drawn.refused(image)  # though the index is there
    image.write_bytes(content)
    data = drawn.open()
    save(draw_scene(20, 30)[0], image)
    with pytest.raises(DataError, match="30 x 20"):
        data[2]


def test_one_index_serves_all_selections(drawn, monkeypatch):
    drawn.open()
    monkeypatch.setattr(annotation_files, "_Reader", None)
    assert len(drawn.open(min_area=1, categories=["bat"], part="train", crowd=True)) > 0


def test_an_index_of_other_columns_is_built_anew(drawn, monkeypatch):
    drawn.open()
    columns = namedtuple("columns", [*AnnotationIndex._fields, "more"], defaults=[np.zeros(1)])
    monkeypatch.setattr(annotation_files, "AnnotationIndex", columns)
    for _ in range(2):
        index = annotation_files.read_index("COCO", drawn.path, COCO.place)
        assert index.more.path.name == "more.npy"


def test_copies_share_the_index(drawn):
    data = drawn.open()
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        np.testing.assert_array_equal(other[3].mask, data[3].mask)
        assert other.index.coordinates.path == data.index.coordinates.path
    assert len(pickle.dumps(data.index)) < 10_000


def test_relative_paths_are_looked_for_in_the_data_folder(drawn, monkeypatch):
    monkeypatch.setenv("PROBSEG_DATA", str(drawn.path.parent))
    assert len(COCO("my.json", "photos")) == 6


@pytest.fixture
def official(tmp_path):
    root = tmp_path / "COCO"
    for number, folder in enumerate(("train2017", "val2017"), 2):
        write_coco(root / "annotations" / f"instances_{folder}.json", root / folder, number)
    return root


def test_instances_of_coco(official, monkeypatch):
    assert len(COCOInstances("train", official, min_area=1)) == 4
    data = COCOInstances("val", official, min_area=1)
    assert len(data) == 6
    assert (data[0].name, data[0].dataset) == ("1#10", "COCO")
    monkeypatch.setenv("PROBSEG_DATA", str(official.parent))
    large = COCOInstances("val")
    assert large.areas.tolist() == [area for area in data.areas if area >= 400] != []


def test_an_image_that_is_missing_in_coco(official):
    (official / "val2017" / "1.jpg").unlink()
    with pytest.raises(DataError, match=r"val2017/1\.jpg.*unpack val2017\.zip"):
        COCOInstances("val", official)
