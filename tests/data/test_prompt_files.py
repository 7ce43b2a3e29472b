"""Files of prompts in the format of COCO, and what they share with annotation files."""

import json
from functools import partial

import pytest

from probseg.convert import READERS, Ledger, Request
from probseg.data import COCO
from probseg.data.prompts import read_prompts
from probseg.errors import DataError
from probseg.types import BoxStep, Click
from support.drawn_sets import write_coco
from support.refusals import refused
from support.rows import each


def prompted(folder):
    """Three images, each with a bat, a ball and a crowd."""
    path = write_coco(folder / "my.json", folder / "photos")
    edited(path, "annotations", bbox=[1, 2, 20, 30])
    return path


@pytest.fixture
def path(tmp_path):
    return prompted(tmp_path)


READ = {
    "fit": lambda path: COCO(path, path.parent / "photos"),
    "predict": read_prompts,
    "convert": lambda path: [
        (image.file, image.size, [one.region.mask().tolist() for one in image.objects])
        for image in READERS["coco"](path, Request(), Ledger())
    ],
}


def edited(path, key, **entries):
    content = json.loads(path.read_text())
    content[key] = [{**entry, **entries} for entry in content[key]]
    path.write_text(json.dumps(content, indent=1))


def test_files_of_crowds_are_named_as_such(path, caplog):
    assert len(COCO(path, path.parent / "photos")) == 6
    assert caplog.text.count(f"{path}: 3 of 9 annotations are crowds") == 1
    prompts = read_prompts(path)
    assert len([one for image in prompts.images for one in image.objects]) == 6
    assert prompts.crowds == 3
    edited(path, "annotations", iscrowd=1)
    words = (path, "9 of 9 annotations are crowds", "iscrowd", "CVAT")
    refused(DataError, lambda: READ["fit"](path), *words, "crowd: true")
    refused(DataError, lambda: READ["predict"](path), *words)
    assert len(COCO(path, path.parent / "photos", crowd=True)) == 9
    edited(path, "annotations", iscrowd=False)
    assert len(READ["fit"](path)) == 9


@each(
    ("key", "name", "value"),
    [
        ("images", "height", 48.5),
        ("images", "width", "64 px"),
        ("images", "height", 0),
        ("images", "width", True),
        ("images", "id", "-1"),
        ("annotations", "image_id", 1.5),
        ("annotations", "image_id", "a.jpg"),
        ("annotations", "iscrowd", "no"),
        ("categories", "id", "²"),
    ],
)
def test_numbers_are_whole(tmp_path, key, name, value):
    path = prompted(tmp_path)
    edited(path, key, **{name: value})
    for read in READ.values():
        words = (path, f"'{name}' must be a whole number", repr(value))
        refused(DataError, partial(read, path), *words)


@pytest.mark.parametrize("kind", [float, str])
def test_numbers_may_be_written_as_floats_or_texts(path, kind):
    def seen(read):
        answer = read(path)
        return [s.name for s in answer] if isinstance(answer, COCO) else answer

    before = [seen(read) for read in READ.values()]
    content = json.loads(path.read_text())
    for entry in (entry for key in LISTS for entry in content[key]):
        for name in {"id", "image_id", "category_id", "height", "width"} & entry.keys():
            entry[name] = kind(entry[name])
        if isinstance(entry.get("segmentation"), dict):
            entry["segmentation"]["size"] = [*map(kind, (48, 64))]
    path.write_text(json.dumps(content, indent=1))
    assert [seen(read) for read in READ.values()] == before


LISTS = ("images", "annotations", "categories")


IMAGE = {"id": 1, "file_name": "sub/a.jpg", "height": 40, "width": 50}


def as_coco(*images):
    one = [{"id": i["id"], "image_id": i["id"], "bbox": [1, 2, 3, 4]} for i in images]
    return json.dumps({"images": images, "annotations": one})


@each(
    ("name", "text"),
    [
        ("p.csv", "image,x,y,positive\nsub/a.jpg,3,4,\n./sub//a.jpg,5,6,0\nsub/./a.jpg,7,8,1\n"),
        ("p.json", '{"./sub/a.jpg": [{"clicks": [[3, 4], [5, 6, false], [7, 8, true]]}]}'),
        ("p.json", as_coco({**IMAGE, "file_name": "./sub//a.jpg"})),
    ],
)
def test_a_photograph_has_one_name_however_its_path_is_written(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (image,) = read_prompts(tmp_path / name).images
    clicks = Click(3, 4), Click(5, 6, positive=False), Click(7, 8)
    assert image.file == "sub/a.jpg"
    (one,) = image.objects
    assert one.steps in (clicks, (BoxStep((1, 2, 4, 6)),))


@each(
    ("text", "words"),
    [
        ('image,x,y,label\na.jpg,3,4,"cat\nb.jpg,5,6,dog\n', "unexpected end of data"),
        (f"image,x,y\n{'z' * 200_000},3,4\n", "field larger than"),
        ('image,x,y\na.jpg,"3,5",4\n', "line 2: `x` must be a finite number"),
        ("image,x,y\na.jpg,3,\n", "line 2: `y` must be a finite number"),
        ("image,x0,y0,x1,y1\na.jpg,1,2,3,\n", "line 2: `y1` must be a finite number"),
        ("image,x,y\na.jpg,,\n", "a.jpg: the object 1 has neither"),
        ("image,x0,y0,x1,y1\na.jpg,1,2,9,9\na.jpg,1,2,8,8\n", "line 3: a second box"),
        ("image,x,y,label\na.jpg,1,2,cat\na.jpg,1,2,dog\n", "line 3: a second label"),
        ("image,x,y\na,b.jpg,3,4\n", "line 2: has more cells than columns"),
        ("image,x,y,x\na.jpg,3,4,5\n", "each once"),
        ("image;x;y\na.jpg;3;4\n", "image;x;y"),
        ("image,x,y,positive\na.jpg,3,4,yes\n", "line 2: `positive` must be 1 or 0, got 'yes'"),
        ('{"a.jpg": [{"box": "1234"}]}', "`box` must be four numbers [x0, y0, x1, y1], got '1234'"),
        ('{"a.jpg": [{"box": [1, 2, 3, true]}]}', "`box` must be four numbers"),
        ('{"a.jpg": [{"clicks": [3, 4]}]}', "a click must be [x, y]"),
        ('{"a.jpg": [{"clicks": [["3", 4]]}]}', "`x` must be a number such as 12.5, got '3'"),
        ('{"a.jpg": {"box": [1, 2, 3, 4]}}', "a.jpg: expected a list of objects"),
        ('{"a.jpg": [{"box": [1,2,3,4]}], "./a.jpg": []}', "'./a.jpg' is there more than"),
        (as_coco({**IMAGE, "file_name": None}), "'file_name' must be a text, got None"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_prompt_is_refused_by_its_place(tmp_path, text, words):
    path = tmp_path / ("p.csv" if text.startswith("image") else "p.json")
    path.write_text(text)
    refused(DataError, lambda: read_prompts(path), path, words)


def test_tables_of_prompts_from_spreadsheets(tmp_path):
    signs = {"1": True, "": True, "TRUE": True, "+": True, "0": False, "False": False, "-": False}
    rows = [f"a.jpg , 1, {number},4,{sign}\r\n" for number, sign in enumerate(signs)]
    path = tmp_path / "clicks.csv"
    text = "".join(["image, object, x ,y,positive\r\n", *rows, ",,,,\r\n", "a.jpg,2,7, 8,\r\n"])
    path.write_text(text, encoding="utf-8-sig")
    (image,) = read_prompts(path).images
    assert image.file == "a.jpg"
    first, second = image.objects
    assert [click.positive for click in first.steps] == list(signs.values())
    assert [click[:2] for click in second.steps] == [(7, 8)]
