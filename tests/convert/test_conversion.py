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
from probseg.masks import MAX_IDS, read_labels
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


@pytest.mark.parametrize(
    "writer", ["coco", "coco-uncompressed", "yolo", "label-studio", "labelme", "png"]
)
def test_every_pixel_and_name_comes_back(tmp_path, images, writer):
    found, losses = there_and_back(tmp_path, images, writer)
    assert [(image.file, image.size) for image in found] == [(i.file, i.size) for i in images]
    for one, other in zip(found, images, strict=True):
        if writer != "png":
            assert [x.label for x in one.objects] == [x.label for x in other.objects]
        for mine, theirs in zip(one.objects, other.objects, strict=True):
            np.testing.assert_array_equal(mine.region.mask(), theirs.region.mask())
    assert +losses.changes == ({"names of classes of objects": 3} if writer == "png" else {})
    assert (losses.outlines, losses.changed_outlines) == (3 * (writer == "yolo"), 0)


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


@pytest.mark.parametrize("writer", ["coco-polygons", "labelme-polygons"])
def test_polygons_lose_holes_and_say_so(tmp_path, images, writer):
    found, losses = there_and_back(tmp_path, images, writer)
    filled = RING.copy()
    filled[3:6, 3:6] = True
    np.testing.assert_array_equal(found[0].objects[0].region.mask(), filled)
    np.testing.assert_array_equal(found[0].objects[1].region.mask(), BLOCK)
    assert [len(image.objects) for image in found] == [2, 1]
    losses.find(images=2, objects=3)
    assert losses.changed_outlines == 1
    assert any("holes" in line for line in losses.lines())
    assert any(f"{RING.sum() / filled.sum():.4f} at worst" in line for line in losses.lines())
    if writer == "coco-polygons":
        drawn = COCO(tmp_path / "coco-polygons.json")
        np.testing.assert_array_equal(drawn.annToMask(drawn.loadAnns([1])[0]), filled)
    else:
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
    assert ledger.lines() == ["1 object of shapes other than polygons and masks"]
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


@pytest.mark.parametrize("writer", ["yolo", "coco-polygons", "labelme-polygons"])
def test_a_tolerance_is_paid_in_iou_and_thin_objects_survive_it(tmp_path, images, writer):
    thin = np.zeros((9, 11), dtype=bool)
    thin[4, 2:9] = True
    mixed = [images[0]._replace(objects=[labelled(thin), labelled(RING)])]
    found, losses = there_and_back(tmp_path, mixed, writer, tolerance=1.5)
    np.testing.assert_array_equal(found[0].objects[0].region.mask(), thin)
    assert not losses.lost
    losses.find(images=1, objects=2)
    assert any("at worst" in line for line in losses.lines())


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path, images=3, objects=2)
    steps = (
        ("masks", "a.json", "index", "coco"),
        ("a.json", "b.json", "coco", "label-studio"),
        ("b.json", "yolo", "label-studio", "yolo"),
        ("yolo", "back", "yolo", "index"),
        ("a.json", "results", "coco", "coco-results"),
    )
    for source, target, reader, writer in steps:
        more = ("--from", reader, "--to", writer, "--tolerance=0", "--images=images")
        more += ("--storage=images", *(["--ids-of=a.json"] if target == "results" else []))
        assert command("data", "convert", source, target, *more) == 0
        out = capsys.readouterr().out
        assert f"6 objects of 3 images written to {target} as {writer}" in out
        assert "lost: names" not in out
    for path in (tmp_path / "masks").iterdir():
        back = read_labels(tmp_path / "back" / path.name)
        np.testing.assert_array_equal(back, read_labels(path))
    annotations = json.loads((tmp_path / "a.json").read_text())["annotations"]
    assert [entry["category_id"] for entry in annotations] == [1] * 6


def test_wrong_usage(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path, images=1)
    (tmp_path / "a.json").write_text("{")
    rows = [
        ("absent.json b --from=coco --to=png", "absent.json"),
        ("images masks --from=png --to=png --images=images", "masks"),
        ("masks b --from=png --to=yolo", "images"),
        ("masks b --from=png --to=yolo --tolerance=-1", "tolerance"),
        ("a.json b --from=label-studio --to=png", "export it as JSON"),
    ]
    for place in ("/abs", "..", "a\\b", "."):
        rows.append((f"masks b.json --from=png --to=label-studio --storage {place}", "--storage"))
    for arguments, words in rows:
        assert words in usage_error(capsys, "data", "convert", *arguments.split())


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
