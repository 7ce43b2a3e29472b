"""Names of images in tasks of Label Studio."""

import json
from pathlib import PurePosixPath

import numpy as np

from probseg.convert import Request, convert
from probseg.errors import DataError
from probseg.formats import brush, run_lengths
from support.refusals import refused
from support.rows import each

MASK = np.ones((3, 4), bool)
STORED = Request(storage=PurePosixPath("my photos/set"))


def written(folder, *files):
    """Write a COCO file of images with an object each."""
    images = [{"id": 1, "file_name": file, "height": 3, "width": 4} for file in files]
    annotation = {"id": 1, "image_id": 1, "segmentation": run_lengths.encode(MASK)}
    path = folder / "a.json"
    path.write_text(json.dumps({"images": images, "annotations": [annotation]}))
    return path


def names(tmp_path, *addresses, labels=("car",)):
    """Convert a task for each address to COCO; return the names of the images."""
    result = {
        "type": "brushlabels",
        "original_width": 4.0,
        "original_height": 3,
        "value": {"rle": brush.encode(MASK), "brushlabels": labels},
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


def test_images_of_several_folders_stay_apart(tmp_path):
    found = names(tmp_path, "https://a.example/p/x/1.jpg?a=1", "https://a.example/p/y/1.jpg")
    assert found == ["x/1.jpg", "y/1.jpg"]
    assert names(tmp_path, "s3://a/1.jpg", "s3://b/1.jpg") == ["a/1.jpg", "b/1.jpg"]
    local = ("/data/local-files/?d=x/1.jpg", "/data/local-files/?d=y/1.jpg")
    assert names(tmp_path, *local) == ["x/1.jpg", "y/1.jpg"]
    found = names(tmp_path, "DATA:image/png;base64,AA", "HTTPS://a.example/x/a%20b.jpg")
    assert found == ["a b.jpg"]  # content has no name


@each(
    ("addresses", "words"),
    [
        ([None], "expected text for 'image', got "),
        ([["a.jpg", "b.jpg"]], "expected text for 'image', got "),
        (["/data/local-files/?d=Q&A/1.jpg"], "write & and # as %26 and %23"),
        (["/data/local-files/?d=#1.jpg"], "write & and # as %26 and %23"),
        (["/data/local-files/?d=a.jpg&d=b.jpg"], "write & and # as %26 and %23"),
        (["/data/local-files/?d=a&b"], "write & and # as %26 and %23"),
        (["/data/local-files/?d=../1.jpg"], "leads to no file"),
        (["https://a.example/"], "leads to no file"),
        (["/data/local-files/"], "leads to no file"),
        (["https://a.example/1.jpg?a=1", "https://a.example/1.jpg?a=2"], "the name of two images"),
    ],
)
def test_what_is_no_address_of_one_file_is_refused(tmp_path, addresses, words):
    refused(DataError, lambda: names(tmp_path, *addresses), words)
    for labels in ("car", [None], [5], {"car": 1}):
        words = (tmp_path / "tasks.json", "brushlabels", "expected ")
        refused(DataError, lambda of=labels: names(tmp_path, "a.jpg", labels=of), *words)


@each(
    "name",
    ["b/d.jpg", "a b.jpg", "100%.jpg", "%20.jpg", "a#1.jpg", "a?b.jpg", "a+b&c=d.jpg", "ü;.jpg"],
)
def test_names_come_back(tmp_path, name):
    source, target = written(tmp_path, name), tmp_path / "b.json"
    convert(source, tmp_path / "tasks.json", ("coco", "label-studio"), STORED)
    convert(tmp_path / "tasks.json", target, ("label-studio", "coco"), STORED)
    (image,) = json.loads(target.read_text())["images"]
    assert image == {"id": 1, "file_name": name, "height": 3, "width": 4}


def test_files_are_in_a_folder_of_the_document_root(tmp_path):
    target = tmp_path / "b.json"

    def task(file, request=STORED):
        convert(written(tmp_path, file), target, ("coco", "label-studio"), request)
        return json.loads(target.read_text())[0]

    refused(DataError, lambda: task("a.jpg", Request()), "a.jpg: ", "--storage")
    refused(DataError, lambda: task("x/a\\b.jpg"), "backslash")
    assert task("a.jpg")["data"]["image"] == "/data/local-files/?d=my%20photos/set/a.jpg"
    formats, other = ("label-studio", "coco"), Request(storage=PurePosixPath("my photos/other"))
    refused(DataError, lambda: convert(target, tmp_path / "c.json", formats, other), "--storage")
