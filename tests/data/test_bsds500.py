"""BSDS500: regions of several annotators."""

import numpy as np
import pytest
from fakes import draw_scene, save, write_bsds500
from refusals import refused

import probseg.data.bsds500 as module
from probseg.data import BSDS500
from probseg.errors import DataError


@pytest.fixture
def root(tmp_path):
    return write_bsds500(tmp_path)


def test_every_region_of_every_annotator_is_an_object(root):
    data = BSDS500("val", root)
    assert len(data) == 3 * 2 * 2  # images, annotators, objects; the ground is too large
    names = [data[i].name for i in range(4)]
    assert names == ["200_a0#2", "200_a0#3", "200_a1#2", "200_a1#3"]
    sample = data[2]
    assert sample.dataset == "BSDS500"
    assert sample.mask.dtype == np.uint8
    np.testing.assert_array_equal(sample.mask, np.roll(draw_scene(objects=2)[1], 1, axis=1) == 1)


def test_photographs_of_the_evaluation_sets_are_left_out(root):
    stems = {image.stem for image, _, _ in BSDS500("train", root).objects}
    assert stems == {"101", "102"}
    stems = {image.stem for image, _, _ in BSDS500("train", root, exclude=None).objects}
    assert stems == {"100", "101", "102"}


def test_the_list_of_exclusions_must_be_there(root):
    path = root / "splits" / "exclude_from_training.tsv"
    path.unlink()
    refused(DataError, lambda: BSDS500("train", root), path, "exclude=None", "GrabCut")


def test_regions_are_chosen_by_size(root):
    areas = {n: (draw_scene(objects=2)[1] + 1 == n).mean() for n in (1, 2, 3)}
    assert areas[1] > 0.5
    everything = BSDS500("val", root, min_fraction=0, max_fraction=1)
    assert {number for _, _, number in everything.objects} == {1, 2, 3}
    large = BSDS500("val", root, min_fraction=0.5, max_fraction=1)
    assert {number for _, _, number in large.objects} == {1}
    refused(DataError, lambda: BSDS500("val", root, min_fraction=0.99), root, "'val'", "selection")


def test_maps_are_read_once_and_again_if_one_changes(root, monkeypatch):
    before = BSDS500("val", root)
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_labels", None)
        assert BSDS500("val", root).objects == before.objects
        with pytest.raises(TypeError):  # the index holds other regions
            BSDS500("val", root, max_fraction=1)
    assert len(BSDS500("val", root, max_fraction=1)) == 18
    save(draw_scene(objects=1)[1] + 1, root / "labels" / "val" / "200_a0.png")
    assert len(BSDS500("val", root)) == 11


def test_unlabelled_pixels_are_no_region(root):
    labels = draw_scene(objects=2)[1]  # 0 is the ground here
    for k in range(2):
        save(labels, root / "labels" / "val" / f"200_a{k}.png")
    data = BSDS500("val", root, min_fraction=0, max_fraction=1)
    own = {number for image, _, number in data.objects if image.stem == "200"}
    assert own == {1, 2}


def test_a_missing_label_map(root):
    for path in (root / "labels" / "val").glob("201_*"):
        path.unlink()
    image = root / "images" / "val" / "201.jpg"
    refused(DataError, lambda: BSDS500("val", root), root / "labels" / "val", "201_a<k>.png", image)


def test_a_broken_label_map(root):
    path = root / "labels" / "val" / "200_a1.png"
    path.write_bytes(b"?")
    refused(DataError, lambda: BSDS500("val", root), path, "cannot be read")


def test_real_photographs(data_root):
    if not (data_root / "bsds500" / "images").is_dir():
        pytest.skip(f"no bsds500/ in {data_root}")
    data = BSDS500("val", data_root / "bsds500")
    excluded = (data_root / "bsds500" / "splits" / "exclude_from_training.tsv").read_text()
    unwanted = {line.split("\t")[0] for line in excluded.splitlines()}
    assert not unwanted & {image.stem for image, _, _ in data.objects}
    for index in np.linspace(0, len(data) - 1, 10).astype(int):
        sample = data[index]
        assert sample.image.shape[:2] == sample.mask.shape
        assert 0.005 <= sample.mask.mean() <= 0.5
