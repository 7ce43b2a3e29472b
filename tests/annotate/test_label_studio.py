"""The backend of Label Studio: its routes, its masks, and what it does not read."""

import base64
import io
import json
import os
import shutil
import signal
import subprocess
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from probseg.annotate.tools.label_studio import Backend, Images, Server, asked, create_app
from probseg.annotate.tools.prompted import PromptedModel
from probseg.cli import main
from probseg.formats import brush
from support.fakes import draw_scene
from support.rows import each
from support.runs import printed_line, started

HOST = "127.0.0.1:9090"
MODEL = "lite0_unet_prop"
CONFIG = """
<View>
  <Image name="image" value="$photo" zoom="true"/>
  <BrushLabels name="mask" toName="image"><Label value="Cat"/><Label value="Dog"/></BrushLabels>
  <KeyPointLabels name="point" toName="image" smart="true">
    <Label value="Cat"/><Label value="Dog"/>
  </KeyPointLabels>
  <RectangleLabels name="box" toName="image" smart="true"><Label value="Cat"/></RectangleLabels>
</View>
"""
SIZE = (48, 64)
PROGRAM = os.environ.get("PROBSEG_LABEL_STUDIO") or shutil.which("label-studio")

READ_BY_LABEL_STUDIO = """
import json, sys
from label_studio_sdk.converter.brush import decode_rle
print([int(value) for value in decode_rle(json.load(sys.stdin))])
"""
TOKENS = ("Token legacy", "Bearer short-a.personal.token")


@pytest.fixture(scope="module")
def model():
    return PromptedModel(MODEL)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    (folder / "upload" / "3").mkdir(parents=True)
    pixels = Image.fromarray(draw_scene(*SIZE, objects=2)[0])
    pixels.save(folder / "cup one.png")
    pixels.save(folder / "upload" / "3" / "1a2b-cup.png")
    pixels.save(tmp_path / "secret.png")
    return folder


@pytest.fixture
def backend(model, images):
    return Backend(model, Images(images))


@pytest.fixture
def client(backend):
    return TestClient(create_app(backend, frozenset({HOST})), base_url=f"http://{HOST}")


def point(x, y, positive=True, label="Cat"):
    """A region of a smart keypoint, as Label Studio sends it."""
    value = {"x": 100 * x / SIZE[1], "y": 100 * y / SIZE[0], "width": 0.5}
    value["keypointlabels"] = [label]
    return region("keypointlabels", value) | {"is_positive": int(positive)}


def rectangle(x0, y0, x1, y1, label="Cat"):
    value = {"x": 100 * x0 / SIZE[1], "y": 100 * y0 / SIZE[0], "rotation": 0}
    value |= {"width": 100 * (x1 - x0) / SIZE[1], "height": 100 * (y1 - y0) / SIZE[0]}
    return region("rectanglelabels", {**value, "rectanglelabels": [label]})


def region(kind, value):
    sizes = {"original_width": SIZE[1], "original_height": SIZE[0], "image_rotation": 0}
    return {"id": "r", "type": kind, "from_name": "x", "to_name": "image", "value": value, **sizes}


def request(*regions, image="/data/local-files/?d=cup%20one.png", config=CONFIG):
    return {
        "tasks": [{"id": 1, "data": {"photo": image}}],
        "model_version": "x",
        "project": "3.1700000000",
        "label_config": config,
        "params": {"login": None, "password": None, "context": {"result": list(regions)}},
    }


def answered(client, *regions, **options):
    """The one region of an answer, and its mask."""
    answer = client.post("/predict", json=request(*regions, **options))
    assert answer.status_code == 200, answer.text
    (result,) = answer.json()["results"]
    (found,) = result["result"]
    return found, brush.decode(found["value"]["rle"], SIZE).mask()


def refused(client, *regions, **options):
    """The reason of a refusal."""
    answer = client.post("/predict", json=request(*regions, **options))
    assert answer.status_code == 400
    return answer.json()["error"]


def test_setup_and_health(client):
    assert client.get("/health").json() == {"status": "UP", "model_class": "probseg"}
    setup = {"project": "3.1", "schema": CONFIG, "hostname": "http://x", "access_token": "t"}
    assert client.post("/setup", json=setup).json() == {"model_version": MODEL}
    assert client.post("/webhook", json={"action": "ANNOTATION_CREATED"}).status_code == 200


def test_prompts_become_the_mask_of_the_model(client, model, images):
    found, mask = answered(
        client, point(16, 24), rectangle(2, 3, 31, 44), point(48.5, 24, positive=False, label="Dog")
    )
    assert found["type"] == "brushlabels"
    assert (found["from_name"], found["to_name"]) == ("mask", "image")
    assert (found["original_height"], found["original_width"]) == SIZE
    assert found["value"]["format"] == "rle"
    assert found["value"]["brushlabels"] == ["Dog"]
    assert 0.5 < found["score"] <= 1
    encoded = model.encode(np.asarray(Image.open(images / "cup one.png")))
    wanted = model.answer(encoded, [(16, 24)], [(48.5, 24)], (2, 3, 31, 44))
    assert np.array_equal(mask, wanted.binary)


@each(("turned", "box"), [(90, (18, 4, 30, 14)), (-90, (30, -6, 42, 4)), (180, (20, -8, 30, 4))])
def test_the_box_is_around_a_turned_rectangle(turned, box):
    upright = rectangle(30, 4, 40, 16)
    upright["value"]["rotation"] = turned
    assert asked(request(upright)).box == pytest.approx(box)


def test_a_point_without_a_sign_is_on_the_object():
    plain = {key: value for key, value in point(12, 9).items() if key != "is_positive"}
    question = asked(request(plain, point(40, 30, positive=False)))
    assert question.positive == [(12, 9)]
    assert question.negative == [(40, 30)]


@pytest.mark.skipif(
    PROGRAM is None,
    reason="Label Studio is not installed: PROBSEG_LABEL_STUDIO names its command",
)
def test_label_studio_reads_the_mask(client):
    found, mask = answered(client, point(16, 24))
    command = [Path(PROGRAM).with_name("python"), "-I", "-c", READ_BY_LABEL_STUDIO]
    text = json.dumps(found["value"]["rle"])
    pixels = np.array(json.loads(subprocess.check_output(command, input=text, text=True)))
    assert np.array_equal(pixels.reshape(*SIZE, 4)[..., 3] > 0, mask)
    assert mask.any()


def test_without_prompts_there_is_no_prediction(client):
    for context in (None, {}, {"result": []}):
        body = {**request(), "params": {"context": context}}
        assert client.post("/predict", json=body).json()["results"] == []
    answer = client.post("/predict", json=request(point(3, 4, positive=False))).json()
    assert answer["results"][0]["result"] == []


def test_an_image_is_encoded_once_until_its_file_changes(client, model, images, monkeypatch):
    encode = Mock(wraps=model.encode)
    monkeypatch.setattr(model, "encode", encode)
    one = answered(client, point(16, 24))[1]
    other = answered(client, point(48, 24))[1]
    assert not np.array_equal(one, other)
    assert encode.call_count == 1
    path = images / "cup one.png"
    Image.fromarray(draw_scene(*SIZE, objects=2)[0][:, ::-1]).save(path)
    os.utime(path, ns=(1, 1))
    answered(client, point(16, 24))
    assert encode.call_count == 2


def test_images_of_uploads_and_of_the_task_itself_are_read(client, images):
    content = (images / "cup one.png").read_bytes()
    data = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    wanted = answered(client, point(16, 24))[1]
    for image in ("/data/upload/3/1a2b-cup.png", data):
        assert np.array_equal(answered(client, point(16, 24), image=image)[1], wanted)


def test_phone_photographs_are_read_upright(client, images):
    turned = Image.fromarray(np.rot90(draw_scene(*SIZE, objects=2)[0]))
    exif = turned.getexif()
    exif[0x0112] = 6  # turn clockwise to show
    turned.save(images / "cup one.png", exif=exif)
    wanted = answered(client, point(16, 24), image="/data/upload/3/1a2b-cup.png")[1]
    assert np.array_equal(answered(client, point(16, 24))[1], wanted)


@each(
    "image",
    ["https://example.org/cat.png", "s3://bucket/cat.png", "file:///etc/passwd", "/data/x.png"],
)
def test_nothing_is_fetched_from_the_network(client, image):
    assert "local-files" in refused(client, point(16, 24), image=image)


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "/etc/passwd", "upload/../../secret.png", "link.png", "", "no.png", "\0"],
)
def test_files_outside_of_the_folder_are_not_read(client, images, path):
    (images / "link.png").symlink_to(images.parent / "secret.png")
    for image in (f"/data/local-files/?d={path}", f"/data/upload/../{path}"):
        reason = refused(client, point(16, 24), image=image)
        assert "--images" in reason or "null byte" in reason


@pytest.fixture
def studio(images):
    """A server that has uploaded images for one token, and sends requests for others elsewhere."""
    content, asked_for = (images / "cup one.png").read_bytes(), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked_for.append((self.path, self.headers["Authorization"]))
            if self.path.startswith("/data/upload/"):
                self.send_response(200 if asked_for[-1][1] in TOKENS else 401)
            else:
                self.send_response(303)
                self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/secret")
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"access": f"short-{body['refresh']}"}).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        yield SimpleNamespace(address=address, asked_for=asked_for, content=content)
        server.shutdown()


def fetched(studio, images, address, token="legacy"):
    source = Images(images, Server(f"{studio.address}/", token))
    return source.read(source.find(address, 7))


@each("token", ["legacy", "a.personal.token"])
def test_images_that_are_not_in_the_folder_are_fetched_with_the_token(studio, images, token):
    wanted = np.asarray(Image.open(images / "cup one.png"))
    studio.asked_for.clear()
    for address in ("/data/upload/9/ü a.png", f"{studio.address}/data/upload/9/%C3%BC%20a.png"):
        assert np.array_equal(fetched(studio, images, address, token), wanted)
    assert {path for path, _ in studio.asked_for} == {"/data/upload/9/%C3%BC%20a.png"}
    fetched(studio, images, "/data/upload/3/1a2b-cup.png")  # is in the folder
    assert len(studio.asked_for) == 2


def test_an_image_is_fetched_once_and_refusals_name_the_token(studio, images, model):
    for token in ("legacy", "wrong"):
        server = Server(studio.address, token)
        app = create_app(Backend(model, Images(images, server)), frozenset({HOST}))
        client = TestClient(app, base_url=f"http://{HOST}")
        if token == "wrong":
            reason = refused(client, point(16, 24), image="/data/upload/9/a.png")
            assert "LABEL_STUDIO_API_KEY" in reason
        else:
            for place in (16, 48):
                answered(client, point(place, 24), image="/data/upload/9/a.png")
    assert len(studio.asked_for) == 2


@each(
    "address",
    [
        "https://example.org/data/upload/1/a.png",
        "http://127.0.0.1:1/data/upload/1/a.png",
        "//example.org/data/upload/1/a.png",
        "/api/users",
        "/data/../api/users",
        "/data/%2e%2e/api/users",
        "file:///etc/passwd",
    ],
)
def test_no_other_address_is_fetched(studio, images, address):
    studio.asked_for.clear()
    with pytest.raises(ValueError, match="is not fetched"):
        fetched(studio, images, address)
    assert not studio.asked_for


def test_redirections_are_not_followed(studio, images):
    for scheme in ("s3", "gs", "azure-blob"):
        with pytest.raises(ValueError, match="303: the file is at another address"):
            fetched(studio, images, f"{scheme}://bucket/a b.png")
    paths = [path.partition("=")[::2] for path, _ in studio.asked_for]
    assert [head for head, _ in paths] == ["/tasks/7/resolve/?fileuri"] * 3
    assert base64.urlsafe_b64decode(paths[0][1]) == b"s3://bucket/a b.png"


def test_a_stopped_server_is_named(images):
    source = Images(images, Server("http://127.0.0.1:9", "t"))
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9.* cannot be read .*--fetch-from"):
        source.read(source.find("/data/upload/9/a.png", 1))


@each(
    ("options", "word"),
    [
        (["--images", "no"], "--images"),
        (["--images", ".", "--fetch-from", "127.0.0.1:8080"], "--fetch-from"),
        (["--images", ".", "--fetch-from", "http://a"], "LABEL_STUDIO_API_KEY"),
    ],
)
def test_wrong_options_are_refused(capsys, monkeypatch, options, word):
    monkeypatch.delenv("LABEL_STUDIO_API_KEY", raising=False)
    assert main(["serve", "label-studio", *options]) == 2
    assert word in capsys.readouterr().err


def test_images_too_large_are_not_decoded(client, images):
    head = io.BytesIO()
    Image.new("1", (20000, 20000)).save(head, "PNG")
    data = f"data:image/png;base64,{base64.b64encode(head.getvalue()).decode()}"
    assert "million" in refused(client, point(16, 24), image=data)


@each(
    ("change", "word"),
    [
        ({"label_config": "<View/>"}, "BrushLabels"),
        ({"label_config": "<View>"}, "XML"),
        ({"tasks": []}, "Label Studio"),
        ({"tasks": [{"id": 1, "data": {}}]}, "photo"),
        ({"params": [1]}, "Label Studio"),
        ({"params": {"context": {"result": [{"type": "x"}]}}}, "original_height"),
        ({"params": {"context": {"result": [point(99, 24)]}}}, "point"),
        ({"params": {"context": {"result": [region("ellipselabels", {})]}}}, "ellipselabels"),
        (
            {"params": {"context": {"result": [point(16, 24) | {"original_width": 128}]}}},
            "64 x 48",
        ),
    ],
)
def test_requests_that_make_no_sense_are_explained(client, caplog, change, word):
    caplog.clear()
    answer = client.post("/predict", json={**request(point(1, 1)), **change})
    assert answer.status_code == 400
    assert word in answer.json()["error"]
    assert word in caplog.text


def test_a_foreign_host_is_refused_by_the_name_of_the_flag(client):
    answer = client.get("/health", headers={"Host": "evil.example:9090"})
    assert answer.status_code == 403
    assert "--allow-host" in answer.json()["error"]
    assert client.get("/health", headers={"Origin": "http://evil.example"}).status_code == 403


def test_a_server_process_answers(images, tmp_path):
    options = ("--images", images, "--port", 0, "--allow-host", "LabelStudio")
    server = started(tmp_path, ("serve", "label-studio", *options))
    try:
        address = printed_line(server, tmp_path, "http://")
        port = address.rpartition(":")[2]
        for name in ("127.0.0.1", "labelstudio"):
            headers = {"Host": f"{name}:{port}", "Content-Type": "application/json"}
            body = json.dumps(request(point(16, 24))).encode()
            asked = urllib.request.Request(f"{address}/predict", body, headers)
            with urllib.request.urlopen(asked, timeout=60) as answer:
                (result,) = json.load(answer)["results"]
            assert brush.decode(result["result"][0]["value"]["rle"], SIZE).area
    finally:
        os.kill(server.pid, signal.SIGINT)
        server.join(60)
    assert "Traceback" not in (tmp_path / "output.txt").read_text()
