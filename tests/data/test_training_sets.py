"""BSDS500, HQSeg-44K and Open Images, and pairs of images and masks in any two folders."""

import errno
import os
import pickle
import shutil
import tempfile
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from probseg.data import BSDS500, COCOLVIS, HQSeg44K, ImagePairs, OpenImages
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError
from support.drawn_sets import as_png, write_cocolvis, write_hqseg, write_open_images, write_pickle
from support.fakes import draw_scene, save, write_bsds500
from support.refusals import refused
from support.rows import each


def test_photographs_of_the_evaluation_sets_are_left_out(tmp_path):
    root = write_bsds500(tmp_path)
    for options, stems in (({}, {"101", "102"}), ({"exclude": None}, {"100", "101", "102"})):
        data = BSDS500("train", root, **options)
        assert {image.stem for image, _, _ in data.objects} == stems
    path = root / "splits" / "exclude_from_training.tsv"
    path.unlink()
    refused(DataError, lambda: BSDS500("train", root), path, "exclude=None", "GrabCut")


def test_regions_are_chosen_by_size(tmp_path):
    root = write_bsds500(tmp_path)
    for least, most, numbers in ((0, 1, {1, 2, 3}), (0.5, 1, {1}), (0.005, 0.5, {2, 3})):
        data = BSDS500("val", root, min_fraction=least, max_fraction=most)
        assert {number for _, _, number in data.objects} == numbers
    refused(DataError, lambda: BSDS500("val", root, min_fraction=0.99), root, "'val'", "selection")
    labels = draw_scene(objects=2)[1]  # 0 is unlabelled, and no region
    save(labels, root / "labels" / "val" / "200_a0.png")
    data = BSDS500("val", root, min_fraction=0, max_fraction=1)
    own = {number for _, path, number in data.objects if path.stem == "200_a0"}
    assert own == {1, 2}


@each(
    ("split", "parts"),
    [
        (
            "train",
            ["DIS5K-TR", "ThinObject5K-TR", "fss_all", "DUTS-TR", "DUTS-TE", "ecssd", "MSRA_10K"],
        ),
        ("val", ["DIS5K-VD", "COIFT", "HRSOD", "ThinObject5K-TE"]),
    ],
)
def test_a_split_has_all_its_parts(tmp_path, split, parts):
    data = HQSeg44K(split, write_hqseg(tmp_path, images=2))
    names = [f"{part}/1#Bag#{i}_o" for part in parts for i in range(2)]
    assert [data.object_name(i) for i in range(len(data))] == names
    for i, sample in enumerate(data):
        assert (sample.name, sample.photo, sample.dataset) == (names[i], names[i], "HQSeg44K")
        np.testing.assert_array_equal(sample.mask, draw_scene(seed=i % 2)[1])
    assert data.areas.tolist() == [sample.mask.sum() for sample in data]


def test_parts_can_be_chosen(tmp_path):
    root = write_hqseg(tmp_path)
    shutil.rmtree(root / "DIS5K")
    data = HQSeg44K("val", root, parts=["HRSOD", "COIFT"])
    assert [data.object_name(i).split("/")[0] for i in range(2)] == ["HRSOD", "COIFT"]
    words = ("DIS5K/DIS-VD/im", "`parts`", root)
    refused(DatasetNotFoundError, lambda: HQSeg44K("val", root), *words)
    for parts, word in ((["HRSD"], "'HRSOD'"), ([], "part of HQSeg44K val")):
        refused(UnknownNameError, lambda p=parts: HQSeg44K("val", root, p), word)
    refused(UnknownNameError, lambda: HQSeg44K("test", root), "'test'", "split")


@pytest.fixture
def folders(tmp_path):
    for i in range(3):
        image, labels = draw_scene(seed=i)
        save(image, tmp_path / "im" / f"photo{i}.v1.png")
        save(labels * 255, tmp_path / "gt" / f"photo{i}.v1.png")
    return tmp_path / "im", tmp_path / "gt"


def test_pairs_of_any_folders(folders, monkeypatch):
    data = ImagePairs(*folders, name="mine")
    assert [sample.name for sample in data] == [f"photo{i}.v1" for i in range(3)]
    assert {sample.dataset for sample in data} == {"mine"}
    monkeypatch.setenv("PROBSEG_DATA", str(folders[0].parent))
    assert ImagePairs("im", "gt").areas.tolist() == data.areas.tolist()
    path = save(np.zeros((48, 64), np.uint8), folders[1] / "photo1.v1.png")
    refused(DataError, lambda: ImagePairs(*folders), path, "up to 0")
    for folder in folders[::-1]:
        shutil.rmtree(folder)
        refused(DatasetNotFoundError, lambda: ImagePairs(*folders, "mine"), "mine", folder)
        folder.mkdir()
        refused(DatasetNotFoundError, lambda: ImagePairs(*folders, "mine"), "mine", folder)


SPLIT = "validation"
KEYS = [f"2{i}" + 7 * "a0" for i in range(3)]
LIST = f"{SPLIT}/{SPLIT}-annotations-object-segmentation.csv"


@each("size", [(97, 128), (31, 42), (200, 267)])
def test_nearly_the_same_proportions_will_do(tmp_path, size):
    root = write_open_images(tmp_path)
    expected = draw_scene(96, 128, 2, seed=1)[1] == 1
    mask = Image.fromarray(expected).resize(size[::-1])
    mask.save(root / SPLIT / "masks" / f"{KEYS[1]}_m01g317_00000001.png")
    sample = OpenImages(SPLIT, root)[2]
    assert sample.mask.shape == (96, 128)
    assert (sample.mask != expected).mean() < 0.03


def test_masks_of_other_proportions_are_left_out(tmp_path, caplog):
    root = write_open_images(tmp_path)
    names = [f"{KEYS[1]}_m01g317_0000000{n}" for n in (1, 2)]
    for name in names:  # of a photograph that was turned, for instance
        save(np.full((128, 96), 255, np.uint8), root / SPLIT / "masks" / f"{name}.png")
    (root / LIST).rename(root / (root / LIST).name)  # where it may be, too
    data = OpenImages(SPLIT, root, min_area=0)
    assert [data[i].photo for i in range(4)] == [KEYS[0], KEYS[0], KEYS[2], KEYS[2]]
    assert len(data) == 4
    (message,) = caplog.messages
    assert "2 masks of OpenImages validation are left out" in message
    assert f"{names[0]}.png" in message
    OpenImages(SPLIT, root)
    assert len(caplog.messages) == 1, "only when the masks are read"
    path = save(draw_scene(128, 96)[0], root / SPLIT / "images" / f"{KEYS[0]}.jpg")
    refused(DataError, lambda: data[0], path, "96 x 128", f"{KEYS[0]}_m01g317_00000001.png")


@each(
    "text",
    [
        "", "MaskPath,ImageID\n", "a,b\nc,d\n", "MaskPath,ImageID\nonly\n",
        "MaskPath,ImageID\n../../etc/secret.png,a\n", "MaskPath,ImageID\na.png,..\n",
        "MaskPath,ImageID\n\xff.png,a\n",
    ],
)  # fmt: skip
def test_strange_lists(tmp_path, text):
    path = write_open_images(tmp_path) / LIST
    path.write_bytes(text.encode("latin1"))
    refused(DataError, lambda: OpenImages(SPLIT, tmp_path), path)


FIRST = "000000002000"


@pytest.fixture
def root(tmp_path):
    return write_cocolvis(tmp_path / "COCOLVIS")


def masks_of(root, name=FIRST):
    return root / "val" / "masks" / f"{name}.pickle"


def test_files_of_cocolvis_that_change_or_are_missing(root):
    data = COCOLVIS("val", root)
    path = save(draw_scene(20, 30)[0], root / "val" / "images" / f"{FIRST}.jpg")
    refused(DataError, lambda: data[0], path, masks_of(root), "30 x 20", "128 x 96")
    layers, places = pickle.loads(masks_of(root, "000000002001").read_bytes())
    write_pickle((layers, [(0, 77), *places[1:]]), masks_of(root, "000000002001"))
    path.unlink()  # which is noticed before the masks are read
    masks_of(root).unlink()
    os.utime(root / "val" / "masks", (0, 0))
    refused(DataError, lambda: COCOLVIS("val", root), root / "val" / "images", FIRST, "1 in all")
    save(draw_scene(96, 128)[0], path)
    refused(DataError, lambda: COCOLVIS("val", root), masks_of(root), "no such file", "unpack")
    shutil.copy(masks_of(root, "000000002002"), masks_of(root))
    names = [COCOLVIS("val", root, min_area=0).object_name(i) for i in (3, 4)]
    assert names == ["000000002001#1", "000000002001#2"]  # the first has no pixel


def test_no_room_for_the_layers(root, monkeypatch, tmp_path):
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path))

    class Full(BytesIO):
        def writelines(self, lines):
            raise OSError(errno.ENOSPC, "No space left on device")

    for opened in (lambda dir: Full(), lambda dir: Full().writelines([])):
        monkeypatch.setattr(tempfile, "TemporaryFile", opened)
        words = (tmp_path, "No space left", "PROBSEG_CACHE")
        refused(DataError, lambda: COCOLVIS("val", root), *words)


@pytest.mark.parametrize("place", ["hannotation.pickle", f"masks/{FIRST}.pickle"])
def test_malicious_pickles_run_nothing(root, tmp_path, place):
    class Malicious:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'executed'}",)

    path = write_pickle(Malicious(), root / "val" / place)
    refused(DataError, lambda: COCOLVIS("val", root), path, "asks for posix.system", "malicious")
    assert not (tmp_path / "executed").exists()


@each(
    "content",
    [
        [], {}, {"a": None}, {"a": {"num_instance_masks": 1}}, {5: {}},
        {"a": {"num_instance_masks": 1, "hierarchy": {1: None}}},
        {"a": {"num_instance_masks": "x", "hierarchy": {}}},
        {"../../secret": {"num_instance_masks": 0, "hierarchy": {}}},
        {"..": {"num_instance_masks": 0, "hierarchy": {}}},
    ],
)  # fmt: skip
def test_strange_annotations(root, content):
    path = write_pickle(content, root / "val" / "hannotation.pickle")
    refused(DataError, lambda: COCOLVIS("val", root), path)


LAYER = as_png(draw_scene(96, 128)[1])
PLACES = [(0, 1)] * 4


def huge(layer):
    """The same PNG file with a header that promises 30000 x 30000 pixels."""
    content = bytearray(layer.tobytes())
    content[16:24] = 2 * (30_000).to_bytes(4, "big")
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return np.frombuffer(bytes(content), np.uint8)


def sharing(levels):
    """A list that holds the one before twice: a small file, and 2 ** levels numbers."""
    inner = [1, 1]
    for _ in range(levels):
        inner = [inner, inner]
    return inner


@each(
    ("content", "parts"),
    [
        (None, []),
        (([LAYER], PLACES[:3]), ["at least 4 objects", "got 3"]),
        (([LAYER], [*PLACES[:3], (1, 1)]), ["(1, 1)", "1 layers"]),
        (([LAYER], [*PLACES[:3], (-1, 1)]), ["(-1, 1)"]),
        (([LAYER], [*PLACES[:3], (0, 256)]), ["(0, 256)"]),
        (([LAYER], [*PLACES[:3], (0, 0)]), ["(0, 0)"]),
        (([LAYER], [1, 2, 3, 4]), ["cannot be read"]),
        (([LAYER.astype(np.int64)], PLACES), ["PNG"]),
        (([[1, 2]], PLACES), ["PNG"]),
        (([sharing(40)], PLACES), ["PNG"]),
        (([LAYER[9:]], PLACES), ["not a PNG"]),
        (([LAYER[:-30]], PLACES), ["cannot be read as an image"]),
        (([huge(LAYER)], PLACES), ["30000 x 30000", "128 x 96"]),
        (([as_png(draw_scene(48, 64)[1])], PLACES), ["64 x 48", "128 x 96"]),
        (([as_png(draw_scene(96, 128)[0])], PLACES), ["several channels"]),
    ],
)
def test_strange_masks(root, content, parts):
    path = write_pickle(content, masks_of(root))
    refused(DataError, lambda: COCOLVIS("val", root), path, *parts)
