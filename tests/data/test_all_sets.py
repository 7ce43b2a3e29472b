"""All data sets of objects: layouts on disk, samples, indices, and errors of incomplete folders."""

import os
import pickle
import shutil

import numpy as np
import pytest

from probseg.data import (
    COCO,
    DATASETS,
    EVALUATION_SETS,
    COCOInstances,
    ImageMaskFolder,
    sample_photos,
)
from probseg.data.base import PublishedDataset
from probseg.data.published import PUBLISHED
from probseg.data.sample_photos import SamplePhotos, rasterise, read_outlines
from probseg.errors import DataError, DatasetNotFoundError
from support.drawn_sets import SETS, write_voc_labels
from support.fakes import draw_scene, save, write_instances
from support.refusals import refused
from support.rows import each


def drawn(name, root):
    """Write a data set and return its folder and a function that opens it."""
    SETS[name].write(root)
    return root, lambda **options: SETS[name].open(root, **options)


# What tests break in a drawn set: files and folders that have to be there, some of them together,
# and words of the error; files that are listed or needed, and words; where it reads what it keeps
# in an index, and a file of which that is made; a mask, its image, and how masks are written;
# folders of images and masks, and a stem that is in both; files beside one of the same stem; files
# that play no part.
OPEN_IMAGES_TABLE = "validation-annotations-object-segmentation.csv"
LAYOUTS = {
    "BSDS500": dict(
        parts=["images/val"],
        words=["images/val/<id>.jpg", "labels/val/<id>_a<k>.png"],
        listed=("labels/val/201_a*.png", ["201_a<k>.png", "201.jpg"]),
        index=("sets.bsds500.read_labels", "labels/val/200_a0.png"),
        mask=("labels/val/200_a0.png", "images/val/200.jpg", save),
        strays=["images/val/._200.jpg"],
    ),
    "Berkeley": dict(
        parts=["images", "masks"],
        words=["images/", "masks/", "Berkeley.zip"],
        mask=("masks/8023.png", "images/8023.jpg", save),
    ),
    "COCO": dict(
        listed=("images/2.jpg", ["2.jpg", "no such file", "1 missing", "all.json", "`images`"]),
        index=("sets.annotations._Reader", "all.json"),
    ),
    "COCOInstances": dict(
        parts=["annotations", "val2017"],
        words=["instances_", "cocodataset.org"],
        listed=("val2017/1.jpg", ["1.jpg", "no such file", "unpack val2017.zip"]),
    ),
    "COCOLVIS": dict(
        parts=["val/hannotation.pickle", "val/masks", "val/images"],
        words=["hannotation.pickle", "masks/<id>.pickle", "images/<id>.jpg", "cocolvis_annotation"],
        listed=("val/images/000000002000.jpg", ["000000002000.jpg", "1 in all"]),
        index=("sets.cocolvis.load_data", "val/hannotation.pickle"),
    ),
    "COCO_MVal": dict(
        parts=["img", "gt"],
        words=["img/", "gt/", "/COCO_MVal.zip"],
        mask=("gt/bear10_000000000285.png", "img/bear10_000000000285.jpg", save),
    ),
    "DAVIS": dict(
        parts=["img", "gt"],
        words=["img/", "gt/", "/DAVIS.zip"],
        mask=("gt/001.png", "img/001.JPG", save),
    ),
    "DAVIS585": dict(
        parts=["", "bear camel"],
        words=["object<n>_<frame>.png", "alibaba/ClickSEG"],
        listed=("bear/00009.jpg", ["['00009'] (1 in all)", "unpack"]),
        mask=("camel/object1_00000.png", "camel/00000.jpg", save),
        twins=["bear/00009.png"],
        strays=["bear/._00009.jpg"],
    ),
    "GrabCut": dict(
        parts=["data_GT", "boundary_GT"],
        words=["data_GT/", "boundary_GT/", "GrabCut.zip"],
        mask=("boundary_GT/llama.bmp", "data_GT/llama.bmp", save),
        pair=("data_GT", "boundary_GT", "Cross"),
        twins=["data_GT/banana.png", "boundary_GT/banana.png"],
        strays=["data_GT/._banana.jpg", "data_GT/Thumbs.db"],
    ),
    "ImageMaskFolder": dict(
        listed=("images/photo1.jpg", ["masks without an image: 2", "photo1_1.png"]),
        index=("folder.read_objects", "masks/photo1_1.png"),
        mask=("masks/photo1_1.png", "images/photo1.jpg", save),
        twins=["images/photo1.png", "masks/photo1_2.bmp"],
        strays=["masks/notes.txt"],
    ),
    "ImagePairs": dict(
        index=("folder.read_grey", "images/photo1.jpg"),
        mask=("masks/photo1.png", "images/photo1.jpg", save),
        pair=("images", "masks", "photo1"),
        twins=["images/photo1.png"],
    ),
    "LVIS": dict(
        parts=["lvis_v1_val.json", "train2017", "val2017"],
        words=["lvis_v1_val.json.zip", "train2017.zip"],
        listed=("val2017/000000002001.jpg", ["2001.jpg", "1 missing", "unpack val2017.zip"]),
        index=("sets.annotations._Reader", "lvis_v1_val.json"),
    ),
    "OpenImages": dict(
        parts=[
            "validation/validation-annotations-object-segmentation.csv",
            "validation/masks",
            "validation/images",
        ],
        words=[OPEN_IMAGES_TABLE, "validation/images/<ImageID>.jpg"],
        listed=("validation/masks/2/20a0a0a0a0a0a0a0_m01g317_00000002.png", ["no such file"]),
        index=(
            "sets.open_images.read_labels",
            "validation/validation-annotations-object-segmentation.csv",
        ),
    ),
    "PascalVOC": dict(
        parts=["JPEGImages", "SegmentationObject", "ImageSets/Segmentation/val.txt"],
        words=["JPEGImages/<id>.jpg", "SegmentationObject/<id>.png", "VOCtrainval_11-May-2012.tar"],
        listed=("SegmentationObject/2007_000201.png", ["000201.png", "val.txt", "unpack"]),
        mask=("SegmentationObject/2007_000200.png", "JPEGImages/2007_000200.jpg", write_voc_labels),
    ),
    "SBD": dict(
        parts=["img", "inst", "val.txt"],
        words=["img/<id>.jpg", "inst/<id>.mat", "val.txt", "benchmark.tgz"],
        listed=("inst/2008_000201.mat", ["2008_000201.mat", "no such file", "unpack"]),
        index=("sets.voc.load_mat", "inst/2008_000201.mat"),
        mask=("inst/2008_000200.mat", "img/2008_000200.jpg", write_instances),
    ),
}


def having(field):
    """Names of the sets that have it, and what it is."""
    rows = [(name, layout[field]) for name, layout in LAYOUTS.items() if field in layout]
    return pytest.mark.parametrize(("name", field), rows, ids=[name for name, _ in rows])


@pytest.mark.parametrize("name", SETS)
def test_samples(name, tmp_path):
    root, open_set = drawn(name, tmp_path / "set")
    data = open_set()
    assert type(data) is DATASETS[name]
    assert type(data).display_name({}) == data.name
    samples = [data[i] for i in range(len(data))]
    expected = SETS[name].objects
    names = [name for _, name, _, _ in expected]
    assert [(sample.photo, sample.name) for sample in samples] == [pair[:2] for pair in expected]
    for sample, (*_, image, mask) in zip(samples, expected, strict=True):
        assert sample.dataset == data.name
        assert sample.image.dtype == sample.mask.dtype == np.uint8
        assert abs(sample.image.astype(int) - image).mean() < 15  # lossy, but the same picture
        np.testing.assert_array_equal(sample.mask, mask)
        assert sample.initial is None
        assert sample.scribbles is None
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


@pytest.mark.parametrize("name", [name for name, drawn in SETS.items() if drawn.places])
def test_default_places(name, tmp_path, monkeypatch):
    places, write, open_set, objects = SETS[name]
    for number, folder in enumerate(places):
        monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / str(number)))
        write(tmp_path / str(number) / folder)
        assert len(open_set(None)) == len(objects)
    monkeypatch.delenv("PROBSEG_DATA")
    write(tmp_path / "data" / places[0])
    monkeypatch.chdir(tmp_path)
    assert len(open_set(None)) == len(objects)


@having("parts")
def test_missing_parts(name, parts, tmp_path):
    for number, part in enumerate(parts):
        root, open_set = drawn(name, tmp_path / str(number))
        for path in (root / piece for piece in part.split(" ")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        refused(
            DatasetNotFoundError, open_set,
            DATASETS[name].name, root, *LAYOUTS[name]["words"],
            "`root`", "PROBSEG_DATA",
        )  # fmt: skip


@having("listed")
def test_missing_files(name, listed, tmp_path):
    pattern, words = listed
    root, open_set = drawn(name, tmp_path)
    open_set()  # though there is an index
    for path in list(root.glob(pattern)):
        path.unlink()
    refused(DataError, open_set, root, *words)


@pytest.mark.parametrize(
    "name", ["COCO", "COCOInstances", "COCOLVIS", "ImageMaskFolder", "LVIS", "OpenImages", "SBD"]
)
def test_small_objects_are_left_out(name, tmp_path):
    open_set = drawn(name, tmp_path)[1]
    areas = open_set(min_area=0).areas
    limit = int(np.sort(areas)[2])
    data = open_set(min_area=limit)
    assert data.areas.tolist() == areas[areas >= limit].tolist()
    assert [(sample.mask == 1).sum() for sample in data] == data.areas.tolist()
    refused(DataError, lambda: open_set(min_area=10**6), tmp_path, "1000000", "min_area")


@having("index")
def test_an_index_is_kept_until_a_file_changes(name, index, tmp_path, monkeypatch):
    monkeypatch.delenv("PROBSEG_CACHE")
    reader, file = index
    root, open_set = drawn(name, tmp_path / "here")
    names = [open_set().object_name(i) for i in range(len(SETS[name].objects))]
    monkeypatch.setattr(f"probseg.data.{reader}", None)
    there = root.rename(tmp_path / "there")
    data = SETS[name].open(there)
    assert [data.object_name(i) for i in range(len(data))] == names
    state = (there / file).stat()
    os.utime(there / file, ns=(state.st_atime_ns, state.st_mtime_ns + 1000))
    with pytest.raises((TypeError, DataError), match="NoneType"):
        SETS[name].open(there)


@having("pair")
def test_files_without_partner(name, pair, tmp_path):
    images, masks, stem = pair
    for kind, gone, other in (("image", images, masks), ("mask", masks, images)):
        root, open_set = drawn(name, tmp_path / kind)
        (path,) = (root / gone).glob(f"{stem}.*")
        path.unlink()
        refused(DataError, open_set, root / gone, f"no {kind} for ['{stem}']", f"{other}/")


@having("twins")
def test_two_files_of_one_stem(name, twins, tmp_path):
    for number, twin in enumerate(twins):
        root, open_set = drawn(name, tmp_path / str(number))
        path = save(draw_scene()[1], root / twin)
        stem = path.name.partition(".")[0]
        refused(DataError, open_set, path.name, f"{stem}.", "same stem")


@having("mask")
def test_broken_files_and_masks_of_another_size(name, mask, tmp_path):
    mask, image, write = mask
    root, open_set = drawn(name, tmp_path / "size")
    labels = draw_scene(9, 8)[1]
    write(labels * 255 if write is save else labels, root / mask)
    refused(DataError, lambda: list(open_set()), root / mask, "8 x 9", root / image, "64 x 48")
    for number, file in enumerate((mask, image)):
        root, open_set = drawn(name, tmp_path / str(number))
        (root / file).write_bytes(b"?")
        refused(DataError, lambda o=open_set: list(o()), root / file, "cannot be read")


@each(
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


@having("strays")
def test_files_that_play_no_part(name, strays, tmp_path):
    root, open_set = drawn(name, tmp_path)
    for stray in strays:
        (root / stray).write_bytes(b"?")
    assert len(open_set()) == len(SETS[name].objects)


def test_the_tables_name_each_data_set_as_results_do():
    assert set(DATASETS) == {*SETS, "SamplePhotos"}
    assert set(LAYOUTS) <= set(SETS)
    assert set(EVALUATION_SETS) < set(PUBLISHED) < set(DATASETS)
    for name, kind in DATASETS.items():
        if kind not in (ImageMaskFolder, COCO, COCOInstances):  # which are named by their users
            assert name == kind.name
    assert {name for name, kind in DATASETS.items() if issubclass(kind, PublishedDataset)} == {
        *PUBLISHED
    }


def test_photographs_of_other_packages():
    data = SamplePhotos()
    samples = [data[i] for i in range(len(data))]
    masks = {s.name: s.mask for s in samples}
    assert len(masks) == len(samples) == sum(len(photo["objects"]) for photo in read_outlines())
    assert {"cat", "coffee/cup", "cameraman/tripod", "motorcycle"} <= set(masks)
    assert data[-1].name == samples[-1].name
    for index in (len(samples), -len(samples) - 1):
        with pytest.raises(IndexError):
            data[index]
    for s in samples:
        assert s.dataset == "SamplePhotos"
        assert s.name.startswith(s.photo)
        assert s.image.dtype == s.mask.dtype == np.uint8
        assert s.image.shape == (*s.mask.shape, 3)
        assert set(np.unique(s.mask)) == {0, 1}, s.name
        assert 0.002 < s.mask.mean() < 0.75, s.name
    cup, spoon, saucer = (masks[f"coffee/{n}"] for n in ("cup", "spoon", "saucer"))
    assert (cup + spoon + saucer).max() == 1  # objects in front are left out
    hat = masks["grace_hopper/hat"] == 1
    assert masks["grace_hopper/woman"][hat].mean() > 0.99  # but parts are not


def test_rasterise_unites_polygons_and_clears_holes():
    outline = {
        "name": "x",
        "polygons": [[1, 1, 6, 1, 6, 6, 1, 6], [4, 4, 9, 4, 9, 9, 4, 9]],
        "holes": [[2, 2, 2, 3, 3, 3, 3, 2]],
    }
    mask = rasterise(outline, (11, 12))
    expected = np.zeros((11, 12), np.uint8)
    expected[1:7, 1:7] = expected[4:10, 4:10] = 1
    expected[2:4, 2:4] = 0
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("package", ["skimage", "no_such_package_here"])
def test_missing_photo_names_the_file_and_the_way_out(monkeypatch, package):
    photo = {"name": "dog", "package": package, "file": "data/dog.png", "objects": []}
    monkeypatch.setattr(sample_photos, "read_outlines", lambda: [photo])
    with pytest.raises(DataError, match=r"dog\.png.*pip install"):
        SamplePhotos()
