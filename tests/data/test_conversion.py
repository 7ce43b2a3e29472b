"""Annotated images through every format and back, and what each conversion loses."""

import json

import numpy as np
import pytest
from fakes import draw_scene, save, write_folder
from pycocotools.coco import COCO
from runs import command, usage_error

from probseg.data.conversion import (
    READERS,
    WRITERS,
    AnnotatedImage,
    LabelledMask,
    Losses,
    Request,
)
from probseg.errors import DataError
from probseg.masks import read_labels

RING = np.zeros((9, 11), dtype=bool)
RING[1:8, 1:8] = True
RING[3:6, 3:6] = False
RING[0, 10] = True
BLOCK = np.zeros((9, 11), dtype=bool)
BLOCK[4:9, 7:11] = True  # one column of it is the ring's, too
BLOCK[4:8, 7] = True
FULL = np.ones((5, 4), dtype=bool)


@pytest.fixture
def images(tmp_path):
    """Two photographs, one with overlapping objects, one of which is all object."""
    for name, size in (("cat.jpg", (9, 11)), ("dog.jpg", (5, 4))):
        save(draw_scene(*size)[0], tmp_path / "images" / name)
    return [
        AnnotatedImage("cat.jpg", (9, 11), [LabelledMask(RING, "ring"), LabelledMask(BLOCK, "b")]),
        AnnotatedImage("dog.jpg", (5, 4), [LabelledMask(FULL, "ring")]),
    ]


def there_and_back(tmp_path, images, writer, tolerance=0.0):
    """Write and read; return the images and what both lost."""
    is_file = writer.startswith(("coco", "label"))
    place = tmp_path / (f"{writer}.json" if is_file else writer)
    request, losses = Request(tmp_path / "images", tolerance), Losses()
    WRITERS[writer](place, images, request, losses)
    reader = "coco" if writer.startswith("coco") else writer
    return list(READERS[reader](place, request, losses)), losses


def assert_same(found, images, labels=True):
    assert [(image.file, image.size) for image in found] == [(i.file, i.size) for i in images]
    for one, other in zip(found, images, strict=True):
        if labels:
            assert [x.label for x in one.objects] == [x.label for x in other.objects]
        for mine, theirs in zip(one.objects, other.objects, strict=True):
            np.testing.assert_array_equal(mine.mask, theirs.mask)


@pytest.mark.parametrize("writer", ["coco", "coco-uncompressed", "yolo", "label-studio"])
def test_every_pixel_and_name_comes_back(tmp_path, images, writer):
    found, losses = there_and_back(tmp_path, images, writer)
    assert_same(found, images)
    assert losses.lines() == []


def test_png_loses_names(tmp_path, images):
    found, losses = there_and_back(tmp_path, images, "png")
    assert_same(found, images, labels=False)
    assert losses.counts == {"names of classes of objects": 3}


def test_index_png_loses_what_is_covered(tmp_path, images):
    found, losses = there_and_back(tmp_path, images, "index")
    np.testing.assert_array_equal(found[0].objects[0].mask, RING & ~BLOCK)
    np.testing.assert_array_equal(found[0].objects[1].mask, BLOCK)
    (covered,) = [n for what, n in losses.counts.items() if "several objects" in what]
    assert covered == (RING & BLOCK).sum() > 0
    many = [LabelledMask(FULL)] * 255
    with pytest.raises(DataError, match="254"):
        WRITERS["index"](
            tmp_path / "many", [AnnotatedImage("a", (5, 4), many)], Request(), Losses()
        )


def test_polygons_of_coco_lose_holes_and_say_so(tmp_path, images):
    found, losses = there_and_back(tmp_path, images, "coco-polygons")
    filled = RING.copy()
    filled[3:6, 3:6] = True
    np.testing.assert_array_equal(found[0].objects[0].mask, filled)
    np.testing.assert_array_equal(found[0].objects[1].mask, BLOCK)
    assert losses.ious == [RING.sum() / filled.sum(), 1, 1]
    assert any("holes" in line for line in losses.lines())
    assert any(f"{RING.sum() / filled.sum():.4f} at worst" in line for line in losses.lines())
    drawn = COCO(tmp_path / "coco-polygons.json")
    np.testing.assert_array_equal(drawn.annToMask(drawn.loadAnns([1])[0]), filled)


def test_a_tolerance_is_paid_in_iou(tmp_path, images):
    _, losses = there_and_back(tmp_path, images, "yolo", tolerance=1.5)
    assert min(losses.ious) < 1
    assert any("at worst" in line for line in losses.lines())


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path, images=3, objects=2)
    options = ("--images", "images")
    assert command("data", "convert", "masks", "a.json", "--from=index", "--to=coco", *options) == 0
    assert "6 objects of 3 images" in capsys.readouterr().out
    steps = (
        ("a.json", "b.json", "coco", "label-studio"),
        ("b.json", "yolo", "label-studio", "yolo"),
        ("yolo", "back", "yolo", "index"),
    )
    for source, target, reader, writer in steps:
        more = ("--from", reader, "--to", writer, "--tolerance=0", *options)
        assert command("data", "convert", source, target, *more) == 0
    assert "lost: names" not in capsys.readouterr().out
    for path in (tmp_path / "masks").iterdir():
        back = read_labels(tmp_path / "back" / path.name)
        np.testing.assert_array_equal(back, read_labels(path))
    labels = [entry["category_id"] for entry in json.loads((tmp_path / "a.json").read_text())[
        "annotations"]]  # fmt: skip
    assert labels == [1] * 6


def test_wrong_usage(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path, images=1)

    def refused(*arguments):
        return usage_error(capsys, "data", "convert", *arguments)

    assert "absent.json" in refused("absent.json", "b", "--from=coco", "--to=png")
    assert "masks" in refused("images", "masks", "--from=png", "--to=png", "--images=images")
    assert "images" in refused("masks", "b", "--from=png", "--to=yolo")
    assert "tolerance" in refused("masks", "b", "--from=png", "--to=yolo", "--tolerance=-1")
    (tmp_path / "a.json").write_text("{")
    assert "export it as JSON" in refused("a.json", "b", "--from=label-studio", "--to=png")
