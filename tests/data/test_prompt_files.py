"""Files of prompts in the format of COCO, and what they share with annotation files."""

import json

import pytest
from drawn_sets import write_coco
from refusals import refused

from probseg.data import COCO
from probseg.data.conversion import READERS, Ledger, Request
from probseg.data.prompts import read_prompts
from probseg.errors import DataError


@pytest.fixture
def path(tmp_path):
    """Three images, each with a bat, a ball and a crowd."""
    path = write_coco(tmp_path / "my.json", tmp_path / "photos")
    edited(path, "annotations", bbox=[1, 2, 20, 30])
    return path


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


def test_files_of_crowds_are_named_as_such(path, capsys):
    assert len(COCO(path, path.parent / "photos")) == 6
    assert capsys.readouterr().err.count(f"{path}: 3 of 9 annotations are crowds") == 1
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


@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize(
    ("key", "name", "value"),
    [
        ("images", "height", 48.5),
        ("images", "width", "64"),
        ("images", "height", 0),
        ("images", "width", True),
        ("images", "id", "1"),
        ("annotations", "image_id", 1.5),
        ("annotations", "image_id", "1"),
        ("annotations", "iscrowd", "0"),
        ("categories", "id", "1"),
    ],
)
def test_numbers_are_whole(path, read, key, name, value):
    edited(path, key, **{name: value})
    refused(DataError, lambda: read(path), path, f"'{name}' must be a whole number", repr(value))


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_numbers_may_be_written_as_floats(path, read):
    before = read(path)
    content = json.loads(path.read_text())
    for key in ("images", "annotations", "categories"):
        for entry in content[key]:
            for name in ("id", "image_id", "category_id", "height", "width"):
                if name in entry:
                    entry[name] = float(entry[name])
            if isinstance(entry.get("segmentation"), dict):
                entry["segmentation"]["size"] = [48.0, 64.0]
    path.write_text(json.dumps(content, indent=1))
    after = read(path)
    assert len(after if isinstance(after, list | COCO) else after.images) == len(
        before if isinstance(before, list | COCO) else before.images
    )
    if isinstance(after, COCO):
        assert [after.object_name(i) for i in range(6)] == [before.object_name(i) for i in range(6)]
    if not isinstance(after, list | COCO):
        assert after == before
