"""BSDS500, HQSeg-44K and Open Images, and pairs of images and masks in any two folders."""

import shutil

import numpy as np
import pytest
from PIL import Image

from probseg.data import BSDS500, HQSeg44K, ImagePairs, OpenImages
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError
from support.drawn_sets import write_hqseg, write_open_images
from support.fakes import draw_scene, save, write_bsds500
from support.refusals import refused
from support.rows import each

# --- BSDS500 ------------------------------------------------------------------------------------


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


# --- HQSeg-44K and pairs ------------------------------------------------------------------------


@pytest.mark.parametrize(
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
    for i, name in enumerate(names):
        sample = data[i]
        assert (sample.name, sample.photo, sample.dataset) == (name, name, "HQSeg44K")
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
    again = ImagePairs("im", "gt")
    assert again.name == "ImagePairs"
    assert again.areas.tolist() == data.areas.tolist()
    path = save(np.zeros((48, 64), np.uint8), folders[1] / "photo1.v1.png")
    refused(DataError, lambda: ImagePairs(*folders), path, "up to 0")


@pytest.mark.parametrize("gone", [0, 1])
def test_missing_folders_of_pairs(folders, gone):
    shutil.rmtree(folders[gone])
    refused(DatasetNotFoundError, lambda: ImagePairs(*folders, "mine"), "mine", folders[gone])
    folders[gone].mkdir()
    refused(DatasetNotFoundError, lambda: ImagePairs(*folders, "mine"), "mine", folders[gone])


# --- Open Images --------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (f"masks/2/{KEYS[0]}_m01g317_00000002.png", "cannot be read"),
        (f"images/{KEYS[1]}.jpg", "2 entries of OpenImages validation"),
    ],
)
def test_broken_files_of_open_images(tmp_path, file, words):
    path = write_open_images(tmp_path) / SPLIT / file
    path.write_bytes(b"?")
    refused(DataError, lambda: OpenImages(SPLIT, tmp_path), path, words)
