"""COCO files of probseg in FiftyOne and supervision, and back.

Their Pythons, each of an environment of its own, are in PROBSEG_FIFTYONE and PROBSEG_SUPERVISION.
The blocks of docs/integrations.md run there as they are.
"""

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO

from probseg.convert import WRITERS, Ledger, Request, convert
from probseg.convert.parts import AnnotatedImage, LabelledRegion
from probseg.formats.regions import as_region, overlap
from support.fakes import draw_scene, save

FIFTYONE, SUPERVISION = (os.environ.get(f"PROBSEG_{name}") for name in ("FIFTYONE", "SUPERVISION"))
SIZE = (120, 160)


WITH_PATIENCE = """
from fiftyone.core.service import Service
Service._wait_for_child_port.__defaults__ = (None, 600)  # 60 s are too few where others are at work
"""

IN_THE_APP = """
from urllib.request import urlopen
page = urlopen(session.url).read().decode()
assert "FiftyOne" in page, page
unsure = dataset.filter_labels("objects", fo.ViewField("confidence") < 0.6)
assert unsure.distinct("objects.detections.label") == ["ball"]
by_score = dataset.sort_by(fo.ViewField("objects.detections.confidence").min())
assert len(by_score) == len(dataset)
"""

ROWS_OF_FIFTYONE = """
import json
found = [one for sample in dataset for one in sample.objects.detections]
print(json.dumps([[one.label, one.confidence, int(one.mask.sum())] for one in found]))
"""

ROWS_OF_SUPERVISION = """
import json
rows = [
    [dataset.classes[number], None, int(mask.sum())]
    for _, _, found in dataset
    for mask, number in zip(found.mask, found.class_id)
]
print(json.dumps(rows))
"""


def documented(program):
    """Return the Python blocks of the documentation that are about a program, in order."""
    page = Path(__file__).parents[2] / "docs" / "integrations.md"
    section = page.read_text("utf-8").partition("## FiftyOne and supervision\n")[2]
    blocks = re.findall(r"^```python\n(.*?)^```", section.partition("\n## ")[0], re.M | re.S)
    assert len(blocks) == 3
    return {"fiftyone": blocks[:2], "supervision": blocks[2:]}[program]


def with_python(python, script, place, **variables):
    """Run a script where the files are; return what it prints last."""
    own = {"HOME": str(place), **variables}
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    printed, errors = place / "printed.txt", place / "errors.txt"  # a server may outlive the script
    with printed.open("w") as output, errors.open("w") as told:
        command, streams = [python, "-c", script], {"stdout": output, "stderr": told}
        done = subprocess.run(command, **streams, cwd=place, env={**clean, **own}, check=False)
    assert done.returncode == 0, errors.read_text()[-3000:]
    return json.loads(printed.read_text().splitlines()[-1])


@pytest.fixture
def objects(tmp_path):
    """Two objects on two photographs, one of them with a hole and a second part; and their file."""
    images = []
    for number in range(2):
        pixels, labels = draw_scene(*SIZE, objects=2, seed=number)
        save(pixels, tmp_path / "photographs" / f"{number}.png")
        first = labels == 1
        y, x = np.argwhere(first).mean(axis=0).astype(int)
        first[y - 3 : y + 3, x - 3 : x + 3] = False
        first[:4, :6] = True
        drawn = [(first, "ball", 0.5), (labels == 2, "bat", 0.75)]
        regions = [LabelledRegion(as_region(mask), *rest) for mask, *rest in drawn]
        images.append(AnnotatedImage(f"{number}.png", SIZE, regions))
    (tmp_path / "results").mkdir()
    WRITERS["coco"](tmp_path / "results" / "annotations.json", images, Request(), Ledger())
    return [one for image in images for one in image.objects]


def came_back(place):
    """Read what the program has written by `data convert`; return masks, labels and scores."""
    convert(place / "back.json", place / "again.json", ("coco", "coco"), Request())
    read = COCO(place / "again.json")
    names = {image["id"]: image["file_name"] for image in read.imgs.values()}
    found = sorted(read.anns.values(), key=lambda one: (names[one["image_id"]], one["id"]))
    labels = [read.cats[one["category_id"]]["name"] for one in found]
    return [read.annToMask(one) for one in found], labels, [one.get("score") for one in found]


@pytest.mark.skipif(FIFTYONE is None, reason="PROBSEG_FIFTYONE names no Python with FiftyOne")
def test_fiftyone_as_documented(tmp_path, objects):
    load, write = documented("fiftyone")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    variables = {"FIFTYONE_DEFAULT_APP_PORT": port, "FIFTYONE_DO_NOT_TRACK": "true"}
    script = WITH_PATIENCE + load + IN_THE_APP + write + ROWS_OF_FIFTYONE
    rows = with_python(FIFTYONE, script, tmp_path, **variables, BROWSER="true")
    assert rows == [[one.label, one.score, one.region.area] for one in objects]
    masks, labels, scores = came_back(tmp_path)
    assert labels == [one.label for one in objects]
    assert scores == [one.score for one in objects]
    for mask, one in zip(masks, objects, strict=True):
        assert overlap(as_region(mask > 0), one.region) > 0.93, "moved by a pixel at most"


@pytest.mark.skipif(SUPERVISION is None, reason="PROBSEG_SUPERVISION names no such Python")
def test_supervision_as_documented(tmp_path, objects):
    (block,) = documented("supervision")
    rows = with_python(SUPERVISION, block + ROWS_OF_SUPERVISION, tmp_path)
    assert rows == [[one.label, None, one.region.area] for one in objects]
    masks, labels, _ = came_back(tmp_path)
    assert labels == [one.label for one in objects]
    for mask, one in zip(masks, objects, strict=True):
        if one.label == "bat":  # without hole and second part
            assert 0.94 < mask.sum() / one.region.area < 1
