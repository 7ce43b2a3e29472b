"""Data sets for semantic segmentation: their layouts, and what their label numbers mean."""

import shutil

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from probseg.errors import DataError, DatasetNotFoundError
from probseg.semantic import (
    SEMANTIC_DATASETS,
    CamVid,
    COCOObjects,
    COCOStuff10k,
    COCOStuff164k,
    PascalContext,
    VOCSegmentation,
)
from support.drawn_semantic import (
    colour_of,
    write_camvid,
    write_coco_stuff10k,
    write_coco_stuff164k,
    write_pascal_context,
    write_voc_segmentation,
)
from support.fakes import save
from support.refusals import refused
from support.rows import each
from support.semantic_testers import SemanticSetTester


class TestCamVid(SemanticSetTester):
    kind = CamVid
    write = staticmethod(write_camvid)
    classes = 11
    places = ("camvid", "CamVid")
    strange = ([12, 255], "0..10 for the classes and 11 for ignored")


class TestVOC(SemanticSetTester):
    kind = VOCSegmentation
    write = staticmethod(write_voc_segmentation)
    classes = 21
    places = ("VOCdevkit/VOC2012", "VOC2012")
    strange = ([21, 254], "0..20 for the classes and 255 for ignored")


class TestPascalContext(SemanticSetTester):
    kind = PascalContext
    write = staticmethod(write_pascal_context)
    classes = 59
    places = ("VOCdevkit/VOC2010", "VOC2010", "PascalContext")
    strange = ([60, 254], "1..59 for the classes and 0, 255 for ignored")


class TestCOCOStuff10k(SemanticSetTester):
    kind = COCOStuff10k
    write = staticmethod(write_coco_stuff10k)
    classes = 171
    places = ("coco_stuff10k", "cocostuff-10k-v1.1", "COCOStuff10k")
    strange = ([12, 183, 255], "1..11, 13..25, 27..28, 31..44")
    splits = ("train", "test")


class TestCOCOStuff164k(SemanticSetTester):
    kind = COCOStuff164k
    write = staticmethod(write_coco_stuff164k)
    classes = 171
    places = ("coco_stuff164k", "COCOStuff164k")
    strange = ([11, 182], "0..10, 12..24, 26..27, 30..43")


class TestCOCOObjects(SemanticSetTester):
    kind = COCOObjects
    write = staticmethod(write_coco_stuff164k)
    classes = 21
    places = ("coco_stuff164k", "COCOStuff164k")
    strange = ([11, 182], "0..10, 12..24, 26..27, 30..43")

    def test_labels_are_the_classes_that_were_drawn(self, root):
        """Classes of both names in VOC's numbers, written out by the category numbers of COCO."""
        of_coco = [5, 2, 16, 9, 44, 6, 3, 17, 62, 21, 67, 18, 19, 4, 1, 64, 20, 63, 7, 72]
        samples = COCOObjects("train", root)
        numbers = np.resize(np.uint8([*COCOStuff164k.numbers, 255]), (36, 48))
        save(numbers, samples.pairs[0][1])
        wanted = np.where(numbers == 255, 255, 0)
        for label, category in enumerate(of_coco, start=1):
            wanted[numbers == category - 1] = label
        np.testing.assert_array_equal(samples[0].labels, wanted)
        assert len(samples.classes) == len(np.unique(wanted)) - 1


KINDS = [tester.kind for tester in SemanticSetTester.__subclasses__()]


def test_the_table():
    assert set(KINDS) == set(SEMANTIC_DATASETS.values())
    assert all(SEMANTIC_DATASETS[kind.name] is kind for kind in KINDS)


def test_the_two_versions_of_coco_stuff_count_from_different_numbers(tmp_path):
    """Category 1, a person, is 1 in 10k and 0 in 164k; 0 is unlabelled in 10k, 255 in 164k."""
    old = COCOStuff10k("train", write_coco_stuff10k(tmp_path / "10k"))
    new = COCOStuff164k("train", write_coco_stuff164k(tmp_path / "164k"))
    assert old.classes == new.classes
    rows = {  # category of the publication, its name
        1: "person", 11: "fire hydrant", 13: "stop sign", 25: "giraffe", 27: "backpack",
        28: "umbrella", 31: "handbag", 44: "bottle", 46: "wine glass", 65: "bed",
        67: "dining table", 70: "toilet", 72: "tv", 82: "refrigerator", 84: "book",
        90: "toothbrush", 92: "banner", 96: "building-other", 124: "grass", 149: "road",
        157: "sky-other", 169: "tree", 182: "wood",
    }  # fmt: skip
    categories = np.uint8([list(rows)])
    blank = colour_of(np.zeros((1, len(rows)), np.uint8))
    for data, numbers in ((old, categories), (new, categories - 1)):
        photo, path = data.pairs[0]
        save(blank, photo)
        if path.suffix == ".mat":
            savemat(path, {"S": numbers.astype(np.float64)})
        else:
            save(numbers, path)
        labels = data[0].labels
        assert [data.classes[label] for label in labels[0]] == list(rows.values())


@each(
    "field",
    [
        {"T": np.zeros((2, 2))},
        {"S": np.zeros((2, 2, 3), np.uint8)},
        {"S": np.full((2, 2), 300)},
        {"S": np.full((2, 2), 0.5)},
        {"S": np.full((2, 2), -1)},
    ],
)
def test_matlab_files_without_labels(tmp_path, field):
    data = COCOStuff10k("train", write_coco_stuff10k(tmp_path / "10k"))
    _, path = data.pairs[0]
    savemat(path, field)
    refused(DataError, lambda: data[0], path, "cannot be read as labels", "field S")


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_camvid_pairs_frames_of_both_kinds(tmp_path, suffix):
    root = write_camvid(tmp_path, suffix=suffix)
    names = [sample.name for split in ("train", "val") for sample in CamVid(split, root)]
    assert [sample.name for sample in CamVid("trainval", root)] == names
    assert len(set(names)) == 6
    save(np.zeros((36, 48), np.uint8), root / "valannot" / "stray.png")
    assert len(CamVid("train", root)) == 3
    refused(DataError, lambda: CamVid("val", root), root / "val", "stray", "valannot/")


@each(("split", "photos"), [("train", 3), ("val", 3), ("trainval", 6), ("trainaug", 6)])
def test_the_lists_of_voc_decide(tmp_path, split, photos):
    data = VOCSegmentation(split, write_voc_segmentation(tmp_path / "VOC2012"))
    assert len(data) == len({sample.name for sample in data}) == photos
    folder = "SegmentationClassAug" if split == "trainaug" else "SegmentationClass"
    assert {path.parent.name for _, path in data.pairs} == {folder}


@pytest.mark.parametrize("gone", ["SegmentationClassAug", "ImageSets/Segmentation/trainaug.txt"])
def test_trainaug_says_how_it_is_made(tmp_path, gone):
    root = write_voc_segmentation(tmp_path)
    shutil.rmtree(root / gone) if gone.endswith("Aug") else (root / gone).unlink()
    assert len(VOCSegmentation("train", root)) == 3
    refused(
        DatasetNotFoundError, lambda: VOCSegmentation("trainaug", root), root,
        "SegmentationClassAug/<id>.png", "ImageSets/Segmentation/trainaug.txt", "SBD", "train.txt",
        "without those of VOC's val.txt", "10582", "cls/<id>.mat",
    )  # fmt: skip


def test_an_empty_list_is_refused(tmp_path):
    root = write_voc_segmentation(tmp_path)
    path = root / "ImageSets" / "Segmentation" / "val.txt"
    path.write_text("\n")
    refused(DataError, lambda: VOCSegmentation("val", root), path, "is empty")


def test_palette_indices_are_the_classes_and_not_colours(tmp_path):
    data = VOCSegmentation("val", write_voc_segmentation(tmp_path))
    _, path = data.pairs[0]
    with Image.open(path) as picture:
        assert picture.mode == "P"
        picture.convert("RGB").save(path)
    refused(DataError, lambda: data[0], path, "colours")


def test_real_camvid(data_root):
    counts = {"train": 367, "val": 101, "test": 233, "trainval": 468}
    sets = {split: CamVid(split, data_root / "camvid") for split in counts}
    assert {split: len(data) for split, data in sets.items()} == counts
    seen = np.zeros(256, int)
    for split in ("train", "val", "test"):
        data = sets[split]
        for i in range(0, len(data), 20):
            sample = data[i]
            assert sample.image.shape == (360, 480, 3)
            seen += np.bincount(sample.labels.ravel(), minlength=256)
    assert set(np.flatnonzero(seen)) == {*range(11), 255}
    road, sky = (CamVid.classes.index(name) for name in ("road", "sky"))
    first = sets["train"][0].labels
    rows = [np.nonzero(first == number)[0].mean() for number in (sky, road)]
    assert rows[0] < 120 < 240 < rows[1]
