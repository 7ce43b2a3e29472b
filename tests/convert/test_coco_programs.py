"""COCO files of probseg in FiftyOne and supervision, and back.

Their Pythons, each of an environment of its own, are in PROBSEG_FIFTYONE and PROBSEG_SUPERVISION.
FiftyOne's importer and exporter run without its database.
"""

import json
import os
import subprocess

import numpy as np
import pytest
from pycocotools.coco import COCO

from probseg.convert import WRITERS, Ledger, Request, convert
from probseg.convert.parts import AnnotatedImage, LabelledRegion
from probseg.formats.regions import as_region, overlap
from support.fakes import draw_scene, save

FIFTYONE, SUPERVISION = (os.environ.get(f"PROBSEG_{name}") for name in ("FIFTYONE", "SUPERVISION"))
SIZE = (120, 160)

BY_FIFTYONE = """
import json
from fiftyone.utils.coco import COCODetectionDatasetExporter, COCODetectionDatasetImporter
given = COCODetectionDatasetImporter(
    data_path="photographs", labels_path="a.json", label_types="segmentations"
)
written = COCODetectionDatasetExporter(labels_path="back.json")
rows = []
with given, written:
    for path, metadata, labels in given:
        for one in labels.detections:
            rows.append([one.label, one.confidence, int(one.mask.sum())])
            one["iscrowd"] = 1
        written.export_sample(path, labels, metadata=metadata)
print(json.dumps(rows))
"""

BY_SUPERVISION = """
import json
import supervision as sv
dataset = sv.DetectionDataset.from_coco("photographs", "a.json", force_masks=True)
rows = [
    [dataset.classes[number], None, int(mask.sum())]
    for _, _, found in dataset
    for mask, number in zip(found.mask, found.class_id)
]
dataset.as_coco(annotations_path="back.json")
print(json.dumps(rows))
"""


def with_python(python, script, place):
    """Run a script where the files are; return what it prints last."""
    own = {"HOME": str(place)}
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", script], capture_output=True, text=True, cwd=place, env={**clean, **own},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


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
    WRITERS["coco"](tmp_path / "a.json", images, Request(), Ledger())
    return [one for image in images for one in image.objects]


def came_back(place):
    """Read what the program has written by `data convert`; return masks, labels and scores."""
    convert(place / "back.json", place / "again.json", ("coco", "coco"), Request())
    read = COCO(place / "again.json")
    names = {image["id"]: image["file_name"] for image in read.imgs.values()}
    found = sorted(read.anns.values(), key=lambda one: (names[one["image_id"]], one["id"]))
    labels = [read.cats[one["category_id"]]["name"] for one in found]
    return [read.annToMask(one) for one in found], labels, [one.get("score") for one in found]


@pytest.mark.skipif(
    FIFTYONE is None, reason="PROBSEG_FIFTYONE does not name a Python with FiftyOne"
)
def test_fiftyone(tmp_path, objects):
    rows = with_python(FIFTYONE, BY_FIFTYONE, tmp_path)
    assert rows == [[one.label, one.score, one.region.area] for one in objects]
    masks, labels, scores = came_back(tmp_path)
    assert labels == [one.label for one in objects]
    assert scores == [one.score for one in objects]
    for mask, one in zip(masks, objects, strict=True):
        assert overlap(as_region(mask > 0), one.region) > 0.93, "moved by a pixel at most"


@pytest.mark.skipif(
    SUPERVISION is None, reason="PROBSEG_SUPERVISION does not name a Python with supervision"
)
def test_supervision(tmp_path, objects):
    rows = with_python(SUPERVISION, BY_SUPERVISION, tmp_path)
    assert rows == [[one.label, None, one.region.area] for one in objects]
    masks, labels, _ = came_back(tmp_path)
    assert labels == [one.label for one in objects]
    for mask, one in zip(masks, objects, strict=True):
        if one.label == "bat":  # without hole and second part
            assert 0.94 < mask.sum() / one.region.area < 1
