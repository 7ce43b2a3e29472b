"""Files as other programs write them: read with their classes, or refused with the right name."""

import json

import numpy as np
import pytest
import yaml
from PIL import Image

from probseg.convert import Request, convert
from probseg.convert.others import recognised
from probseg.errors import DataError
from probseg.formats import run_lengths
from support.rows import each

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


def cvat(shapes, image='name="images/a.png" width="64" height="48"'):
    head = '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>'
    return f'{head}<meta><task/></meta><image id="0" {image}>{shapes}</image></annotations>'


POINTS = ";".join(f"{x},{y}" for x, y in CORNERS)
RUNS = ", ".join(["2", "32", *["2", "32"] * 11])
BOX = '<box label="cat" xtl="1" ytl="1" xbr="9" ybr="9"/>'
VIA = {
    "filename": "a.png",
    "size": 9,
    "regions": [
        {
            "shape_attributes": {
                "name": "polygon",
                "all_points_x": [x for x, _ in CORNERS],
                "all_points_y": [y for _, y in CORNERS],
            },
            "region_attributes": {"kind": {"cat": True}},
        }
    ],
}
LABEL_STUDIO = {
    "type": "polygonlabels",
    "original_width": 64,
    "original_height": 48,
    "value": {"points": [[100 * x, 100 * y] for x, y in SHARES], "polygonlabels": ["cat"]},
}
SA1B = {
    "image": {"image_id": 1, "file_name": "a.png", "width": 64, "height": 48},
    "annotations": [
        {"id": 1, "segmentation": run_lengths.encode(MASK), "predicted_iou": 0.9, "area": 384}
    ],
}
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
OF_OTHERS = {
    "cvat polygon": (
        "cvat",
        cvat(f'<polygon label="cat" points="{POINTS}"/>{BOX}'),
        "images/a.png",
    ),
    "cvat mask": (
        "cvat",
        cvat(f'<mask label="cat" rle="{RUNS}" left="14" top="12" width="34" height="12"/>'),
        "images/a.png",
    ),
    "via": ("via", {"a.png9": VIA}, "a.png"),
    "via project": ("via", {"_via_img_metadata": {"a.png9": VIA}, "_via_settings": {}}, "a.png"),
    "via 1": ("via", {"a.png9": {**VIA, "regions": {"0": VIA["regions"][0]}}}, "a.png"),
    "label studio": (
        "label-studio",
        [{"data": {"image": "a.png"}, "annotations": [{"result": [LABEL_STUDIO]}]}],
        "a.png",
    ),
    "coco of windows": ("coco", COCO, "images/a.png"),
    "coco of addresses": ("coco", {**COCO, "images": ADDRESS}, "a.png"),
}


@pytest.mark.parametrize("case", OF_OTHERS)
def test_files_of_others_are_read_with_their_classes(tmp_path, photos, case):
    reader, content, name = OF_OTHERS[case]
    source = tmp_path / "source"
    source.write_text(content if isinstance(content, str) else json.dumps(content))
    ((file, label, mask, _),), _ = converted(tmp_path, reader, source, photos)
    assert (file, label) == (name, "cat")
    assert np.array_equal(mask, MASK)


def test_files_of_sa1b_are_read(tmp_path):
    (tmp_path / "sa").mkdir()
    (tmp_path / "sa" / "sa_1.json").write_text(json.dumps(SA1B))
    ((file, _, mask, score),), _ = converted(tmp_path, "sa-1b", tmp_path / "sa")
    assert (file, score) == ("a.png", 0.9)
    assert np.array_equal(mask, MASK)


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
    assert lines == ["1 objects of the label __ignore__, which are not objects"]


OTHERS = {
    "this is CVAT's XML: use --from cvat": cvat(BOX),
    "this is VIA's JSON: use --from via": json.dumps({"a": VIA}),
    "this is JSON of SA-1B: use --from sa-1b": json.dumps(SA1B),
    "this is Datumaro's JSON: export it as COCO": '{"dm_format_version": "1.0", "items": []}',
    "this is COCO panoptic": json.dumps(
        {**COCO, "annotations": [{"image_id": 1, "segments_info": [{"id": 1}], "id": 1}]}
    ),
    "this is V7's Darwin JSON": '{"version": "2.0", "item": {"slots": []}}',
    "boxes alone": "<annotation><object><bndbox></bndbox></object></annotation>",
    "none of its objects": json.dumps(
        {**COCO, "annotations": [{"id": 1, "image_id": 1, "bbox": [1, 1, 5, 5]}]}
    ),
}


@each("said", OTHERS)
def test_other_formats_are_refused_by_name_and_nothing_is_written(tmp_path, said):
    source = tmp_path / "source.json"
    source.write_text(OTHERS[said])
    with pytest.raises(DataError, match=said):
        convert(source, tmp_path / "target", ("coco", "png"), Request())
    assert not (tmp_path / "target").exists()


def test_a_format_is_not_recognised_as_another_one(tmp_path):
    for case, (reader, content, _) in OF_OTHERS.items():
        path = tmp_path / "a.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        assert recognised(path, reader) == "", case
