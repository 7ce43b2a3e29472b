"""The steps of docs/integrations.md with a real server of Label Studio.

Its command is `label-studio` on PATH, or the path in PROBSEG_LABEL_STUDIO: its packages need an
environment of their own.
"""

import io
import json
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import PurePosixPath
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from PIL import Image

from probseg.annotate.tools.label_studio import Images, Server, brush_tags
from probseg.annotate.tools.prompted import PromptedModel
from probseg.convert import Request, convert
from probseg.convert.label_studio import BRUSH_TAG, IMAGE_TAG
from probseg.formats import brush, run_lengths
from probseg.masks import read_labels
from support.fakes import draw_scene
from support.pages import browser
from support.runs import command, printed_line, started

COMMAND = os.environ.get("PROBSEG_LABEL_STUDIO") or shutil.which("label-studio")
pytestmark = pytest.mark.skipif(
    COMMAND is None,
    reason="Label Studio is not installed: PROBSEG_LABEL_STUDIO names its command",
)

MODEL = "lite0_unet_prop"
SIZE = (48, 64)
FOLDER = "my_photographs"
NAMES = ("cup.png", "has space & ü#1.png")
TOKEN = "0123456789abcdef0123456789abcdef01234567"
PATIENCE = 600
"""Seconds for the first start, which makes a database."""


@pytest.fixture(scope="module")
def page(repository):
    """The part of the documentation: variables of the server, and the labelling interface."""
    text = (repository / "docs" / "integrations.md").read_text("utf-8")
    part = text.partition("\n## Label Studio\n")[2].partition("\n## ")[0]
    variables = dict(re.findall(r"^export (\w+)=(\S+)$", part, re.MULTILINE))
    (interface,) = re.findall(r"```xml\n(.+?)```", part, re.DOTALL)
    return SimpleNamespace(variables=variables, interface=interface)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder in which the documented commands run, with the photographs in it."""
    root = tmp_path_factory.mktemp("label_studio") / "root"
    (root / FOLDER).mkdir(parents=True)
    for number, name in enumerate(NAMES):
        pixels = draw_scene(*SIZE, objects=2, seed=number)[0]
        Image.fromarray(pixels).save(root / FOLDER / name)
    return root


@pytest.fixture(scope="module")
def studio(page, root):
    """A client of the server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {name: value.replace("$PWD", str(root)) for name, value in page.variables.items()}
    quiet = {"SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": "", "COLLECT_ANALYTICS": "false"}
    words = [COMMAND, "start", "--no-browser", "--port", str(port), "--internal-host=127.0.0.1"]
    words += ["--data-dir", str(root.parent / "data"), "--username=a@example.org"]
    words += ["--password=not-a-secret", f"--user-token={TOKEN}", "--enable-legacy-api-token"]
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DEBUG", "HOST")}
    log = root.parent / "log.txt"
    with log.open("w") as output:
        server = subprocess.Popen(
            words,
            cwd=root,
            env={**clean, **quiet, "LATEST_VERSION_CHECK": "false", **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"
    headers = {"Authorization": f"Token {TOKEN}"}
    try:
        with httpx.Client(base_url=address, headers=headers, timeout=120) as client:
            stop = time.monotonic() + PATIENCE
            while not _is_up(client):
                assert server.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < stop, log.read_text()[-3000:]
                time.sleep(1)
            yield client
    finally:
        server.terminate()
        server.wait(60)


def _is_up(client):
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def backend(root, tmp_path_factory):
    """The address that `probseg serve label-studio --images .` prints."""
    place = tmp_path_factory.mktemp("serve")
    options = ("--images", root, "--model", MODEL, "--port", 0)
    process = started(place, ("serve", "label-studio", *options))
    try:
        yield printed_line(process, place, "http://")
    finally:
        process.terminate()
        process.join(60)


def post(studio, path, status=201, /, **body):
    answer = studio.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def signed_in(studio):
    """A tab of Chromium whose user is signed in."""
    with browser() as chromium:
        tab = chromium.new_page(viewport={"width": 1400, "height": 900})
        tab.set_default_timeout(1000 * PATIENCE)
        tab.goto(f"{studio.base_url}/user/login/")
        tab.fill("input[name=email]", "a@example.org")
        tab.fill("input[name=password]", "not-a-secret")
        tab.press("input[name=password]", "Enter")
        tab.wait_for_url(lambda address: "login" not in address, wait_until="commit")
        yield tab


def new_project(studio, page):
    return post(studio, "/api/projects/", title="objects", label_config=page.interface)["id"]


def new_storage(studio, project, place, status=201):
    """Add a local storage whose files are images."""
    body = {"project": project, "path": str(place), "use_blob_urls": True}
    return post(studio, "/api/storages/localfiles/", status, **body)


def tasks_of(studio, project):
    """The tasks of a project by the addresses of their images."""
    tasks = studio.get("/api/tasks", params={"project": project, "fields": "all"}).json()["tasks"]
    return {task["data"]["image"]: task for task in tasks}


def keypoint(x, y, positive=True):
    """A smart keypoint, as Label Studio's page sends it."""
    value = {"x": 100 * x / SIZE[1], "y": 100 * y / SIZE[0], "width": 0.5}
    return {
        "id": "point1",
        "type": "keypointlabels",
        "from_name": "point",
        "to_name": "image",
        "original_width": SIZE[1],
        "original_height": SIZE[0],
        "image_rotation": 0,
        "is_positive": positive,
        "value": {**value, "keypointlabels": ["Object"]},
    }


def exported(studio, project, place):
    answer = studio.get(f"/api/projects/{project}/export", params={"exportType": "JSON"})
    assert answer.status_code == 200, answer.text
    place.write_bytes(answer.content)
    return place


def test_the_documented_steps_lead_to_masks_and_the_masks_come_back(
    studio, backend, page, root, tmp_path
):
    project = new_project(studio, page)
    refusal = new_storage(studio, project, root, status=400)
    assert "subdirectory" in json.dumps(refusal), "the document root itself is no storage"
    storage = new_storage(studio, project, root / FOLDER)
    post(studio, f"/api/storages/localfiles/{storage['id']}/sync", 200)
    connected = post(
        studio, "/api/ml", project=project, url=backend, title="probseg", is_interactive=True
    )
    assert connected["readable_state"] == "Connected"
    assert connected["model_version"] == MODEL
    tasks = tasks_of(studio, project)
    assert len(tasks) == len(NAMES)

    model = PromptedModel(MODEL)
    wanted = {}
    for (address, task), name in zip(sorted(tasks.items()), NAMES, strict=True):
        ask = f"/api/ml/{connected['id']}/interactive-annotating"
        prompts = [keypoint(16, 24), keypoint(48, 24, positive=False)]
        answer = post(studio, ask, 200, task=task["id"], context={"result": prompts})
        (region,) = answer["data"]["result"]
        encoded = model.encode(np.asarray(Image.open(root / FOLDER / name)))
        wanted[name] = model.answer(encoded, [(16, 24)], [(48, 24)]).binary
        shown = brush.decode(region["value"]["rle"], SIZE).mask()
        assert np.array_equal(shown, wanted[name]), address
        assert shown.any()
        post(studio, f"/api/tasks/{task['id']}/annotations/", result=[region])
        outside = post(studio, ask, 200, task=task["id"], context={"result": [keypoint(99, 24)]})
        assert "400" in outside["errors"][0]

    tasks_file = exported(studio, project, tmp_path / "export.json")
    formats = ("--from=label-studio", "--to=png", "--storage", FOLDER)
    assert command("data", "convert", tasks_file, tmp_path / "masks", *formats) == 0
    for name, mask in wanted.items():
        stem = name.removesuffix(".png")
        assert np.array_equal(read_labels(tmp_path / "masks" / f"{stem}_1.png") > 0, mask)


def test_an_annotator_follows_the_steps_for_an_object(studio, backend, page, root, signed_in):
    """Auto-Annotation, a tool of Auto-Detect, a label before each click, the tick, Submit."""
    project = new_project(studio, page)
    storage = new_storage(studio, project, root / FOLDER)
    post(studio, f"/api/storages/localfiles/{storage['id']}/sync", 200)
    post(studio, "/api/ml", project=project, url=backend, title="probseg", is_interactive=True)
    task = min(task["id"] for task in tasks_of(studio, project).values())
    tab, asked = signed_in, []

    def heard(request):
        if request.url.endswith("/interactive-annotating"):
            asked.append(json.loads(request.post_data)["context"]["result"])

    tab.on("request", heard)
    tab.goto(f"{studio.base_url}/projects/{project}/data?task={task}", wait_until="commit")
    canvas = tab.locator("canvas").last
    canvas.wait_for()
    tab.get_by_text("Auto-Annotation", exact=True).click()
    tab.locator("button.lsf-tool_smart:not([aria-label])").hover()
    menu = tab.locator("button.lsf-tool_smart[aria-label]")
    menu.and_(tab.get_by_label("key-point-tool")).click()
    ordinary = tab.locator("button.lsf-tool:not(.lsf-tool_smart)")
    for name in ("key-point-tool", "rectangle-tool"):
        assert ordinary.and_(tab.get_by_label(name)).count() == 0, "smartOnly removes them"
    box = canvas.bounding_box()
    middle = box["x"] + box["width"] / 4, box["y"] + box["height"] / 2  # of the left object
    accept = tab.locator(".lsf-auto-accept__action_type_accept")
    for number in (1, 2):
        labels = tab.locator(".lsf-label")
        labels.nth(1).click()  # of the keypoint; it is deselected after each click
        with tab.expect_response("**/interactive-annotating") as answer:
            tab.mouse.click(middle[0] + 5 * number, middle[1])
        assert answer.value.json()["data"]["result"][0]["type"] == "brushlabels"
        assert len(asked[-1]) == number, "all points so far"
    accept.click()
    with tab.expect_response(re.compile(r"/api/tasks/\d+/annotations")) as submitted:
        tab.get_by_test_id("bottombar-submit-button").click()
    regions = submitted.value.json()["result"]
    assert [region["type"] for region in regions] == ["brushlabels"]
    points = [(one["value"]["x"] * SIZE[1] / 100, one["value"]["y"] * SIZE[0] / 100)
              for one in asked[-1]]  # fmt: skip
    model = PromptedModel(MODEL)
    shown = brush.decode(regions[0]["value"]["rle"], SIZE).mask()
    wanted = [
        model.answer(model.encode(np.asarray(Image.open(root / FOLDER / name))), points).binary
        for name in NAMES
    ]
    assert any(np.array_equal(shown, mask) for mask in wanted)


def test_converted_tasks_are_imported_shown_and_exported_again(studio, page, root, tmp_path):
    labels = draw_scene(*SIZE, objects=2)[1]
    annotations = [
        {
            "id": 1 + number,
            "image_id": 1 + number // 2,
            "category_id": 1,
            "segmentation": run_lengths.encode(labels == 1 + number % 2),
        }
        for number in range(4)
    ]
    images = [
        {"id": key, "file_name": name, "height": SIZE[0], "width": SIZE[1]}
        for key, name in enumerate(NAMES, start=1)
    ]
    content = {"images": images, "annotations": annotations}
    content["categories"] = [{"id": 1, "name": "Object"}]
    coco = tmp_path / "coco.json"
    coco.write_text(json.dumps(content))
    formats = ("--from=coco", "--to=label-studio", "--storage", FOLDER)
    assert command("data", "convert", coco, tmp_path / "tasks.json", *formats) == 0

    project = new_project(studio, page)
    new_storage(studio, project, root / FOLDER)
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    answer = studio.post(f"/api/projects/{project}/import", json=tasks)
    assert answer.status_code == 201, answer.text
    assert answer.json()["annotation_count"] == len(NAMES)
    shown = tasks_of(studio, project)
    assert len(shown) == len(NAMES)
    for address, task in shown.items():
        assert studio.get(address).status_code == 200
        (annotation,) = task["annotations"]
        for region in annotation["result"]:
            tags = region["from_name"], region["to_name"]
            assert tags == brush_tags(page.interface)[:2] == (BRUSH_TAG, IMAGE_TAG)
            assert region["value"]["brushlabels"] == ["Object"]

    place = exported(studio, project, tmp_path / "export.json")
    back = tmp_path / "back.json"
    request = Request(storage=PurePosixPath(FOLDER))
    assert not convert(place, back, ("label-studio", "coco"), request).lines()
    written = json.loads(back.read_text())
    assert sorted(image["file_name"] for image in written["images"]) == sorted(NAMES)
    names = {image["id"]: image["file_name"] for image in written["images"]}
    for name in NAMES:
        masks = [
            run_lengths.decode(one["segmentation"])
            for one in written["annotations"]
            if names[one["image_id"]] == name
        ]
        assert len(masks) == 2
        for number, mask in enumerate(masks, start=1):
            assert np.array_equal(mask, labels == number)


def test_uploaded_images_are_fetched_with_either_token(studio, page, tmp_path):
    pixels = draw_scene(*SIZE)[0]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    project = new_project(studio, page)
    answer = studio.post(
        f"/api/projects/{project}/import", files={"file": ("cup.png", file.getvalue())}
    )
    assert answer.status_code == 201, answer.text
    ((address, task),) = tasks_of(studio, project).items()
    assert address.startswith("/data/upload/")
    personal = post(studio, "/api/token/")["token"]
    for token in (TOKEN, personal):
        images = Images(tmp_path, Server(str(studio.base_url), token))
        assert np.array_equal(images.read(images.find(address, task["id"])), pixels)
    images = Images(tmp_path, Server(str(studio.base_url), "0" * 40))
    with pytest.raises(ValueError, match="401: the token in LABEL_STUDIO_API_KEY"):
        images.read(images.find(address, task["id"]))
