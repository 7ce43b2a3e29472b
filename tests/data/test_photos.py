"""What all data sets have in common: objects name their photograph, and tables find them."""

from collections import Counter

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
)
from fakes import (
    write_berkeley,
    write_bsds500,
    write_folder,
    write_grabcut,
    write_lvis,
    write_sbd,
)

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
    OpenImages,
    PascalVOC,
    SamplePhotos,
)


def coco_instances(root, count):
    write_coco(root / "annotations" / "instances_val2017.json", root / "val2017", count)
    return COCOInstances("val", root, min_area=0)


DRAWN = {
    "BSDS500": (lambda root: BSDS500("val", write_bsds500(root)), {"200": 4, "201": 4, "202": 4}),
    "Berkeley": (lambda root: Berkeley(write_berkeley(root)), {"189011": 2, "8023": 1}),
    "COCO": (
        lambda root: COCO(write_coco(root / "all.json", root / "images"), root / "images"),
        {"1": 2, "2": 2, "3": 2},
    ),
    "COCOInstances": (
        lambda root: coco_instances(root, count=2),
        {"1": 2, "2": 2},
    ),
    "COCO_MVal": (
        lambda root: COCOMVal(write_coco_mval(root)),
        {"000000000285": 1, "000000000139": 2},
    ),
    "DAVIS": (lambda root: DAVIS(write_davis(root)), {"000": 1, "001": 1, "002": 1}),
    "DAVIS585": (
        lambda root: DAVIS585(write_davis585(root)),
        {"bear": 3, "camel": 1},
    ),
    "GrabCut": (lambda root: GrabCut(write_grabcut(root)), {"Cross": 1, "banana": 1, "llama": 1}),
    "ImageMaskFolder": (
        lambda root: ImageMaskFolder(write_folder(root, images=2, objects=2, style="files")),
        {"photo0": 2, "photo1": 2},
    ),
    "HQSeg44K": (
        lambda root: HQSeg44K("val", write_hqseg(root), ["COIFT", "HRSOD"]),
        {"COIFT/1#Bag#0_o": 1, "HRSOD/1#Bag#0_o": 1},
    ),
    "ImagePairs": (
        lambda root: ImagePairs(
            write_folder(root, images=2, style="black_and_white") / "images", root / "masks"
        ),
        {"photo0": 1, "photo1": 1},
    ),
    "OpenImages": (
        lambda root: OpenImages("validation", write_open_images(root)),
        {f"2{i}{7 * 'a0'}": 2 for i in range(3)},
    ),
    "COCOLVIS": (
        lambda root: COCOLVIS("val", write_cocolvis(root)),
        {f"{key:012d}": 3 for key in (2000, 2001, 2002)},
    ),
    "LVIS": (
        lambda root: LVIS("val", write_lvis(root, size=(96, 128))),
        {f"{key:012d}": 2 for key in (2000, 2001, 2002)},
    ),
    "PascalVOC": (
        lambda root: PascalVOC(root=write_voc(root)),
        {f"2007_00020{i}": 2 for i in range(3)},
    ),
    "SBD": (lambda root: SBD("val", write_sbd(root)), {f"2008_00020{i}": 2 for i in range(3)}),
}


@pytest.mark.parametrize("name", DRAWN)
def test_objects_name_their_photograph(name, tmp_path):
    make, expected = DRAWN[name]
    data = make(tmp_path)
    assert type(data) is DATASETS[name]
    assert Counter(data[i].photo for i in range(len(data))) == expected
    assert len({data[i].name for i in range(len(data))}) == len(data)


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
    assert set(DATASETS) == {*DRAWN, "SamplePhotos"}
    assert set(EVALUATION_SETS) < set(DATASETS)
    for name, kind in DATASETS.items():
        if kind not in (ImageMaskFolder, COCO, COCOInstances):  # which are named by their users
            assert name == kind.name
    for name, kind in EVALUATION_SETS.items():
        assert DATASETS[name] is kind
