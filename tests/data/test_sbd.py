"""SBD: instances of .mat files."""

import numpy as np
import pytest
import yaml
from fakes import (
    draw_scene,
    save,
    write_berkeley,
    write_grabcut,
    write_instances,
    write_lvis,
    write_sbd,
)
from jsonargparse import ArgumentParser
from refusals import refused
from scipy.io import savemat

import probseg.data.sbd as module
from probseg.data import DATASETS, LVIS, SBD, Berkeley, GrabCut, InteractiveDataModule
from probseg.errors import DataError
from probseg.paths import configs_dir


@pytest.fixture
def root(tmp_path):
    return write_sbd(tmp_path / "SBD")


def test_every_instance_is_an_object(root):
    data = SBD("val", root)
    assert DATASETS["SBD"] is SBD
    assert len(data) == 3 * 2
    names = [data[i].name for i in range(6)]
    assert names[:3] == ["2008_000200#1", "2008_000200#2", "2008_000201#1"]
    assert len(set(names)) == 6
    for i in range(6):
        sample = data[i]
        assert sample.dataset == "SBD"
        assert sample.mask.dtype == np.uint8
        assert sample.image.shape == (48, 64, 3)
        np.testing.assert_array_equal(
            sample.mask, draw_scene(objects=2, seed=i // 2)[1] == i % 2 + 1
        )


@pytest.mark.parametrize(("split", "first"), [("train", "000100"), ("train_noval", "000101")])
def test_the_lists_decide(root, split, first):
    data = SBD(split, root)
    assert data.objects[0] == (f"2008_{first}", 1)
    assert len(data) == (6 if split == "train" else 4)


def test_a_split_without_objects_is_refused(root):
    (root / "train.txt").write_text("\n")
    refused(DataError, lambda: SBD("train", root), root, "no object", "'train'", "unpack")


def test_numbers_without_pixels_and_images_without_instances(root):
    labels = draw_scene(objects=2)[1]
    write_instances(np.where(labels == 1, 7, 0).astype(np.uint8), root / "inst/2008_000200.mat")
    write_instances(np.zeros((48, 64), np.uint8), root / "inst/2008_000201.mat")
    data = SBD("val", root)
    assert [number for _, number in data.objects] == [7, 1, 2]
    np.testing.assert_array_equal(data[0].mask, labels == 1)


@pytest.mark.parametrize("gone", ["img/2008_000201.jpg", "inst/2008_000201.mat"])
def test_missing_files(root, gone):
    (root / gone).unlink()
    refused(DataError, lambda: SBD("val", root), root / gone, "no such file", "unpack")


def test_broken_files(root):
    path = root / "inst" / "2008_000201.mat"
    path.write_bytes(b"?")
    refused(DataError, lambda: SBD("val", root), path, "GTinst", "unpack")
    savemat(path, {"GTcls": {"Segmentation": draw_scene()[1]}})
    refused(DataError, lambda: SBD("val", root), path, "GTinst", "unpack")


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (np.full((48, 64), 256, np.uint16), "uint16"),
        (np.full((48, 64), -1, np.int8), "int8"),
        (np.full((48, 64), 1.5), "float64"),
        (np.ones((48, 64, 2), np.uint8), "(48, 64, 2)"),
        (np.ones((0, 0), np.uint8), "(0, 0)"),
    ],
)
def test_numbers_that_are_no_instances(root, labels, told):
    path = root / "inst" / "2008_000201.mat"
    savemat(path, {"GTinst": {"Segmentation": labels}})
    refused(DataError, lambda: SBD("val", root), path, "0..255", told, "unpack")


@pytest.mark.parametrize(("file", "kind"), [("sbd.yaml", SBD), ("lvis.yaml", LVIS)])
def test_the_shipped_configurations(root, monkeypatch, file, kind):
    monkeypatch.setenv("PROBSEG_DATA", str(root.parent))
    write_lvis(root.parent / "LVIS", size=(96, 128))
    write_grabcut(root.parent / "GrabCut")
    write_berkeley(root.parent / "Berkeley")
    parser = ArgumentParser()
    parser.add_argument("--data", type=InteractiveDataModule)
    config = yaml.safe_load((configs_dir() / "data" / file).read_text())
    module = parser.instantiate(parser.parse_object({"data": config})).data
    assert module.crop.padding == (0.1, 0.3)
    assert [type(s) for s in (*module.train, *module.val)] == [kind, kind]
    assert [type(s) for s in module.test] == [GrabCut, Berkeley]
    assert len(module.train[0]) == len(module.val[0]) == 6
    assert {s.name for s in module.train[0]}.isdisjoint(s.name for s in module.val[0])


def test_files_are_read_once_and_again_if_one_changes(root, monkeypatch):
    before = SBD("val", root)
    with monkeypatch.context() as patch:
        patch.setattr(module, "load_mat", None)
        SBD("val", root)[0]
        assert SBD("val", root).objects == before.objects
        refused(DataError, lambda: SBD("train", root), "3 entries of sbd-train")
    labels = draw_scene(objects=2)[1]
    write_instances(np.where(labels == 2, 9, 0).astype(np.uint8), root / "inst/2008_000201.mat")
    assert [number for _, number in SBD("val", root).objects] == [1, 2, 9, 1, 2]
    (root / "inst/2008_000201.mat").unlink()
    refused(DataError, lambda: SBD("val", root), "2008_000201.mat", "no such file")


def test_small_objects_can_be_left_out(root):
    areas = SBD("val", root).areas
    limit = int(np.sort(areas)[2])
    data = SBD("val", root, min_area=limit)
    assert data.areas.tolist() == areas[areas >= limit].tolist()
    assert [data[i].mask.sum() for i in range(len(data))] == data.areas.tolist()
    refused(DataError, lambda: SBD("val", root, min_area=10**6), root, "1000000", "`min_area`")


def test_small_objects_survive(root):
    labels = np.zeros((48, 64), np.uint8)
    labels[5, 6] = 1
    write_instances(labels, root / "inst" / "2008_000200.mat")
    save(draw_scene()[0], root / "img" / "2008_000200.jpg")
    assert SBD("val", root)[0].mask.sum() == 1
