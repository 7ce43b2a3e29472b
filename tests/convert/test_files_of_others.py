"""Files as other programs write them: read with their classes, or refused with the right name."""

import json

import numpy as np
import pytest
import yaml
from PIL import Image

from probseg.convert import Request, convert
from probseg.formats import run_lengths

SIZE = (48, 64)
MASK = np.zeros(SIZE, np.bool_)
MASK[12:24, 16:48] = True
CORNERS = [[16, 12], [48, 12], [48, 24], [16, 24]]
SHARES = [[x / 64, y / 48] for x, y in CORNERS]


def flat(points):
    return " ".join(f"{value:g}" for point in points for value in point)


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", SIZE[::-1]).save(tmp_path / "images" / name)
    return tmp_path / "images"


def converted(tmp_path, reader, source, images=None):
    """Names of files and classes, and pixels, of the objects; and the account."""
    target = tmp_path / "target.json"
    ledger = convert(source, target, (reader, "coco"), Request(images))
    content = json.loads(target.read_text())
    files = {one["id"]: one["file_name"] for one in content["images"]}
    kinds = {one["id"]: one["name"] for one in content["categories"]}
    rows = [
        (
            files[one["image_id"]],
            kinds[one["category_id"]],
            run_lengths.decode(one["segmentation"]),
            one.get("score"),
        )
        for one in content["annotations"]
    ]
    return rows, ledger.lines()


COCO = {
    "images": [{"id": 1, "file_name": "images\\a.png", "height": 48, "width": 64}],
    "annotations": [
        {
            "id": 1,
            "image_id": 1,
            "category_id": 3,
            "segmentation": [[x for corner in CORNERS for x in corner]],
        }
    ],
    "categories": [{"id": 3, "name": "cat"}],
}
ADDRESS = [{**COCO["images"][0], "file_name": "https://x.org/data/a.png?token=1"}]
LISTS = {
    "names: ['cat', 'dog']": ["cat", "dog"],
    "names: {1: dog, 0: cat}": ["cat", "dog"],
    "nc: 2\nnames:\n- cat\n- dog\n": ["cat", "dog"],
    "names: {1: dog}": ["object 0", "dog"],
}


@pytest.mark.parametrize("text", LISTS)
@pytest.mark.parametrize("layout", ["ultralytics", "roboflow", "texts"])
def test_names_of_yolo_are_those_of_data_yaml(tmp_path, photos, text, layout):
    place = {"ultralytics": "labels", "roboflow": "train/labels", "texts": "labels"}[layout]
    (tmp_path / place).mkdir(parents=True)
    for n, name in enumerate("ab"):
        (tmp_path / place / f"{name}.txt").write_text(f"{n} {flat(SHARES)}\n")
    (tmp_path / "data.yaml").write_text(text)
    if layout == "roboflow":
        photos.rename(tmp_path / "train" / "images")
    source = tmp_path / place if layout == "texts" else tmp_path
    rows, lines = converted(tmp_path, "yolo", source)
    assert [row[:2] for row in rows] == [
        (f"{name}.png", kind) for name, kind in zip("ab", LISTS[text], strict=True)
    ]
    assert lines == []


LINES = [
    (f"0 {flat(SHARES)}", None, 0),
    (f"0.0 {flat(SHARES)}", None, 0),
    (f"0 {flat(SHARES)} 0.93", 0.93, 0),
    ("0 0.25 0.25 1.0001 0.25 1.0000001 0.5 0.25 0.5", None, 1),
    ("0 -0.0011 0.25 0.75 0.25 0.75 0.5 0 0.5 0.5", 0.5, 1),
]


@pytest.mark.parametrize(("line", "score", "cut"), LINES)
def test_lines_of_yolo_that_programs_write_are_read(tmp_path, photos, line, score, cut):
    labels = tmp_path / "labels"
    labels.mkdir()
    (labels / "a.txt").write_text(line)
    (labels / "classes.txt").write_text("cat\n")
    rows, lines = converted(tmp_path, "yolo", labels, photos)
    assert [row[1:4:2] for row in rows] == [("cat", score)]
    assert lines == ["objects with corners outside of their image, which are cut: 1"] * cut


def test_yolo_is_written_as_ultralytics_trains_from_it(tmp_path, photos):
    (tmp_path / "a.json").write_text(json.dumps({**COCO, "images": ADDRESS}))
    convert(tmp_path / "a.json", tmp_path / "set", ("coco", "yolo"), Request(photos))
    config = yaml.safe_load((tmp_path / "set" / "data.yaml").read_text())
    assert config == {"train": "images", "val": "images", "names": {0: "cat"}}
    assert (tmp_path / "set" / "images" / "a.png").read_bytes() == (photos / "a.png").read_bytes()
    assert (tmp_path / "set" / "labels" / "a.txt").read_text().startswith("0 0.25")
    ((file, label, mask, _),), lines = converted(tmp_path, "yolo", tmp_path / "set")
    assert (file, label, lines) == ("a.png", "cat", [])
    assert np.array_equal(mask, MASK)


def test_shapes_that_labelme_ignores_are_no_objects(tmp_path):
    (tmp_path / "l").mkdir()
    shapes = [{"label": label, "points": CORNERS} for label in ("cat", "__ignore__")]
    content = {"imagePath": "..\\a.png", "imageHeight": 48, "imageWidth": 64, "shapes": shapes}
    (tmp_path / "l" / "a.json").write_text(json.dumps(content))
    rows, lines = converted(tmp_path, "labelme", tmp_path / "l")
    assert [row[1] for row in rows] == ["cat"]
    assert lines == ["1 object of the label __ignore__, not an object"]
