"""Names of images in tasks of Label Studio."""

import json
from pathlib import PurePosixPath

import numpy as np
import pytest

from probseg.convert import Request, convert
from probseg.errors import DataError
from probseg.formats import brush, run_lengths
from support.rows import each

MASK = np.ones((3, 4), bool)
STORED = Request(storage=PurePosixPath("my photos/set"))


def names(tmp_path, *addresses):
    """Convert a task for each address to COCO; return the names of the images."""
    result = {
        "type": "brushlabels",
        "original_width": 4.0,
        "original_height": 3,
        "value": {"rle": brush.encode(MASK)},
    }
    tasks = [
        {"data": {"image": address}, "annotations": [{"result": [result]}]} for address in addresses
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks), encoding="utf-8")
    target = tmp_path / "coco.json"
    target.unlink(missing_ok=True)
    convert(tmp_path / "tasks.json", target, ("label-studio", "coco"), Request())
    return [image["file_name"] for image in json.loads(target.read_text())["images"]]


@each(
    ("address", "name"),
    [
        ("/data/local-files/?d=my%20photos/d%C3%A9cran.jpg", "my photos/décran.jpg"),
        ("https://tool.example/data/local-files/?d=x/cat.jpg", "x/cat.jpg"),
        ("/data/local-files?d=x/cat.jpg", "x/cat.jpg"),
        ("/data/local-files/?d=x\\cat.jpg", "x/cat.jpg"),
        ("/data/local-files/?d=x%5Ccat.jpg", "x/cat.jpg"),
        ("/data/local-files/?d=C%3A%5Cx%5Ccat.jpg", "x/cat.jpg"),
        ("/data/upload/1/0a1b-cat.jpg", "0a1b-cat.jpg"),
        ("https://host.example/x/cat%20%231.jpg?X-Amz-Date=1#top", "cat #1.jpg"),
        ("s3://bucket/x/100%20cat.jpg", "100%20cat.jpg"),
        ("gs://bucket/cat.jpg", "cat.jpg"),
        ("x/cat.jpg", "x/cat.jpg"),
        ("100%25 of #1?.jpg", "100%25 of #1?.jpg"),
    ],
)
def test_names_of_addresses(tmp_path, address, name):
    assert names(tmp_path, address) == [name]


@each("address", [None, 5, ["a.jpg", "b.jpg"], {"url": "a.jpg"}])
def test_an_address_is_text(tmp_path, address):
    with pytest.raises(DataError, match=r"tasks\.json: .*expected text for 'image', got "):
        names(tmp_path, address)


@each("name", ["Q&A/1.jpg", "#1.jpg", "a.jpg&d=b.jpg", "a&b"])
def test_a_local_path_that_is_not_encoded_is_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"write & and # as %26 and %23"):
        names(tmp_path, f"/data/local-files/?d={name}")


def test_content_and_schemes_in_capitals(tmp_path):
    found = names(tmp_path, "DATA:image/png;base64,AA", "HTTPS://a.example/x/a%20b.jpg")
    assert found == ["a b.jpg"]


@each("labels", ["car", [None], [5], {"car": 1}])
def test_labels_are_a_list_of_text(tmp_path, labels):
    value = {"rle": brush.encode(MASK), "brushlabels": labels}
    size = {"original_width": 4, "original_height": 3}
    result = [{"type": "brushlabels", **size, "value": value}]
    tasks = [{"data": {"image": "a.jpg"}, "annotations": [{"result": result}]}]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    with pytest.raises(DataError, match=r"tasks\.json: .*expected (text|a list) for .+brushlabels"):
        convert(tmp_path / "tasks.json", tmp_path / "b.json", ("label-studio", "coco"), Request())


def test_images_of_several_folders_stay_apart(tmp_path):
    found = names(tmp_path, "https://a.example/p/x/1.jpg?a=1", "https://a.example/p/y/1.jpg")
    assert found == ["x/1.jpg", "y/1.jpg"]
    assert names(tmp_path, "s3://a/1.jpg", "s3://b/1.jpg") == ["a/1.jpg", "b/1.jpg"]
    local = ("/data/local-files/?d=x/1.jpg", "/data/local-files/?d=y/1.jpg")
    assert names(tmp_path, *local) == ["x/1.jpg", "y/1.jpg"]
    with pytest.raises(DataError, match=r"1\.jpg: is the name of two images"):
        names(tmp_path, "https://a.example/1.jpg?a=1", "https://a.example/1.jpg?a=2")
    for wrong in ("/data/local-files/?d=../1.jpg", "https://a.example/", "/data/local-files/"):
        with pytest.raises(DataError, match="leads to no file"):
            names(tmp_path, wrong)


@each(
    "name",
    ["b/d.jpg", "a b.jpg", "100%.jpg", "%20.jpg", "a#1.jpg", "a?b.jpg", "a+b&c=d.jpg", "ü;.jpg"],
)
def test_names_come_back(tmp_path, name):
    source, target = tmp_path / "a.json", tmp_path / "b.json"
    annotation = {"id": 1, "image_id": 1, "segmentation": run_lengths.encode(MASK)}
    images = [{"id": 1, "file_name": name, "height": 3, "width": 4}]
    source.write_text(json.dumps({"images": images, "annotations": [annotation]}))
    convert(source, tmp_path / "tasks.json", ("coco", "label-studio"), STORED)
    convert(tmp_path / "tasks.json", target, ("label-studio", "coco"), STORED)
    assert json.loads(target.read_text())["images"] == images


def test_a_backslash_cannot_be_written(tmp_path):
    images = [{"id": 1, "file_name": "a\\b.jpg", "height": 3, "width": 4}]
    (tmp_path / "a.json").write_text(json.dumps({"images": images, "annotations": []}))
    with pytest.raises(DataError, match="backslash"):
        convert(tmp_path / "a.json", tmp_path / "b.json", ("coco", "label-studio"), STORED)


def test_files_are_in_a_folder_of_the_document_root(tmp_path):
    images = [{"id": 1, "file_name": "a.jpg", "height": 3, "width": 4}]
    (tmp_path / "a.json").write_text(json.dumps({"images": images, "annotations": []}))
    target = tmp_path / "b.json"
    with pytest.raises(DataError, match=r"a\.jpg: .*--storage"):
        convert(tmp_path / "a.json", target, ("coco", "label-studio"), Request())
    convert(tmp_path / "a.json", target, ("coco", "label-studio"), STORED)
    (task,) = json.loads(target.read_text())
    assert task["data"]["image"] == "/data/local-files/?d=my%20photos/set/a.jpg"
    other = Request(storage=PurePosixPath("my photos/other"))
    with pytest.raises(DataError, match="not in the folder of --storage"):
        convert(target, tmp_path / "c.json", ("label-studio", "coco"), other)
