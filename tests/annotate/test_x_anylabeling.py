"""The remote server of X-AnyLabeling, its routes and the program itself.

The program is the Python of its environment, in PROBSEG_X_ANYLABELING.
"""

import base64
import io
import json
import os
import subprocess

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from probseg.annotate.tools.prompted import PromptedModel
from probseg.annotate.tools.x_anylabeling import MODEL_ID, Backend, create_app
from probseg.convert import Request, convert
from probseg.convert.labelme import outlines, writer
from probseg.convert.parts import AnnotatedImage, LabelledRegion, Ledger
from probseg.formats.polygons import Polygon, fill
from probseg.formats.regions import as_region, overlap
from support.fakes import draw_scene
from support.rows import each
from support.runs import printed_line, started

HOST = "127.0.0.1:8000"
MODEL = "lite0_unet_prop"
PHOTO, LABELS = draw_scene(48, 64, objects=2)
POINTS = [("point", [16, 24], 1), ("point", [48, 24], 0)]
BOX = [("rectangle", [2, 3, 31, 44], 1)]

PROGRAM = os.environ.get("PROBSEG_X_ANYLABELING")
needs_program = pytest.mark.skipif(
    PROGRAM is None, reason="PROBSEG_X_ANYLABELING does not name the Python of X-AnyLabeling"
)

ASK = """
import json, os, sys
os.environ["QT_QPA_PLATFORM"] = "offscreen"
from PyQt6.QtWidgets import QApplication
application = QApplication([])
from PyQt6.QtGui import QImage
import anylabeling.config
from anylabeling.services.auto_labeling.remote_server import RemoteServer
from anylabeling.views.labeling.widgets.auto_labeling.auto_labeling import AutoLabelingWidget
address, path, marks = sys.argv[1:]
settings = {"remote_server_settings": {"server_url": address}}
anylabeling.config.current_config_file = json.dumps(settings)  # as YAML
config = {"type": "remote_server", "name": "remote", "display_name": "remote"}
messages = []
client = RemoteServer(config, messages.append)
(model, info), = client.get_available_models().items()
unknown = {one["name"] for one in info["widgets"]} - {*AutoLabelingWidget.supported_remote_widgets}
assert not unknown, unknown
client.set_model_id(model)
client.set_auto_labeling_marks(json.loads(marks))
result = client.predict_shapes(QImage(path), path)
shapes = [
    [one.label, one.shape_type, one.score, [[p.x(), p.y()] for p in one.points]]
    for one in result.shapes
]
print(json.dumps([result.replace, messages, shapes]))
"""

KEEP = """
import os, sys
os.environ["QT_QPA_PLATFORM"] = "offscreen"
from PyQt6.QtWidgets import QApplication
application = QApplication([])
from anylabeling.views.labeling.label_file import LabelFile
place = sys.argv[1]
file = LabelFile(place)
shapes = [shape.to_dict() for shape in file.shapes]
assert all(len(shape["points"]) > 2 for shape in shapes)
file.save(place, shapes, file.image_path, 48, 64, None, file.other_data, file.flags)
"""


@pytest.fixture(scope="module")
def model():
    return PromptedModel(MODEL)


@pytest.fixture
def client(model):
    return TestClient(create_app(Backend(model), frozenset({HOST})), base_url=f"http://{HOST}")


def encoded(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


IMAGE = encoded(PHOTO)


def marked(marks):
    return [{"type": kind, "data": data, "label": label} for kind, data, label in marks]


def question(marks, **changes):
    return {"model": MODEL_ID, "image": IMAGE, "params": {"marks": marked(marks)}, **changes}


def drawn(rings):
    return fill([Polygon(np.array(ring)) for ring in rings], PHOTO.shape[:2])


def wanted(model, marks):
    points = {label: [data for kind, data, one in marks if (kind, one) == ("point", label)]
              for label in (0, 1)}  # fmt: skip
    (box,) = [data for kind, data, _ in marks if kind == "rectangle"] or [None]
    return model.answer(model.encode(PHOTO), points[1], points[0], box).binary


def test_the_model_is_listed(client):
    (found,) = client.get("/v1/models").json()["data"].items()
    assert found[0] == MODEL_ID
    assert MODEL in found[1]["display_name"]
    assert client.get(f"/v1/models/{MODEL_ID}/info").json()["data"] == found[1]
    assert client.get("/health").json()["status"] == "healthy"


@each("marks", [POINTS, BOX, [*POINTS, *BOX]])
def test_marks_become_polygons_of_the_mask(client, model, marks):
    answer = client.post("/v1/predict", json=question(marks)).json()
    assert answer["success"]
    assert answer["data"]["replace"] is False, "or finished objects would be removed"
    shapes = answer["data"]["shapes"]
    assert {(one["label"], one["shape_type"]) for one in shapes} == {
        ("AUTOLABEL_OBJECT", "polygon")
    }
    mask = drawn([one["points"] for one in shapes])
    assert overlap(as_region(mask), as_region(wanted(model, marks))) > 0.9
    turned = [(kind, data[2:] + data[:2], label) for kind, data, label in BOX]
    if marks == BOX:
        assert client.post("/v1/predict", json=question(turned)).json() == answer


@each("marks", [[], [POINTS[1]]])
def test_without_an_object_there_is_no_shape(client, marks):
    assert client.post("/v1/predict", json=question(marks)).json()["data"]["shapes"] == []


@each(
    ("change", "word"),
    [
        ({"model": "other"}, "model"),
        ({"image": "data:image/png;base64,%"}, "not a request of X-AnyLabeling"),
        ({"image": "data:image/png;base64,AAAA"}, "image"),
        ({"image": 5}, "not a request of X-AnyLabeling"),
        ({"params": {"marks": marked([("point", [99, 5], 1)])}}, "inside the image"),
        ({"params": {"marks": marked([*BOX, *BOX])}}, "one rectangle"),
        ({"params": {"marks": marked([("rectangle", [1, 1, 9, 9], 0)])}}, "mark"),
        ({"params": {"marks": [{"type": "point"}]}}, "not a request of X-AnyLabeling"),
    ],
)
def test_wrong_questions_are_refused(client, caplog, change, word):
    answer = client.post("/v1/predict", json=question(POINTS, **change))
    assert answer.status_code == 400
    assert word in answer.json()["error"]
    assert word in caplog.text


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """What `probseg serve x-anylabeling` prints."""
    place = tmp_path_factory.mktemp("serve")
    process = started(place, ("serve", "x-anylabeling", "--model", MODEL, "--port", 0))
    try:
        yield printed_line(process, place, "http://")
    finally:
        process.terminate()
        process.join(60)


def program(script, *arguments):
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [PROGRAM, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=clean).stdout


@needs_program
def test_the_program_gets_the_polygons(address, model, tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(PHOTO).save(path)
    for marks in (POINTS, BOX):
        lines = program(ASK, address, str(path), json.dumps(marked(marks))).splitlines()
        replace, messages, shapes = json.loads(lines[-1])
        assert (replace, messages) == (False, [])
        assert {tuple(one[:2]) for one in shapes} == {("AUTOLABEL_OBJECT", "polygon")}
        mask = drawn([points for *_, points in shapes])
        assert overlap(as_region(mask), as_region(wanted(model, marks))) > 0.9
    outside = json.dumps(marked([("point", [99, 5], 1)]))
    _, (message,), shapes = json.loads(program(ASK, address, str(path), outside).splitlines()[-1])
    assert "400" in message
    assert shapes == []


@needs_program
def test_the_program_reads_and_writes_files_of_data_convert(tmp_path):
    (tmp_path / "files").mkdir()
    Image.fromarray(PHOTO).save(tmp_path / "files" / "photo.png")
    objects = [
        LabelledRegion(as_region(LABELS == 1), "ball", 0.75),
        LabelledRegion(as_region(LABELS == 2), "bat"),
    ]
    image = AnnotatedImage("photo.png", PHOTO.shape[:2], objects)
    writer(outlines)(tmp_path / "files", [image], Request(tolerance=0), Ledger())
    program(KEEP, str(tmp_path / "files" / "photo.json"))
    assert '"checked"' in (tmp_path / "files" / "photo.json").read_text(), "written by the program"
    formats = ("labelme", "coco")
    assert not convert(tmp_path / "files", tmp_path / "back.json", formats, Request()).lines()
    back = json.loads((tmp_path / "back.json").read_text())
    assert [one["name"] for one in back["categories"]] == ["ball", "bat"]
    assert [one.get("score") for one in back["annotations"]] == [0.75, None]
    assert [one["area"] for one in back["annotations"]] == [
        int((number == LABELS).sum()) for number in (1, 2)
    ]
