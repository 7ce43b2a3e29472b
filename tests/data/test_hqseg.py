"""HQSeg-44K and pairs of images and masks in folders of any names."""

import pickle
import shutil

import numpy as np
import pytest
from drawn_sets import write_hqseg
from fakes import draw_scene, save
from refusals import refused

import probseg.data.image_pairs as module
from probseg.data import DATASETS, HQSeg44K, ImagePairs
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError

TRAIN = ["DIS5K-TR", "ThinObject5K-TR", "fss_all", "DUTS-TR", "DUTS-TE", "ecssd", "MSRA_10K"]
VAL = ["DIS5K-VD", "COIFT", "HRSOD", "ThinObject5K-TE"]


@pytest.fixture
def root(tmp_path):
    return write_hqseg(tmp_path / "HQSeg44K", images=2)


@pytest.mark.parametrize(("split", "parts"), [("train", TRAIN), ("val", VAL)])
def test_a_split_has_all_its_parts(root, split, parts):
    data = HQSeg44K(split, root)
    assert DATASETS["HQSeg44K"] is HQSeg44K
    names = [f"{part}/1#Bag#{i}_o" for part in parts for i in range(2)]
    assert [data.object_name(i) for i in range(len(data))] == names
    for i, name in enumerate(names):
        sample = data[i]
        assert (sample.name, sample.photo, sample.dataset) == (name, name, "HQSeg44K")
        assert sample.mask.dtype == np.uint8
        np.testing.assert_array_equal(sample.mask, draw_scene(seed=i % 2)[1])
        assert data.areas[i] == sample.mask.sum()
    assert data.areas.dtype == np.int64
    assert len(data.areas) == len(data)


def test_parts_can_be_chosen(root):
    shutil.rmtree(root / "DIS5K")
    data = HQSeg44K("val", root, parts=["HRSOD", "COIFT"])
    assert [data.object_name(i).split("/")[0] for i in (0, 1, 2, 3)] == [
        "HRSOD", "HRSOD", "COIFT", "COIFT"
    ]  # fmt: skip
    refused(DatasetNotFoundError, lambda: HQSeg44K("val", root), "DIS5K/DIS-VD/im", "`parts`", root)
    refused(
        UnknownNameError, lambda: HQSeg44K("val", root, ["HRSD"]), "'HRSOD'", "part of HQSeg44K"
    )
    refused(UnknownNameError, lambda: HQSeg44K("val", root, []), "part of HQSeg44K val")
    refused(UnknownNameError, lambda: HQSeg44K("test", root), "'test'", "split")


@pytest.fixture
def folders(tmp_path):
    for i in range(3):
        image, labels = draw_scene(seed=i)
        save(image, tmp_path / "im" / f"photo{i}.png")
        save(labels * 255, tmp_path / "gt" / f"photo{i}.png")
    return tmp_path / "im", tmp_path / "gt"


def test_pairs_of_any_folders(folders, monkeypatch):
    data = ImagePairs(*folders, name="mine")
    assert len(data) == 3
    for i in range(3):
        assert data[i].name == data[i].photo == data.object_name(i) == f"photo{i}"
        assert data[i].dataset == "mine"
        np.testing.assert_array_equal(data[i].image, draw_scene(seed=i)[0])
        np.testing.assert_array_equal(data[i].mask, draw_scene(seed=i)[1])
    monkeypatch.setenv("PROBSEG_DATA", str(folders[0].parent))
    again = pickle.loads(pickle.dumps(ImagePairs("im", "gt")))
    assert again.name == "ImagePairs"
    assert again.areas.tolist() == data.areas.tolist()


def test_masks_are_read_once_and_again_if_a_file_changes(folders, monkeypatch):
    images, masks = folders
    ImagePairs(*folders)
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_grey", None)
        assert len(ImagePairs(*folders).areas) == 3
    path = save(np.zeros((48, 64), np.uint8), masks / "photo1.png")
    refused(DataError, lambda: ImagePairs(*folders), path, "up to 0")
    save(draw_scene(seed=1)[1] * 255, path)
    path = images / "photo2.png"
    path.write_bytes(b"?")
    refused(DataError, lambda: ImagePairs(*folders), path, "cannot be read")


def test_moved_as_a_whole_the_masks_are_not_read_again(folders, monkeypatch):
    monkeypatch.delenv("PROBSEG_CACHE")
    areas = ImagePairs(*folders).areas.tolist()
    top = folders[0].parent.rename(folders[0].parent.with_name("moved"))
    monkeypatch.setattr(module, "read_grey", None)
    assert ImagePairs(*(top / folder.name for folder in folders)).areas.tolist() == areas


def test_stems_may_have_dots(folders):
    for version in ("v1", "v2"):
        image, labels = draw_scene()
        save(image, folders[0] / f"same.{version}.jpg")
        save(255 * (labels == 1).astype(np.uint8), folders[1] / f"same.{version}.png")
    data = ImagePairs(*folders)
    assert {"same.v1", "same.v2"} <= {data.object_name(i) for i in range(len(data))}


@pytest.mark.parametrize("gone", [0, 1])
def test_missing_folders(folders, gone):
    shutil.rmtree(folders[gone])
    refused(DatasetNotFoundError, lambda: ImagePairs(*folders, "mine"), "mine", folders[gone])
    folders[gone].mkdir()
    refused(DatasetNotFoundError, lambda: ImagePairs(*folders, "mine"), "mine", folders[gone])
