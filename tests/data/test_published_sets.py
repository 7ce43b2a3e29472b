"""Conventions of the published data sets for masks, names and lists, and what is refused."""

import errno
import os
import pickle
import shutil
import tempfile
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from scipy.io import savemat

from probseg.data import (
    BSDS500,
    COCOLVIS,
    DAVIS,
    DAVIS585,
    SBD,
    Berkeley,
    COCOMVal,
    GrabCut,
    HQSeg44K,
    ImagePairs,
    OpenImages,
    PascalVOC,
)
from probseg.errors import DataError, DatasetNotFoundError, UnknownNameError
from support.drawn_sets import (
    as_png,
    write_coco_mval,
    write_cocolvis,
    write_davis,
    write_davis585,
    write_hqseg,
    write_open_images,
    write_pickle,
    write_voc,
    write_voc_labels,
)
from support.fakes import (
    draw_scene,
    save,
    with_band,
    write_berkeley,
    write_bsds500,
    write_grabcut,
    write_instances,
    write_sbd,
)
from support.refusals import refused
from support.rows import each


@pytest.mark.parametrize("second", ["189011a", "189011#2"])
def test_a_photograph_of_berkeley_may_be_there_once(tmp_path, second):
    root = write_berkeley(tmp_path)
    (root / "images" / "189011a.jpg").unlink()
    (root / "masks" / "189011a.png").rename(root / "masks" / f"{second}.png")
    for folder, suffix in (("images", ".jpg"), ("masks", ".png")):
        (root / folder / f"8023{suffix}").rename(root / folder / f"bear{suffix}")
    data = Berkeley(root)
    assert {image.name for image, mask in data.pairs if "189011" in mask.name} == {"189011.jpg"}
    assert {sample.name for sample in data} == {"189011", second, "bear"}
    assert data[2].photo == "bear"  # a letter after a digit alone is a number


def test_grey_values_and_colours_of_masks(tmp_path):
    labels = draw_scene(seed=0)[1]
    colours = np.repeat(labels[..., None] * 255, 3, axis=2)
    colours[labels > 0] = (255, 197, 243)
    write_berkeley(tmp_path)
    for mask in (labels * 255, colours):
        save(mask, tmp_path / "masks" / "8023.png")
        np.testing.assert_array_equal(Berkeley(tmp_path)[2].mask, labels)
    mask = np.full((48, 64), 128, np.uint8)
    mask[5:9, 5:9], mask[0, :3] = 255, (1, 128, 129)
    save(mask, write_coco_mval(tmp_path) / "gt" / "bear10_000000000285.png")
    np.testing.assert_array_equal(COCOMVal(tmp_path)[0].mask, mask > 128)
    root = write_davis585(tmp_path / "585")
    save(mask, root / "camel" / "object1_00000.png")
    save(np.repeat(mask[..., None], 3, axis=2), root / "camel" / "init_sp_object1_00000.png")
    save(draw_scene()[0], root / "camel" / "00027.jpg")  # a frame without masks
    for file in ("object{}_00009.png", "init_sp_object{}_00009.png"):
        shutil.copy(root / "bear" / file.format(1), root / "bear" / file.format(10))
    data = DAVIS585(root, "sp")
    names = [data.object_name(i) for i in range(3)]
    assert names == [f"bear/object{i}_00009" for i in (1, 2, 10)]
    np.testing.assert_array_equal(data[4].mask, mask > 128)
    np.testing.assert_array_equal(data[4].initial, mask > 128)


@each("name", ["bear10", "bear10_00000000028", "bear10_0000000002\uff18\uff15"])
def test_names_of_coco_mval_without_number(tmp_path, name):
    root = write_coco_mval(tmp_path)
    (root / "gt" / "bear10_000000000285.png").rename(root / "gt" / f"{name}.png")
    (root / "img" / "bear10_000000000285.jpg").rename(root / "img" / f"{name}.jpg")
    refused(DataError, lambda: COCOMVal(root), f"{name}.jpg", "twelve digits")


@given(hnp.arrays(np.uint8, (4, 5, 3), elements=st.sampled_from([0, 0, 1, 64, 128, 192, 255])))
def test_whatever_is_not_black_is_the_object_of_davis(tmp_path_factory, colours):
    root = write_davis(tmp_path_factory.mktemp("davis"), size=(4, 5))
    colours[0, 0, 1] = 128
    save(colours, root / "gt" / "001.png")
    np.testing.assert_array_equal(DAVIS(root)[1].mask, (colours != 0).any(axis=2))


def test_black_and_jpeg_masks_of_davis(tmp_path):
    root = write_davis(tmp_path)
    path = save(np.zeros((48, 64, 3), np.uint8), root / "gt" / "001.png")
    refused(DataError, lambda: DAVIS(root)[1], path, "black alone")
    save(draw_scene()[0], root / "x.jpg").rename(path)  # its black is not black
    refused(DataError, lambda: DAVIS(root)[1], path, "JPEG", "lossless")


@pytest.mark.parametrize(("initial", "axis"), [("stm", 1), ("sp", 0)])
def test_initial_masks_of_davis585(tmp_path, initial, axis):
    root = write_davis585(tmp_path)
    data = DAVIS585(root, initial)
    assert data.name == f"DAVIS585_{initial}"
    for sample in data:
        assert sample.dataset == data.name
        assert sample.initial.dtype == np.bool_
        np.testing.assert_array_equal(sample.initial, np.roll(sample.mask == 1, 3, axis=axis))
    path = save(draw_scene(9, 9)[1] * 255, root / "camel" / f"init_{initial}_object1_00000.png")
    refused(DataError, lambda: data[3], path, "9 x 9", "00000.jpg", "64 x 48")
    path.unlink()
    words = (root / "camel", f"['init_{initial}_object1_00000'] (1 in all)")
    refused(DataError, lambda: DAVIS585(root, initial), *words)
    assert len(DAVIS585(root)) == 4
    refused(UnknownNameError, lambda: DAVIS585(root, "zero"), "initial masks", "'zero'", "stm")


@each(
    ("mask", "got"),
    [
        (draw_scene()[1], "[0, 1]"),
        (np.zeros((48, 64), np.uint8), "[0]"),
        (draw_scene()[0][..., 0], ", ...]"),
        (with_band(draw_scene()[1], 64), "[0, 64, 255]"),
    ],
)
def test_masks_of_another_convention_than_grabcuts(tmp_path, mask, got):
    path = save(mask, write_grabcut(tmp_path) / "boundary_GT" / "llama.bmp")
    parts = ("0 (background)", "128 (ignored)", "255 (object)", *got.split(", ...]"))
    refused(DataError, lambda: GrabCut(tmp_path)[2], path, *parts)


@pytest.mark.parametrize(("scribbles", "pixels"), [("set1", 5), ("set2", 15)])
def test_scribbles(tmp_path, scribbles, pixels):
    data = GrabCut(write_grabcut(tmp_path), scribbles)
    for i, seed in enumerate((1, 0, 2)):  # Cross, banana, llama
        strokes = data[i].scribbles
        assert strokes.dtype == np.uint8
        assert strokes.shape == data[i].mask.shape
        assert (strokes[0] == 0).all()
        assert np.isin(strokes[1:], (1, 255)).all()
        assert (strokes == 1).sum() == pixels
        assert (draw_scene(seed=seed)[1][strokes == 1] == 1).all()


def test_missing_scribbles(tmp_path):
    root = write_grabcut(tmp_path)
    place = root / "scribbles_set2"
    (place / "banana.png").unlink()
    refused(DataError, lambda: GrabCut(root, "set2"), place, "no scribble", "banana")
    shutil.rmtree(place)
    words = (root, "scribbles_set2/<id>.png", "scribbles-set-2", "`scribbles`")
    refused(DatasetNotFoundError, lambda: GrabCut(root, "set2"), *words)
    refused(UnknownNameError, lambda: GrabCut(root, "set3"), "scribbles", "'set3'", "set1", "set2")
    assert len(GrabCut(root)) == 3


@each(
    ("strokes", "got"),
    [
        (np.zeros((48, 64), np.uint8), "[0]"),
        (draw_scene()[1], "[0, 1]"),
        (draw_scene(9, 9)[1] * 255, "9 x 9"),
    ],
)
def test_scribbles_that_cannot_be_used(tmp_path, strokes, got):
    root = write_grabcut(tmp_path)
    path = save(strokes, root / "scribbles_set1" / "llama.png")
    refused(DataError, lambda: GrabCut(root, "set1")[2], path, got)


@given(hnp.arrays(np.uint8, (6, 7), elements=st.sampled_from([0, 1, 2, 3, 16, 18, 254, 255])))
def test_numbers_are_told_apart_whatever_their_colours(tmp_path_factory, labels):
    root = write_voc(tmp_path_factory.mktemp("voc"), images=1, size=(6, 7))
    labels[0, :2] = (1, 16)  # their colours are equally bright
    write_voc_labels(labels, root / "SegmentationObject" / "2007_000200.png")
    found = {int(s.name.partition("#")[2]): s.mask for s in PascalVOC(root=root)}
    assert list(found) == sorted(set(labels.ravel().tolist()) - {0, 255})
    for number, mask in found.items():
        np.testing.assert_array_equal(mask, np.where(labels == 255, 255, labels == number))


def test_lists_and_labels_of_voc(tmp_path):
    root = write_voc(tmp_path)
    for split, photos in (("train", 3), ("val", 3), ("trainval", 6)):
        data = PascalVOC(split, root)
        assert (len(data), len({s.photo for s in data})) == (2 * photos, photos)
    path = root / "SegmentationObject" / "2007_000201.png"
    write_voc_labels(np.full((48, 64), 255, np.uint8), path)
    assert len(PascalVOC(root=root)) == 4  # the photograph has no object
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("2007_000201\n\n")
    refused(DataError, lambda: PascalVOC(root=root), root, "no object", "'val'")
    write_voc_labels(draw_scene()[1], path)
    Image.open(path).convert("RGB").save(path)
    refused(DataError, lambda: PascalVOC(root=root), path, "colours", "palette")


def test_lists_and_instances_of_sbd(tmp_path):
    root = write_sbd(tmp_path)
    for split, first, count in (("train", "2008_000100", 6), ("train_noval", "2008_000101", 4)):
        data = SBD(split, root)
        assert data.objects[0] == (first, 1)
        assert len(data) == count
    labels = draw_scene(objects=2)[1]
    labels = np.where(labels == 1, 7, 0).astype(np.uint8)
    labels[labels.nonzero()[0][0], 0] = 1  # one pixel is an object
    write_instances(labels, root / "inst/2008_000200.mat")
    write_instances(np.zeros((48, 64), np.uint8), root / "inst/2008_000201.mat")
    data = SBD("val", root)
    assert [number for _, number in data.objects] == [1, 7, 1, 2]
    assert data[0].mask.sum() == 1
    np.testing.assert_array_equal(data[1].mask, labels == 7)
    (root / "train.txt").write_text("\n")
    refused(DataError, lambda: SBD("train", root), root, "no object", "'train'")


@each(
    ("labels", "told"),
    [
        (np.full((48, 64), 256, np.uint16), "uint16"),
        (np.full((48, 64), -1, np.int8), "int8"),
        (np.full((48, 64), 1.5), "float64"),
        (np.ones((48, 64, 2), np.uint8), "(48, 64, 2)"),
        (np.ones((0, 0), np.uint8), "(0, 0)"),
        (None, "GTinst"),
    ],
)
def test_numbers_that_are_no_instances(tmp_path, labels, told):
    path = write_sbd(tmp_path) / "inst" / "2008_000201.mat"
    content = {"GTcls": 1} if labels is None else {"GTinst": {"Segmentation": labels}}
    savemat(path, content)
    refused(DataError, lambda: SBD("val", tmp_path), path, told)


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
        (([as_png(draw_scene(96, 128)[0])], PLACES), ["16 bits"]),
    ],
)
def test_strange_masks(root, content, parts):
    path = write_pickle(content, masks_of(root))
    refused(DataError, lambda: COCOLVIS("val", root), path, *parts)
