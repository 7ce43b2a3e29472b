"""Annotated images through every format and back, and what each conversion loses."""

import json
from pathlib import PurePosixPath

import numpy as np
import pytest
from pycocotools.coco import COCO

from probseg.convert import READERS, WRITERS, Ledger, Request, convert
from probseg.convert.parts import AnnotatedImage, LabelledRegion
from probseg.errors import DataError
from probseg.formats.regions import as_region
from probseg.masks import read_labels
from probseg.object_numbers import MAX_IDS
from support.conversions import reader_of
from support.fakes import draw_scene, save, write_folder
from support.runs import command, usage_error

RING = np.zeros((9, 11), dtype=bool)
RING[1:8, 1:8] = True
RING[3:6, 3:6] = False
RING[0, 10] = True
BLOCK = np.zeros((9, 11), dtype=bool)
BLOCK[4:9, 7:11] = True  # one column of it is the ring's, too
BLOCK[4:8, 7] = True
FULL = np.ones((5, 4), dtype=bool)
STORAGE = PurePosixPath("storage")


@pytest.fixture
def images(tmp_path):
    """Two photographs, one with overlapping objects, one of which is all object."""
    for name, size in (("cat.jpg", (9, 11)), ("dog.jpg", (5, 4))):
        save(draw_scene(*size)[0], tmp_path / "images" / name)
    return [
        AnnotatedImage("cat.jpg", (9, 11), [labelled(RING, "ring"), labelled(BLOCK, "b")]),
        AnnotatedImage("dog.jpg", (5, 4), [labelled(FULL, "ring")]),
    ]


def labelled(mask, label="object"):
    return LabelledRegion(as_region(mask), label)


def there_and_back(tmp_path, images, writer, tolerance=0.0):
    """Write and read; return the images and what both lost."""
    is_file = writer.startswith(("coco", "label-"))
    place = tmp_path / (f"{writer}.json" if is_file else writer)
    request, losses = Request(tmp_path / "images", tolerance, STORAGE), Ledger()
    WRITERS[writer](place, images, request, losses)
    reader = reader_of(writer)
    found = READERS[reader](place, request, Ledger())
    return [image._replace(objects=list(image.objects)) for image in found], losses


def assert_same(found, images, labels=True):
    assert [(image.file, image.size) for image in found] == [(i.file, i.size) for i in images]
    for one, other in zip(found, images, strict=True):
        if labels:
            assert [x.label for x in one.objects] == [x.label for x in other.objects]
        for mine, theirs in zip(one.objects, other.objects, strict=True):
            np.testing.assert_array_equal(mine.region.mask(), theirs.region.mask())


@pytest.mark.parametrize("writer", ["coco", "coco-uncompressed", "yolo", "label-studio", "labelme"])
def test_every_pixel_and_name_comes_back(tmp_path, images, writer):
    found, losses = there_and_back(tmp_path, images, writer)
    assert_same(found, images)
    assert not losses.changes.total()
    assert (losses.outlines, losses.changed_outlines) == (3 * (writer == "yolo"), 0)


def test_png_loses_names(tmp_path, images):
    found, losses = there_and_back(tmp_path, images, "png")
    assert_same(found, images, labels=False)
    assert +losses.changes == {"names of classes of objects": 3}


def test_index_png_loses_what_is_covered(tmp_path, images):
    found, losses = there_and_back(tmp_path, images, "index")
    np.testing.assert_array_equal(found[0].objects[0].region.mask(), RING & ~BLOCK)
    np.testing.assert_array_equal(found[0].objects[1].region.mask(), BLOCK)
    (covered,) = [n for what, n in losses.changes.items() if "several objects" in what]
    assert covered == (RING & BLOCK).sum() > 0


def test_an_index_png_has_as_many_objects_as_are_read(tmp_path):
    save(draw_scene(16, 16)[0], tmp_path / "images" / "a.jpg")
    pixels = np.eye(256, dtype=bool).reshape(-1, 16, 16)
    for count, error in ((MAX_IDS, None), (MAX_IDS + 1, "a.jpg: has more than")):
        image = AnnotatedImage("a.jpg", (16, 16), [labelled(one) for one in pixels[:count]])
        WRITERS["coco"](tmp_path / f"{count}.json", [image], Request(), Ledger())
        arguments = (tmp_path / f"{count}.json", tmp_path / f"{count}", ("coco", "index"))
        if error is None:
            assert convert(*arguments, Request()).written["objects"] == count
        else:
            with pytest.raises(DataError, match=error):
                convert(*arguments, Request())


def test_polygons_of_coco_lose_holes_and_say_so(tmp_path, images):
    found, losses = there_and_back(tmp_path, images, "coco-polygons")
    filled = RING.copy()
    filled[3:6, 3:6] = True
    np.testing.assert_array_equal(found[0].objects[0].region.mask(), filled)
    np.testing.assert_array_equal(found[0].objects[1].region.mask(), BLOCK)
    losses.find(images=2, objects=3)
    assert losses.changed_outlines == 1
    assert any("holes" in line for line in losses.lines())
    assert any(f"{RING.sum() / filled.sum():.4f} at worst" in line for line in losses.lines())
    drawn = COCO(tmp_path / "coco-polygons.json")
    np.testing.assert_array_equal(drawn.annToMask(drawn.loadAnns([1])[0]), filled)


def test_polygons_of_labelme_keep_parts_together(tmp_path, images):
    found, losses = there_and_back(tmp_path, images, "labelme-polygons")
    filled = RING.copy()
    filled[3:6, 3:6] = True
    np.testing.assert_array_equal(found[0].objects[0].region.mask(), filled)  # and one more pixel
    assert [len(image.objects) for image in found] == [2, 1]
    assert losses.changed_outlines == 1
    shapes = json.loads((tmp_path / "labelme-polygons" / "cat.json").read_text())["shapes"]
    assert [shape["group_id"] for shape in shapes] == [1, 1, None]


def test_files_of_labelme(tmp_path):
    square = [[2, 1], [6, 1], [6, 4], [2, 4]]
    shapes = [
        {"label": "a", "points": square, "group_id": None, "shape_type": "polygon"},
        {"label": "b", "points": [[1, 1], [3, 2]], "group_id": None, "shape_type": "rectangle"},
        {"label": "a", "points": [[0, 5], [3, 5], [3, 7], [0, 7]]},  # of an old version
    ]
    content = {"shapes": shapes, "imagePath": "..\\images\\cat.jpg"}
    content |= {"imageHeight": 9, "imageWidth": 11}
    path = tmp_path / "files" / "b" / "cat.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    ledger = convert(path.parents[1], tmp_path / "a.json", ("labelme", "coco"), Request())
    assert ledger.lines() == ["1 objects that are other shapes than polygons and masks"]
    coco = COCO(tmp_path / "a.json")
    assert coco.loadImgs([1])[0]["file_name"] == "b/cat.jpg"
    first, second = (coco.annToMask(one) for one in coco.loadAnns(coco.getAnnIds()))
    assert first.sum() == first[1:4, 2:6].sum() == 12
    assert second.sum() == second[5:7, :3].sum() == 6
    mask = {"label": "a", "shape_type": "mask", "mask": "AAAA", "points": square[:2]}
    for change, word in (
        ({"imageWidth": 0}, "imageWidth"),
        ({"shapes": [mask]}, "labelme"),
        ({"shapes": [{"label": "a", "points": [1, 2]}]}, "points"),
        ({"imagePath": None}, "imagePath"),
    ):
        path.write_text(json.dumps(content | change))
        with pytest.raises(DataError, match=rf"cat\.json: .*{word}"):
            convert(path.parents[1], tmp_path / "b.json", ("labelme", "coco"), Request())


def test_a_tolerance_is_paid_in_iou(tmp_path, images):
    _, losses = there_and_back(tmp_path, images, "yolo", tolerance=1.5)
    losses.find(images=2, objects=3)
    assert any("at worst" in line for line in losses.lines())


@pytest.mark.parametrize("writer", ["yolo", "coco-polygons", "labelme-polygons"])
def test_thin_objects_survive_a_tolerance(tmp_path, images, writer):
    thin = np.zeros((9, 11), dtype=bool)
    thin[4, 2:9] = True
    alone = [images[0]._replace(objects=[labelled(thin)])]
    found, losses = there_and_back(tmp_path, alone, writer, tolerance=1.5)
    np.testing.assert_array_equal(found[0].objects[0].region.mask(), thin)
    assert not losses.lost


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path, images=3, objects=2)
    options = ("--images", "images", "--storage", "images")
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


def test_one_image_is_counted_as_a_number(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path, images=1, objects=2)
    options = ("--images", "images")
    assert command("data", "convert", "masks", "a.json", "--from=index", "--to=coco", *options) == 0
    for writer in ("png", "coco-results"):
        more = ("--from=coco", "--to", writer, *(("--ids-of=a.json",) * (writer != "png")))
        assert command("data", "convert", "a.json", writer, *more) == 0
        assert f"2 objects of 1 images written to {writer}" in capsys.readouterr().out


def test_wrong_usage(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path, images=1)

    def refused(*arguments):
        return usage_error(capsys, "data", "convert", *arguments)

    assert "absent.json" in refused("absent.json", "b", "--from=coco", "--to=png")
    assert "masks" in refused("images", "masks", "--from=png", "--to=png", "--images=images")
    assert "images" in refused("masks", "b", "--from=png", "--to=yolo")
    assert "tolerance" in refused("masks", "b", "--from=png", "--to=yolo", "--tolerance=-1")
    for place in ("/abs", "..", "a\\b", "."):
        wrong = ("--from=png", "--to=label-studio", "--storage", place)
        assert "--storage" in refused("masks", "b.json", *wrong)
    (tmp_path / "a.json").write_text("{")
    assert "export it as JSON" in refused("a.json", "b", "--from=label-studio", "--to=png")


def test_an_account_that_does_not_balance_is_a_fault():
    ledger = Ledger()
    ledger.find(objects=3, images=1)
    ledger.write(objects=1, images=1)
    ledger.lose("without a name", objects=1)
    with pytest.raises(AssertionError, match="3 objects were found, but 1 are written and 1 "):
        ledger.lines()
    ledger.lose("without a name", objects=1)
    assert ledger.lines() == ["2 objects without a name"]


def test_after_an_error_there_is_no_target_and_no_draft(tmp_path, images):
    coco = tmp_path / "a.json"
    twice = [*images, images[0]._replace(file="cat.png")]
    WRITERS["coco"](coco, twice, Request(), Ledger())
    with pytest.raises(DataError, match="another image is called cat"):
        convert(coco, tmp_path / "yolo", ("coco", "yolo"), Request())
    WRITERS["coco"](coco, [*images, images[0]], Request(), Ledger())
    with pytest.raises(DataError, match=r"cat\.jpg: is the name of two images"):
        convert(coco, tmp_path / "b.json", ("coco", "label-studio"), Request(storage=STORAGE))
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "images"}


def test_a_target_that_is_there_is_kept(tmp_path, images):
    WRITERS["coco"](tmp_path / "a.json", images, Request(), Ledger())
    (tmp_path / "old").mkdir()
    with pytest.raises(DataError, match="old: exists"):
        convert(tmp_path / "a.json", tmp_path / "old", ("coco", "coco"), Request())
    convert(tmp_path / "a.json", tmp_path / "old", ("coco", "index"), Request())
    with pytest.raises(DataError, match="old: exists"):
        convert(tmp_path / "a.json", tmp_path / "old", ("coco", "index"), Request())
    assert {path.name for path in (tmp_path / "old").iterdir()} == {"cat.png", "dog.png"}
