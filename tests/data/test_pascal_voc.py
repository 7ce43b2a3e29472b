"""PASCAL VOC 2012: palette indices are objects, 255 is void."""

import numpy as np
import pytest
from drawn_sets import voc_labels, write_voc, write_voc_labels
from fakes import draw_scene, save
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from refusals import refused

from probseg.data import DATASETS, PascalVOC
from probseg.errors import DataError


@pytest.fixture
def root(tmp_path):
    return write_voc(tmp_path / "VOC2012")


def test_every_instance_is_an_object(root):
    data = PascalVOC(root=root)
    assert DATASETS[PascalVOC.name] is PascalVOC
    assert len(data) == 3 * 2
    assert [(s.photo, s.name) for s in data][:3] == [
        ("2007_000200", "2007_000200#1"),
        ("2007_000200", "2007_000200#2"),
        ("2007_000201", "2007_000201#1"),
    ]
    for i, sample in enumerate(data):
        assert sample.dataset == "PascalVOC"
        assert sample.mask.dtype == np.uint8
        assert sample.image.shape == (48, 64, 3)
        labels = voc_labels(draw_scene(objects=2, seed=3 + i // 2)[1])
        assert {1, 2, 255} <= set(np.unique(labels))
        number = i % 2 + 1
        for value, meaning in ((0, 0), (number, 1), (3 - number, 0), (255, 255)):
            assert (sample.mask[labels == value] == meaning).all()


@given(hnp.arrays(np.uint8, (6, 7), elements=st.sampled_from([0, 1, 2, 3, 16, 18, 254, 255])))
def test_numbers_are_told_apart_whatever_their_colours(tmp_path_factory, labels):
    root = write_voc(tmp_path_factory.mktemp("voc"), images=1, size=(6, 7))
    labels[0, :2] = (1, 16)  # their colours are equally bright
    write_voc_labels(labels, root / "SegmentationObject" / "2007_000200.png")
    found = {int(s.name.partition("#")[2]): s.mask for s in PascalVOC(root=root)}
    assert list(found) == sorted(set(labels.ravel().tolist()) - {0, 255})
    for number, mask in found.items():
        for y in range(6):
            for x in range(7):
                value = labels[y, x]
                assert mask[y, x] == (255 if value == 255 else value == number)


@pytest.mark.parametrize(("split", "photos"), [("train", 3), ("val", 3), ("trainval", 6)])
def test_the_lists_decide(root, split, photos):
    data = PascalVOC(split, root)
    assert len(data) == 2 * photos
    assert len({s.photo for s in data}) == photos


@pytest.mark.parametrize(
    "gone", ["JPEGImages/2007_000201.jpg", "SegmentationObject/2007_000201.png"]
)
def test_missing_files(root, gone):
    (root / gone).unlink()
    refused(DataError, lambda: PascalVOC(root=root), root / gone, "val.txt lists it", "unpack")


def test_photographs_without_objects(root):
    labels = np.full((48, 64), 255, np.uint8)
    labels[:9] = 0
    write_voc_labels(labels, root / "SegmentationObject" / "2007_000201.png")
    assert len(PascalVOC(root=root)) == 4
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("2007_000201\n\n")
    refused(DataError, lambda: PascalVOC(root=root), root, "no object", "'val'", "unpack")


def test_colours_instead_of_a_palette_are_refused(root):
    path = root / "SegmentationObject" / "2007_000201.png"
    Image.open(path).convert("RGB").save(path)
    refused(DataError, lambda: PascalVOC(root=root), path, "colours", "palette")


def test_broken_photographs(root):
    path = save(draw_scene()[0], root / "JPEGImages" / "2007_000200.jpg")
    path.write_bytes(b"?")
    refused(DataError, lambda: PascalVOC(root=root)[0], path, "cannot be read")
