"""What conversions find in files that are not as they should be: all is written or counted."""

import json
import tracemalloc
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from probseg.convert import WRITERS, Request, convert
from probseg.data.sets.coco import COCO as COCOFolder
from probseg.errors import DataError
from probseg.formats import brush
from support.conversions import reader_of
from support.fakes import draw_scene, save
from support.refusals import refused
from support.rows import each

HEIGHT, WIDTH = 24, 32
STORAGE = PurePosixPath("storage")
SQUARE = [4, 4, 12, 4, 12, 12, 4, 12]
MASK = np.zeros((HEIGHT, WIDTH), bool)
MASK[4:12, 4:12] = True


def photographs(folder, *names):
    for name in names:
        save(draw_scene(HEIGHT, WIDTH)[0], folder / name)
    return folder


def draw_coco(folder):
    """11 annotations, of which 4 have an object in an image that is listed."""
    images = [
        {"id": key, "file_name": name, "height": HEIGHT, "width": WIDTH}
        for key, name in enumerate(("a.jpg", "b/d.jpg", "bare.jpg"), start=1)
    ]
    empty = {"size": [HEIGHT, WIDTH], "counts": [HEIGHT * WIDTH]}
    outlines = [
        [SQUARE], [SQUARE], [SQUARE, [1, 1, 9, 9]], [],
        None, [[1, 1, 9, 9]], [[90, 90, 99, 90, 99, 99]], empty,
        [[1, 1, 1.2, 1, 1.2, 1.2]], [SQUARE],
    ]  # fmt: skip
    annotations = [
        {"id": key, "image_id": 1, "category_id": 1, "segmentation": outline, "iscrowd": 0}
        for key, outline in enumerate(outlines)
    ]
    annotations[1].update(image_id=2, category_id=7, attributes={"blurred": True})
    annotations[9].update(image_id=99)
    annotations.append({"id": 10, "image_id": 2, "iscrowd": 1, "segmentation": [SQUARE]})
    categories = [{"id": 1, "name": "car"}, {"id": 2, "name": "unused"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path = folder / "coco.json"
    path.write_text(json.dumps(content))
    return path, 11, 3


def draw_label_studio(folder):
    """7 results, of which 2 count."""
    result = {
        "type": "brushlabels",
        "original_width": WIDTH,
        "original_height": HEIGHT,
        "value": {"rle": brush.encode(MASK), "brushlabels": ["car", "red"]},
    }

    def task(address, *annotations):
        return {"data": {"image": address}, "annotations": list(annotations)}

    skipped = {"result": [result], "was_cancelled": True}
    tasks = [
        task(
            "/data/local-files/?d=storage/a.jpg",
            skipped,
            {"result": [result]},
            {"result": [result]},
        ),
        task("/data/local-files/?d=storage/b/d.jpg", {"result": [result, {"type": "choices"}]}),
        task("/data/local-files/?d=storage/c.jpg", skipped),
        task("/data/local-files/?d=storage/e.jpg"),
        task("data:image/png;base64,AAAA", {"result": [result]}),
    ]
    tasks[0]["predictions"] = [{"result": [result]}]
    path = folder / "label_studio.json"
    path.write_text(json.dumps(tasks))
    return path, 7, 5


def draw_png(folder):
    """5 masks of objects, one of them without a pixel; and files that are no masks."""
    place = folder / "masks"
    (place / "b").mkdir(parents=True)
    picture = Image.fromarray(MASK.astype(np.uint8) * 255)
    picture.save(place / "a.PNG")
    for number, suffix in enumerate(("tif", "bmp", "png"), start=1):
        picture.save(place / "b" / f"d_{number}.{suffix}")
    Image.new("L", (WIDTH, HEIGHT)).save(place / "b" / "d_4.png")
    (place / "._a.png").write_bytes(b"\0\5\x16\7")
    (place / "Thumbs.db").write_bytes(b"\0")
    return place, 5, 3


def draw_yolo(folder):
    """3 lines of objects, one of which has no pixel."""
    place = folder / "texts"
    (place / "b").mkdir(parents=True)
    line = "1 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5\n"
    (place / "a.txt").write_text(f"{line}\n")
    (place / "b" / "d.txt").write_text(f"{line}1 0.1 0.1 0.1001 0.1 0.1001 0.1001\n \n")
    (place / "._a.txt").write_bytes(b"\0\5\x16\7")
    (place / "classes.txt").write_text("unused\ncar\n")
    return place, 3, 3


SOURCES = {"coco": draw_coco, "label-studio": draw_label_studio, "png": draw_png, "yolo": draw_yolo}


def count(place, form):
    """Count the objects in a file or folder."""
    if form == "coco-results":
        return len(json.loads(place.read_text()))
    if form.startswith("coco"):
        return len(COCO(place).getAnnIds())
    if form.startswith("labelme"):
        return sum(len(json.loads(file.read_text())["shapes"]) for file in place.rglob("*.json"))
    if form == "label-studio":
        tasks = json.loads(place.read_text())
        return sum(len(task["annotations"][0]["result"]) for task in tasks)
    if form == "yolo":
        texts = [path.read_text() for path in place.rglob("*.txt") if path.name != "classes.txt"]
        return sum(len(text.splitlines()) for text in texts)
    return sum(np.unique(Image.open(path)).size - 1 for path in place.rglob("*.png"))


@each("writer", WRITERS)
@each("reader", SOURCES)
def test_what_is_found_is_written_or_counted(tmp_path, reader, writer):
    photos = photographs(tmp_path / "photos", "a.jpg", "bare.jpg", "b/d.jpg")
    source, objects, images = SOURCES[reader](tmp_path)
    target = tmp_path / "target"
    images_of = [{"id": key, "file_name": name} for key, name in enumerate(("a.jpg", "b/d.jpg"))]
    truth = {"images": images_of, "categories": [{"id": 1, "name": "car"}]}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    request = Request(photos, 0, STORAGE, tmp_path / "truth.json")
    if (reader, writer) == ("png", "coco-results"):  # without names of classes, there are no ids
        words = "none of its objects can be written"
        return refused(DataError, lambda: convert(source, target, (reader, writer), request), words)
    ledger = convert(source, target, (reader, writer), request)
    assert (ledger.found["objects"], ledger.found["images"]) == (objects, images)
    assert ledger.written["objects"] == count(target, writer)
    lost = sum(number for (thing, _), number in ledger.lost.items() if thing == "objects")
    assert ledger.written["objects"] + lost == objects
    assert lost > 0
    if writer == "coco-results":
        return
    back = convert(target, tmp_path / "back", (reader_of(writer), "coco"), request)
    assert back.found["objects"] == back.written["objects"] == ledger.written["objects"]


def test_every_loss_has_its_line(tmp_path):
    path, *_ = draw_coco(tmp_path)
    lines = convert(path, tmp_path / "b.json", ("coco", "coco"), Request()).lines()
    assert sorted(lines) == sorted([
        "2 objects without an outline",
        "1 object whose outlines have fewer than three corners",
        "3 objects without a pixel inside of their image",
        "1 object of images that the file does not list",
        "outlines of fewer than three corners: 1",
        "values of 'attributes' of annotations: 1",
        "crowds, which become objects: 1",
        "annotations without a listed category, which become 'object': 2",
    ])  # fmt: skip
    path, *_ = draw_label_studio(tmp_path)
    request = Request(storage=STORAGE)
    lines = convert(path, tmp_path / "c.json", ("label-studio", "coco"), request).lines()
    assert sorted(lines) == sorted([
        "2 objects of skipped annotations of tasks",
        "1 object of further annotations of tasks",
        "1 object of the type choices, not brushlabels or polygonlabels",
        "1 object of tasks that hold the image itself, which has no name",
        "1 image of tasks that hold the image itself, which has no name",
        "2 images of tasks without a mask, whose size is not known",
        "skipped annotations of tasks: 2",
        "further annotations of tasks: 1",
        "predictions of tasks: 1",
        "labels of objects after the first: 2",
    ])  # fmt: skip


def test_names_of_classes_are_lines_of_their_list(tmp_path):
    photos = photographs(tmp_path / "photos", "a.jpg", "b/d.jpg")
    texts, *_ = draw_yolo(tmp_path)
    (texts / "classes.txt").write_text("unused\n")
    lines = convert(texts, tmp_path / "b.json", ("yolo", "coco"), Request(photos)).lines()
    assert "objects of classes after the last of classes.txt: 3" in lines
    path, *_ = draw_coco(tmp_path)
    path.write_text(path.read_text().replace('"car"', '" car\\n\\u2028 red "'))
    ledger = convert(path, tmp_path / "out", ("coco", "yolo"), Request())
    assert "car red" in (tmp_path / "out" / "classes.txt").read_text().splitlines()
    assert any("fit into a line" in line for line in ledger.lines())


def test_files_that_belong_to_nothing_are_refused_by_name(tmp_path):
    photos = photographs(tmp_path / "photos", "a.jpg")
    texts, *_ = draw_yolo(tmp_path)
    masks, *_ = draw_png(tmp_path)
    coco, *_ = draw_coco(tmp_path)
    (tmp_path / "none").mkdir()
    Image.fromarray(MASK).convert("L").save(tmp_path / "none" / "a.jpg")
    for name, content in (("list", "[]"), ("boxes", '{"boxes": [1]}')):
        (tmp_path / f"{name}.json").write_text(content)
    for name, other in (("twice", "./a.jpg"), ("named", "classes.jpg")):
        text = coco.read_text().replace("bare.jpg", other)
        (tmp_path / f"{name}.json").write_text(text)
    rows = [
        (texts, "yolo", str(Path("b", "d.txt"))),
        (masks, "png", "d_1"),
        (tmp_path / "none", "png", "lossless"),
        (tmp_path / "none", "yolo", "no file of the format yolo"),
        (tmp_path / "twice.json", "coco", "a.jpg: is the name of two images"),
    ]
    rows += [
        (tmp_path / f"{name}.json", reader, f"{name}.json: has no image")
        for name in ("list", "boxes")
        for reader in ("coco", "label-studio")
    ]
    for place, reader, words in rows:
        formats = reader, "coco"
        refused(DataError, lambda p=place, f=formats: convert(p, OUT, f, Request(photos)), words)
    refused(DataError, lambda: convert(masks, OUT, ("png", "coco"), Request()), "`images` must be")
    place, words = tmp_path / "named.json", "classes.jpg: its text would be classes.txt"
    refused(DataError, lambda: convert(place, OUT, ("coco", "yolo"), Request()), words)


OUT = Path("no_such_folder", "out.json")


@each("outline", [SQUARE, [[[4, 4], [12, 4], [12, 12]]], ["4 4 12 4 12 12"], "4 4 12", [{"x": 4}]])
def test_outlines_that_are_no_lists_of_numbers_are_refused(tmp_path, outline):
    path = with_outlines(tmp_path, outline)
    with pytest.raises(DataError, match=r"a\.json: .*segmentation must be lists"):
        convert(path, tmp_path / "b.json", ("coco", "coco"), Request())


def with_outlines(folder, *outlines, size=(HEIGHT, WIDTH)):
    """Write a file with objects of one photograph, `a.jpg`."""
    images = [{"id": 1, "file_name": "a.jpg", "height": size[0], "width": size[1]}]
    annotations = [
        {"id": key, "image_id": 1, "segmentation": outline} for key, outline in enumerate(outlines)
    ]
    path = folder / "a.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    return path


def test_half_a_corner_is_left_out_by_training_and_conversion(tmp_path):
    photographs(tmp_path, "a.jpg")
    path = with_outlines(tmp_path, [[*SQUARE, 3]])
    ledger = convert(path, tmp_path / "b.json", ("coco", "coco"), Request())
    assert "halves of corners at the ends of outlines: 1" in ledger.lines()
    for file in ("a.json", "b.json"):
        (sample,) = COCOFolder(tmp_path / file, tmp_path)
        np.testing.assert_array_equal(sample.mask, MASK)


def test_training_counts_annotations_without_an_outline(tmp_path, caplog):
    photographs(tmp_path, "a.jpg")
    count = "annotations without an outline of three or more corners, left out: 2"
    path = with_outlines(tmp_path, [], [[1, 1, 9, 9]])
    assert "min_area" not in refused(DataError, lambda: COCOFolder(path, tmp_path), count)
    assert len(COCOFolder(with_outlines(tmp_path, [], None, [SQUARE]), tmp_path)) == 1
    assert count in caplog.text


@pytest.mark.parametrize("writer", sorted(set(WRITERS) - {"png", "index", "coco-results"}))
def test_masks_are_never_drawn_whole(tmp_path, writer):
    far = [[x + 6_000 for x in SQUARE]]
    path = with_outlines(tmp_path, far, far, far, size=(9_400, 9_400))  # a mask of it has 88 MB
    request = Request(storage=STORAGE)
    tracemalloc.start()
    try:
        convert(path, tmp_path / "b", ("coco", writer), request)
        if writer != "yolo":
            convert(tmp_path / "b", tmp_path / "c.json", (reader_of(writer), "coco"), request)
            assert len(json.loads((tmp_path / "c.json").read_text())["annotations"]) == 3
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50e6
