"""Scores of predictions through the formats, and results as pycocotools evaluates them."""

import json
from pathlib import PurePosixPath

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from probseg.convert import WRITERS, Ledger, Request, convert
from probseg.convert.parts import AnnotatedImage, LabelledRegion
from probseg.errors import DataError
from probseg.formats.regions import as_region
from support.conversions import reader_of
from support.fakes import draw_scene, save
from support.rows import each

SIZE = (40, 60)


def square(x, y, label="car", score=None):
    mask = np.zeros(SIZE, dtype=bool)
    mask[y : y + 12, x : x + 12] = True
    return LabelledRegion(as_region(mask), label, score)


def written(path, images):
    """Write images with these objects, by their names, in the format of COCO."""
    annotated = [AnnotatedImage(name, SIZE, objects) for name, objects in images.items()]
    WRITERS["coco"](path, annotated, Request(), Ledger())
    return path


def truth(path):
    """Two cars on two images; ids are neither in order nor from 1 on."""
    written(path, {"a.jpg": [square(3, 3)], "b/c.jpg": [square(30, 20)]})
    content = json.loads(path.read_text())
    for entry, key in zip(content["images"], (900, 17), strict=True):
        entry["id"] = key
    for entry, key in zip(content["annotations"], (900, 17), strict=True):
        entry.update(image_id=key, category_id=44)
    content["categories"] = [{"id": 44, "name": "car"}, {"id": 3, "name": "dog"}]
    path.write_text(json.dumps(content))
    return path


def as_results(place, predicted, ids_of):
    """Convert predictions to results with the ids of a file."""
    source = written(place / "a.json", predicted)
    request = Request(ids_of=ids_of)
    return convert(source, place / "results.json", ("coco", "coco-results"), request)


def test_pycocotools_evaluates_results(tmp_path):
    """The second of three predictions in the order of their scores is wrong."""
    predicted = {
        "./b/c.jpg": [square(2, 2, score=0.5), square(30, 20, score=0.3)],
        "a.jpg": [square(3, 3, score=0.9)],
        "empty.jpg": [],
    }
    ledger = as_results(tmp_path, predicted, truth(tmp_path / "truth.json"))
    assert ledger.lines() == ["1 image without objects in the results, which do not list them"]
    reference = COCO(tmp_path / "truth.json")
    found = reference.loadRes(str(tmp_path / "results.json"))
    assert [found.anns[key]["area"] for key in sorted(found.anns)] == [144] * 3  # of the mask
    evaluation = COCOeval(reference, found, "segm")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    recalls = np.linspace(0, 1, 101)
    assert evaluation.stats[0] == pytest.approx(np.where(recalls <= 0.5, 1, 2 / 3).mean())


def test_what_the_ground_truth_does_not_list_is_counted(tmp_path):
    predicted = {"a.jpg": [square(3, 3), square(3, 3, "tree", 0.5)], "z.jpg": [square(3, 3)]}
    ledger = as_results(tmp_path, predicted, truth(tmp_path / "truth.json"))
    assert sorted(ledger.lines()) == [
        "1 image without objects in the results, which do not list them",
        "1 object of classes that the file of --ids-of does not list",
        "1 object of images that the file of --ids-of does not list",
        "objects without a score, which get 1: 1",
    ]
    (result,) = json.loads((tmp_path / "results.json").read_text())
    assert (result["image_id"], result["category_id"], result["score"]) == (900, 44, 1)


@each("content", [None, "{", '{"images": []}', '{"images": [{"id": 1}]}', "[]"])
def test_a_file_that_gives_no_ids_is_named(tmp_path, content):
    path = None if content is None else tmp_path / "truth.json"
    if path is not None:
        path.write_text(content)
    with pytest.raises(DataError, match="--ids-of"):
        as_results(tmp_path, {"a.jpg": [square(3, 3)]}, path)
    assert not (tmp_path / "results.json").exists()


@each("writer", sorted(set(WRITERS) - {"coco-results"}))
def test_scores_stay_or_are_counted(tmp_path, writer):
    save(draw_scene(*SIZE)[0], tmp_path / "images" / "a.jpg")
    source = written(tmp_path / "a.json", {"a.jpg": [square(3, 3, score=0.25), square(30, 20)]})
    request = Request(tmp_path / "images", 0, PurePosixPath("storage"))
    ledger = convert(source, tmp_path / "b", ("coco", writer), request)
    convert(tmp_path / "b", tmp_path / "c.json", (reader_of(writer), "coco"), request)
    back = json.loads((tmp_path / "c.json").read_text())["annotations"]
    keeps = writer.startswith(("coco", "labelme"))
    assert ("scores of objects: 1" in ledger.lines()) is not keeps
    assert [one.get("score") for one in back] == [0.25 if keeps else None, None]
    for score in ("high", True, [0.5]):
        text = json.dumps(json.loads(source.read_text())).replace("0.25", json.dumps(score))
        (tmp_path / "d.json").write_text(text)
        with pytest.raises(DataError, match="'score' must be a finite number"):
            convert(tmp_path / "d.json", tmp_path / "e.json", ("coco", "coco"), Request())
