"""Open Images: a list of masks, whose size may differ from that of their images."""

import shutil

import numpy as np
import pytest
from drawn_sets import write_open_images
from fakes import draw_scene, save
from PIL import Image
from refusals import refused

import probseg.data.open_images as module
from probseg.data import DATASETS, OpenImages
from probseg.errors import DataError

SPLIT = "validation"
KEY = "20" + 7 * "a0"
LIST = f"{SPLIT}/{SPLIT}-annotations-object-segmentation.csv"


@pytest.fixture
def root(tmp_path):
    return write_open_images(tmp_path / "OpenImages")


def test_every_mask_of_the_list_is_an_object(root):
    data = OpenImages(SPLIT, root)
    assert DATASETS["OpenImages"] is OpenImages
    assert len(data) == 3 * 2
    assert data[0].name == f"{KEY}_m01g317_00000001"
    assert len({data[i].name for i in range(6)}) == 6
    for i in range(2, 6):  # their masks have the size of the image
        sample = data[i]
        assert (sample.dataset, sample.photo) == ("OpenImages", f"2{i // 2}" + 7 * "a0")
        assert sample.mask.dtype == np.uint8
        np.testing.assert_array_equal(
            sample.mask, draw_scene(96, 128, 2, seed=i // 2)[1] == i % 2 + 1
        )


def test_masks_get_the_size_of_their_image(root):
    data = OpenImages(SPLIT, root)
    small = draw_scene(96, 128, 2)[1][::2, ::2]
    for i in range(2):
        assert data[i].image.shape == (96, 128, 3)
        expected = np.array([[small[y // 2, x // 2] == i + 1 for x in range(128)]
                             for y in range(96)])  # fmt: skip
        np.testing.assert_array_equal(data[i].mask, expected)


@pytest.mark.parametrize("size", [(97, 128), (31, 42), (200, 267)])
def test_nearly_the_same_proportions_will_do(root, size):
    name = f"21{7 * 'a0'}_m01g317_00000001.png"
    mask = Image.fromarray(draw_scene(96, 128, 2, seed=1)[1] == 1).resize(size[::-1])
    mask.save(root / SPLIT / "masks" / name)
    data = OpenImages(SPLIT, root)
    expected = draw_scene(96, 128, 2, seed=1)[1] == 1
    assert data[2].mask.shape == (96, 128)
    assert (data[2].mask != expected).mean() < 0.03


def test_small_objects_are_left_out(root):
    areas = sorted(OpenImages(SPLIT, root, min_area=0).areas.tolist())
    assert sorted(OpenImages(SPLIT, root, min_area=areas[2]).areas.tolist()) == areas[2:]
    path = root / LIST
    refused(DataError, lambda: OpenImages(SPLIT, root, 10**6), path, "1000000", "`min_area`")


def test_masks_are_read_once(root, monkeypatch):
    before = OpenImages(SPLIT, root)
    monkeypatch.setattr(module, "read_labels", None)
    assert OpenImages(SPLIT, root, min_area=0).areas.tolist() == before.areas.tolist()
    with (root / LIST).open("a") as file:
        file.write("another\n")
    refused(DataError, lambda: OpenImages(SPLIT, root), root / LIST, "MaskPath, ImageID")


def test_the_list_may_be_beside_the_folder_of_the_split(root):
    (root / LIST).rename(root / (root / LIST).name)
    assert len(OpenImages(SPLIT, root)) == 6


def test_missing_and_broken_files(root):
    image = root / SPLIT / "images" / f"{KEY}.jpg"
    image.unlink()
    refused(DataError, lambda: OpenImages(SPLIT, root), image, "cannot be read", "2 entries")
    (root / SPLIT / "images" / f"21{7 * 'a0'}.jpg").write_bytes(b"?")
    refused(DataError, lambda: OpenImages(SPLIT, root), image, f"21{7 * 'a0'}.jpg", "4 entries")
    write_open_images(root)
    mask = root / SPLIT / "masks" / "2" / f"{KEY}_m01g317_00000002.png"
    mask.write_bytes(b"?")
    refused(DataError, lambda: OpenImages(SPLIT, root), mask, "cannot be read")
    mask.unlink()
    refused(DataError, lambda: OpenImages(SPLIT, root), mask, "no such file")


@pytest.mark.parametrize(
    "text",
    [
        "", "MaskPath,ImageID\n", "a,b\nc,d\n", "MaskPath,ImageID\nonly\n",
        "MaskPath,ImageID\n../../etc/secret.png,a\n", "MaskPath,ImageID\na.png,..\n",
        "MaskPath,ImageID\n,a\n", "MaskPath,ImageID\na\\b.png,a\n",
        "MaskPath,ImageID\n\xff.png,a\n", f"MaskPath,ImageID\n{300 * 'a'}.png,a\n",
    ],
)  # fmt: skip
def test_strange_lists(root, text):
    path = root / LIST
    path.write_bytes(text.encode("latin1"))
    refused(DataError, lambda: OpenImages(SPLIT, root), path)


def test_masks_of_other_proportions_are_left_out(root, capsys):
    names = [OpenImages(SPLIT, root).object_name(i) for i in range(6)]
    assert capsys.readouterr().err == ""
    shutil.rmtree(root)
    write_open_images(root)
    for name in names[2:4]:
        path = root / SPLIT / "masks" / f"{name}.png"
        save(np.full((128, 96), 255, np.uint8), path)  # a photograph that was turned, for instance
    (root / LIST).write_text((root / LIST).read_text() + "\n")
    data = OpenImages(SPLIT, root, min_area=0)
    assert [data.object_name(i) for i in range(4)] == names[:2] + names[4:]
    assert len(data) == 4
    told = capsys.readouterr().err
    assert "2 masks of OpenImages validation are left out" in told
    assert f"{names[2]}.png" in told
    OpenImages(SPLIT, root)
    assert capsys.readouterr().err == "", "only told when the masks are read"


def test_an_image_that_is_turned_later(root):
    data = OpenImages(SPLIT, root)
    path = save(draw_scene(128, 96)[0], root / SPLIT / "images" / f"{KEY}.jpg")
    refused(DataError, lambda: data[0], path, "96 x 128", f"{KEY}_m01g317_00000001.png")
