"""All data sets of objects: layout on disk, names, areas, and errors of incomplete folders."""

import pickle
import shutil
from collections import Counter

import numpy as np
import pytest
from drawn_sets import (
    write_coco,
    write_coco_mval,
    write_cocolvis,
    write_davis,
    write_davis585,
    write_hqseg,
    write_open_images,
    write_voc,
    write_voc_labels,
)
from fakes import (
    draw_scene,
    save,
    write_berkeley,
    write_bsds500,
    write_folder,
    write_grabcut,
    write_instances,
    write_lvis,
    write_sbd,
)
from refusals import refused

from probseg.data import (
    BSDS500,
    COCO,
    COCOLVIS,
    DATASETS,
    DAVIS,
    DAVIS585,
    EVALUATION_SETS,
    LVIS,
    SBD,
    Berkeley,
    COCOInstances,
    COCOMVal,
    GrabCut,
    HQSeg44K,
    ImageMaskFolder,
    ImagePairs,
    InteractiveDataModule,
    OpenImages,
    PascalVOC,
    SamplePhotos,
)
from probseg.errors import DataError, DatasetNotFoundError


def write_pairs(root):
    write_folder(root, images=2, style="black_and_white")


def write_all_coco(root):
    write_coco(root / "all.json", root / "images")


def write_coco_val(root):
    write_coco(root / "annotations" / "instances_val2017.json", root / "val2017", 2)


# How each set is drawn and opened, and the number of objects of each photograph.
SETS = {
    "BSDS500": (
        write_bsds500, lambda root: BSDS500("val", root), {"200": 4, "201": 4, "202": 4}
    ),
    "Berkeley": (write_berkeley, Berkeley, {"189011": 2, "8023": 1}),
    "COCO": (
        write_all_coco, lambda root: COCO(root / "all.json", root / "images"),
        {"1": 2, "2": 2, "3": 2},
    ),
    "COCOInstances": (
        write_coco_val, lambda root: COCOInstances("val", root, min_area=0), {"1": 2, "2": 2}
    ),
    "COCOLVIS": (
        write_cocolvis, lambda root: COCOLVIS("val", root),
        {f"{key:012d}": 3 for key in (2000, 2001, 2002)},
    ),
    "COCO_MVal": (write_coco_mval, COCOMVal, {"000000000285": 1, "000000000139": 2}),
    "DAVIS": (write_davis, DAVIS, {"000": 1, "001": 1, "002": 1}),
    "DAVIS585": (write_davis585, DAVIS585, {"bear": 3, "camel": 1}),
    "GrabCut": (write_grabcut, GrabCut, {"Cross": 1, "banana": 1, "llama": 1}),
    "HQSeg44K": (
        write_hqseg, lambda root: HQSeg44K("val", root, ["COIFT", "HRSOD"]),
        {"COIFT/1#Bag#0_o": 1, "HRSOD/1#Bag#0_o": 1},
    ),
    "ImageMaskFolder": (
        lambda root: write_folder(root, images=2, objects=2, style="files"), ImageMaskFolder,
        {"photo0": 2, "photo1": 2},
    ),
    "ImagePairs": (
        write_pairs, lambda root: ImagePairs(root / "images", root / "masks"),
        {"photo0": 1, "photo1": 1},
    ),
    "LVIS": (
        write_lvis, lambda root: LVIS("val", root, min_area=50),
        {f"{key:012d}": 2 for key in (2000, 2001, 2002)},
    ),
    "OpenImages": (
        write_open_images, lambda root: OpenImages("validation", root),
        {f"2{i}{7 * 'a0'}": 2 for i in range(3)},
    ),
    "PascalVOC": (
        write_voc, lambda root: PascalVOC(root=root), {f"2007_00020{i}": 2 for i in range(3)}
    ),
    "SBD": (write_sbd, lambda root: SBD("val", root), {f"2008_00020{i}": 2 for i in range(3)}),
}  # fmt: skip


def drawn(name, root):
    """Write a data set and return its folder and a function that opens it."""
    write, open_set, _ = SETS[name]
    write(root)
    return root, lambda: open_set(root)


@pytest.mark.parametrize("name", SETS)
def test_samples(name, tmp_path):
    root, open_set = drawn(name, tmp_path / "set")
    data = open_set()
    assert type(data) is DATASETS[name]
    samples = [data[i] for i in range(len(data))]
    assert Counter(sample.photo for sample in samples) == SETS[name][2]
    names = [sample.name for sample in samples]
    assert len(set(names)) == len(names)
    for sample in samples:
        assert sample.dataset == data.name
        assert sample.image.dtype == sample.mask.dtype == np.uint8
        assert sample.image.shape == (*sample.mask.shape, 3)
        assert {1} <= set(np.unique(sample.mask)) <= {0, 1, 255}
    assert data[-1].name == names[-1]
    for index in (len(data), -len(data) - 1):
        with pytest.raises(IndexError):
            data[index]
    again = pickle.loads(pickle.dumps(data))
    np.testing.assert_array_equal(again[1].mask, samples[1].mask)
    shutil.rmtree(root)  # names and areas are known without the files
    assert [data.object_name(i) for i in range(len(data))] == names
    if data.areas is not None:
        assert data.areas.dtype == np.int64
        assert data.areas.tolist() == [(sample.mask == 1).sum() for sample in samples]


@pytest.mark.parametrize("name", SETS)
def test_training_batches(name, tmp_path):
    data = drawn(name, tmp_path)[1]()
    module = InteractiveDataModule(train=data, batch_size=2, crop_size=32, num_workers=0)
    batches = list(module.train_dataloader())
    assert len(batches) == len(data) // 2
    for batch in batches:
        assert batch.images.shape == (2, 3, 32, 32)
        assert (batch.masks == 1).any(dim=(1, 2)).all()


PLACES = {
    "BSDS500": ["bsds500"],
    "Berkeley": ["Berkeley", "berkeley"],
    "COCOInstances": ["COCO"],
    "COCOLVIS": ["COCOLVIS", "cocolvis", "LVIS"],
    "COCO_MVal": ["COCO_MVal", "coco_mval"],
    "DAVIS": ["DAVIS", "davis", "DAVIS345"],
    "DAVIS585": ["DAVIS585", "DAVIS-585", "davis585"],
    "GrabCut": ["GrabCut", "grabcut"],
    "HQSeg44K": ["HQSeg44K", "HQSeg-44K", "sam-hq"],
    "LVIS": ["LVIS", "lvis"],
    "OpenImages": ["OpenImages", "open_images"],
    "PascalVOC": ["VOCdevkit/VOC2012", "VOC2012", "PascalVOC"],
    "SBD": ["SBD", "sbd", "sbd/benchmark_RELEASE/dataset"],
}


@pytest.mark.parametrize("name", PLACES)
def test_default_places(name, tmp_path, monkeypatch):
    write, open_set, photos = SETS[name]
    for number, folder in enumerate(PLACES[name]):
        monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / str(number)))
        write(tmp_path / str(number) / folder)
        assert len(open_set(None)) == sum(photos.values())
    monkeypatch.delenv("PROBSEG_DATA")
    write(tmp_path / "data" / PLACES[name][0])
    monkeypatch.chdir(tmp_path)
    assert len(open_set(None)) == sum(photos.values())


# Files and folders that have to be there, and words of the error where one of them is not.
PARTS = {
    "BSDS500": (["images/val"], ["images/val/<id>.jpg", "labels/val/<id>_a<k>.png"]),
    "Berkeley": (["images", "masks"], ["images/", "masks/", "Berkeley.zip"]),
    "COCOInstances": (["annotations", "val2017"], ["instances_", "cocodataset.org"]),
    "COCOLVIS": (
        ["val/hannotation.pickle", "val/masks", "val/images"],
        ["hannotation.pickle", "masks/<id>.pickle", "images/<id>.jpg", "cocolvis_annotation"],
    ),
    "COCO_MVal": (["img", "gt"], ["img/", "gt/", "/COCO_MVal.zip"]),
    "DAVIS": (["img", "gt"], ["img/", "gt/", "/DAVIS.zip"]),
    "DAVIS585": (["", "bear camel"], ["object<n>_<frame>.png", "alibaba/ClickSEG"]),
    "GrabCut": (["data_GT", "boundary_GT"], ["data_GT/", "boundary_GT/", "GrabCut.zip"]),
    "LVIS": (
        ["lvis_v1_val.json", "train2017", "val2017"], ["lvis_v1_val.json.zip", "train2017.zip"]
    ),
    "OpenImages": (
        [
            "validation/validation-annotations-object-segmentation.csv",
            "validation/masks",
            "validation/images",
        ],
        ["validation-annotations-object-segmentation.csv", "validation/images/<ImageID>.jpg"],
    ),
    "PascalVOC": (
        ["JPEGImages", "SegmentationObject", "ImageSets/Segmentation/val.txt"],
        ["JPEGImages/<id>.jpg", "SegmentationObject/<id>.png", "VOCtrainval_11-May-2012.tar"],
    ),
    "SBD": (
        ["img", "inst", "val.txt"], ["img/<id>.jpg", "inst/<id>.mat", "val.txt", "benchmark.tgz"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_missing_parts(name, tmp_path):
    parts, words = PARTS[name]
    for number, part in enumerate(parts):
        root, open_set = drawn(name, tmp_path / str(number))
        for path in (root / piece for piece in part.split(" ")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        refused(
            DatasetNotFoundError, open_set,
            DATASETS[name].name, root, *words, "`root`", "PROBSEG_DATA",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "images", "masks", "stem"),
    [
        ("Berkeley", "images", "masks", "8023"),
        ("COCO_MVal", "img", "gt", "bear10_000000000285"),
        ("DAVIS", "img", "gt", "001"),
        ("GrabCut", "data_GT", "boundary_GT", "Cross"),
        ("ImagePairs", "images", "masks", "photo1"),
    ],
)
def test_files_without_partner(name, images, masks, stem, tmp_path):
    for kind, gone, other in (("image", images, masks), ("mask", masks, images)):
        root, open_set = drawn(name, tmp_path / kind)
        (path,) = (root / gone).glob(f"{stem}.*")
        path.unlink()
        refused(DataError, open_set, root / gone, f"no {kind} for ['{stem}']", f"{other}/")


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("Berkeley", "masks/8023.bmp"),
        ("DAVIS585", "bear/00009.png"),
        ("GrabCut", "data_GT/banana.png"),
        ("GrabCut", "boundary_GT/banana.png"),
        ("ImageMaskFolder", "images/photo1.png"),
        ("ImageMaskFolder", "masks/photo1_2.bmp"),
        ("ImagePairs", "images/photo1.png"),
    ],
)
def test_two_files_of_one_stem(name, twin, tmp_path):
    root, open_set = drawn(name, tmp_path)
    stem = twin.rpartition("/")[2].partition(".")[0]
    refused(DataError, open_set, save(draw_scene()[1], root / twin), f"{stem}.", "same stem")


@pytest.mark.parametrize(
    ("name", "file", "image", "write"),
    [
        ("BSDS500", "labels/val/200_a0.png", "200.jpg", save),
        ("Berkeley", "masks/8023.png", "8023.jpg", save),
        ("COCO_MVal", "gt/bear10_000000000285.png", "285.jpg", save),
        ("DAVIS", "gt/001.png", "001.JPG", save),
        ("DAVIS585", "camel/object1_00000.png", "00000.jpg", save),
        ("GrabCut", "boundary_GT/llama.bmp", "llama.bmp", save),
        ("ImageMaskFolder", "masks/photo1_1.png", "photo1.jpg", save),
        ("ImagePairs", "masks/photo1.png", "photo1.jpg", save),
        ("PascalVOC", "SegmentationObject/2007_000200.png", "000200.jpg", write_voc_labels),
        ("SBD", "inst/2008_000200.mat", "2008_000200.jpg", write_instances),
    ],
)
def test_masks_of_another_size(name, file, image, write, tmp_path):
    root, open_set = drawn(name, tmp_path)
    labels = draw_scene(9, 8)[1]
    path = write(labels * 255 if write is save else labels, root / file)
    refused(DataError, lambda: list(open_set()), path, "8 x 9", image, "64 x 48")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Berkeley", "masks/8023.png"),
        ("COCO_MVal", "gt/bear10_000000000285.png"),
        ("DAVIS585", "camel/object1_00000.png"),
    ],
)
def test_masks_of_0_and_1_where_255_is_the_object(name, file, tmp_path):
    root, open_set = drawn(name, tmp_path)
    path = save(draw_scene()[1], root / file)
    refused(DataError, lambda: list(open_set()), path, "255", "up to 1;", "ImageMaskFolder")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("BSDS500", "images/val/._200.jpg"),
        ("DAVIS585", "bear/._00009.jpg"),
        ("GrabCut", "data_GT/._banana.jpg"),
        ("GrabCut", "data_GT/Thumbs.db"),
        ("ImageMaskFolder", "masks/notes.txt"),
    ],
)
def test_files_that_play_no_part(name, file, tmp_path):
    root, open_set = drawn(name, tmp_path)
    (root / file).write_bytes(b"?")
    assert len(open_set()) == sum(SETS[name][2].values())


def test_photographs_that_are_installed():
    photos = {
        sample.photo for sample in map(SamplePhotos().__getitem__, range(len(SamplePhotos())))
    }
    assert {"coffee", "cat", "cameraman"} <= photos
    assert not any("/" in photo for photo in photos)


def test_names_that_begin_with_a_letter_keep_it(tmp_path):
    root = write_berkeley(tmp_path)
    for folder, suffix in (("images", ".jpg"), ("masks", ".png")):
        (root / folder / f"8023{suffix}").rename(root / folder / f"bear{suffix}")
    assert [sample.photo for sample in Berkeley(root)] == ["189011", "189011", "bear"]


def test_the_tables_name_each_data_set_as_results_do():
    assert set(DATASETS) == {*SETS, "SamplePhotos"}
    assert set(EVALUATION_SETS) < set(DATASETS)
    for name, kind in DATASETS.items():
        if kind not in (ImageMaskFolder, COCO, COCOInstances):  # which are named by their users
            assert name == kind.name
    for name, kind in EVALUATION_SETS.items():
        assert DATASETS[name] is kind
