"""The page and the servers for tools on a machine with other users.

They can open connections, send any request, and see the command lines of all programs.
"""

import base64
import importlib.util
import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from probseg.annotate import http, server
from probseg.annotate.server import has_password
from probseg.annotate.tools import label_studio, prompted, x_anylabeling
from probseg.annotate.tools.prompted import Encodings, PromptedModel
from probseg.cli import main
from support.annotate_client import draw_photographs
from support.fakes import draw_scene
from support.rows import each
from support.runs import printed_line, started

MODEL = "lite0_unet_prop"
HOST = "127.0.0.1:9090"
PASSWORD = "a:secret"
CONFIG = """<View><Image name="image" value="$photo"/>
<BrushLabels name="mask" toName="image"><Label value="Cat"/></BrushLabels></View>"""
HANDLES = 256
SECONDS = 2.0


def _few_handles_and_a_short_time():
    """What a system may allow, and a browser that tells what it is asked to open."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (HANDLES, HANDLES))
    http.SECONDS = SECONDS
    webbrowser.open = lambda address: print(f"opens {address}", flush=True)


@pytest.fixture
def page(tmp_path):
    """The server of the page in a process: its port, its token and what it opens."""
    pytest.importorskip("resource")
    folder = draw_photographs(tmp_path / "photos", 1)
    options = ["annotate", folder, "--port", 0]
    process = started(tmp_path, options, prepare=_few_handles_and_a_short_time)
    address, token = printed_line(process, tmp_path, "http://").split("/#")
    opened = printed_line(process, tmp_path, "opens").removeprefix("opens ")
    port = int(address.rpartition(":")[2])
    yield SimpleNamespace(process=process, port=port, address=address, token=token, opened=opened)
    process.terminate()
    process.join(60)
    assert process.exitcode == 128 + signal.SIGTERM
    assert "Traceback" not in (tmp_path / "output.txt").read_text()


def asked(page, connection=None):
    """Ask the page's server, and return the seconds that it takes."""
    connection = connection or HTTPConnection("127.0.0.1", page.port, timeout=30)
    began = time.perf_counter()
    connection.request("GET", "/api/report", headers={"X-Probseg-Token": page.token})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return time.perf_counter() - began


def test_an_answer_does_not_wait_for_an_acknowledgement(page):
    connection = HTTPConnection("127.0.0.1", page.port, timeout=30)
    assert min(asked(page, connection) for _ in range(20)) < 0.035  # acknowledged after 0.04


def test_the_token_is_not_in_the_command_line_of_the_browser(page):
    assert page.opened.startswith("file://")
    assert page.token not in page.opened
    path = Path(page.opened.removeprefix("file://"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert f"url={page.address}/#{page.token}" in path.read_text()
    page.process.terminate()
    page.process.join(60)
    assert not path.parent.exists()


HEAD = b"POST /api/settings HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
BODY = HEAD + b"X-Probseg-Token: %s\r\nContent-Length: 90\r\n\r\n{"
WHOLE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"


@each("sent", [b"", b"GET / HT", HEAD, BODY, WHOLE + BODY, WHOLE])
def test_half_requests_do_not_block_the_page_and_are_given_up(page, sent):
    values = (page.port, page.token.encode(), page.port, page.port)
    order = {WHOLE + BODY: (0, 2, 1), BODY: (0, 1), HEAD: (0,), WHOLE: (0,)}.get(sent, ())
    with ExitStack() as half:
        clients = []
        for _ in range(HANDLES + 44):
            with suppress(ConnectionError):
                client = socket.create_connection(("127.0.0.1", page.port), timeout=30)
                clients.append(half.enter_context(client))
                client.sendall(sent % tuple(values[n] for n in order))
        assert asked(page) < 10
        if sent != WHOLE:  # which may ask again for a minute
            end = time.monotonic() + 15 + SECONDS
            for client in clients:
                client.settimeout(max(0.1, end - time.monotonic()))
                with suppress(ConnectionError):
                    while client.recv(65536):
                        pass


def test_a_client_that_trickles_is_given_up(page):
    client = socket.create_connection(("127.0.0.1", page.port), timeout=30)
    begin = time.monotonic()
    with suppress(ConnectionError):
        for byte in 1000 * b"GET / HTTP/1.1\r\nX-Other: ":
            client.sendall(bytes([byte]))
            time.sleep(0.1)
    assert SECONDS - 1 < time.monotonic() - begin < 15 + SECONDS


@pytest.fixture(scope="module")
def model():
    return PromptedModel(MODEL)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


PHOTO = png(draw_scene(48, 64)[0])
REGION = {
    "type": "keypointlabels",
    "original_width": 64,
    "original_height": 48,
    "value": {"x": 50, "y": 50, "keypointlabels": ["a"]},
}
RIGHT = {
    "x-anylabeling": {
        "model": "probseg",
        "image": f"data:image/png;base64,{PHOTO}",
        "params": {"marks": [{"type": "point", "data": [32, 24], "label": 1}]},
    },
    "label-studio": {
        "tasks": [{"id": 1, "data": {"photo": f"data:image/png;base64,{PHOTO}"}}],
        "label_config": CONFIG,
        "params": {
            "context": {
                "result": [{**REGION, "value": {"x": 50, "y": 50, "keypointlabels": ["a"]}}]
            }
        },
    },
    "cvat": {"image": PHOTO, "pos_points": [[32, 24]], "neg_points": [], "obj_bbox": None},
}
PATHS = {"x-anylabeling": "/v1/predict", "label-studio": "/predict"}


def client(tool, model, folder, password=None):
    """A client of the application of a tool, which raises what the application raises."""
    if tool == "x-anylabeling":
        backend = x_anylabeling.Backend(model)
        app = x_anylabeling.create_app(backend, frozenset({HOST}), password)
    else:
        backend = label_studio.Backend(model, label_studio.Images(folder))
        app = label_studio.create_app(backend, frozenset({HOST}), password)
    return TestClient(app, base_url=f"http://{HOST}")


def basic(password):
    return {"Authorization": "Basic " + base64.b64encode(f"any:{password}".encode()).decode()}


@each(
    ("headers", "right"),
    [
        ({"Token": PASSWORD}, True),
        ({"token": PASSWORD, "Authorization": "Basic !"}, True),
        (basic(PASSWORD), True),
        ({"Authorization": f"Bearer {PASSWORD}"}, True),
        ({}, False),
        ({"Token": ""}, False),
        ({"Token": "wrong"}, False),
        ({"Token": "\u00fc"}, False),
        (basic("wrong"), False),
        ({"Authorization": "Basic !"}, False),
        ({"Authorization": "Basic YQ"}, False),
        ({"X-Probseg-Token": PASSWORD}, False),
    ],
)
def test_the_password_is_read_where_tools_put_it(headers, right):
    assert has_password(headers, PASSWORD) == right


@pytest.mark.parametrize("tool", PATHS)
def test_without_the_password_nothing_is_answered(model, tmp_path, tool):
    http = client(tool, model, tmp_path, PASSWORD)
    paths = [("GET", "/health"), ("POST", PATHS[tool]), ("POST", "/setup"), ("GET", "/v1/models")]
    for method, path in paths:
        answer = http.request(method, path, json=RIGHT[tool])
        assert answer.status_code == 401, path
        assert "--token" in answer.json()["error"]
    for headers in ({"Token": PASSWORD}, basic(PASSWORD)):
        assert http.post(PATHS[tool], json=RIGHT[tool], headers=headers).status_code == 200


def test_a_server_says_which_password_to_send(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBSEG_TOKEN", "kept")
    said = {(): "--token", ("--token",): "password: kept", ("--token", "abc"): "password: abc"}
    for number, (options, words) in enumerate(said.items()):
        place = tmp_path / str(number)
        place.mkdir()
        process = started(
            place, ("serve", "x-anylabeling", "--model", MODEL, "--port", 0, *options)
        )
        printed_line(process, place, "Ctrl-C")
        process.terminate()
        process.join(60)
        assert words in (place / "output.txt").read_text()


def test_a_password_that_no_header_can_hold_is_refused(capsys):
    assert main(["serve", "x-anylabeling", "--token", "a b"]) == 2
    assert "--token" in capsys.readouterr().err


@pytest.fixture(scope="module")
def function(model):
    """The handler of CVAT's function."""
    path = files("probseg.annotate.tools") / "cvat_nuclio" / "main.py"
    place = importlib.util.spec_from_file_location("nuclio_for_strangers", str(path))
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    data = SimpleNamespace(model=model, encodings=Encodings(model))
    context = SimpleNamespace(user_data=data, Response=SimpleNamespace)

    def ask(body, **headers):
        answer = module.handler(context, SimpleNamespace(body=body, headers=headers))
        return answer.status_code, json.loads(answer.body)

    return ask


def test_the_password_of_the_function_is_in_a_file_for_its_owner(tmp_path, function, monkeypatch):
    folder = tmp_path / "function"
    assert main(["serve", "cvat-nuclio", str(folder), "--token", PASSWORD]) == 0
    assert (folder / "function.yaml").stat().st_mode & 0o777 == 0o600
    variables = yaml.safe_load((folder / "function.yaml").read_text("utf-8"))["spec"]["env"]
    monkeypatch.setenv(
        "PROBSEG_TOKEN", {one["name"]: one["value"] for one in variables}["PROBSEG_TOKEN"]
    )
    assert function(RIGHT["cvat"])[0] == 401
    assert function(RIGHT["cvat"], Token=PASSWORD)[0] == 200
    monkeypatch.setenv("PROBSEG_TOKEN", "")
    assert function(RIGHT["cvat"])[0] == 200


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([10**400, -(10**400), 1e400, 2**70, 10**9, "\ud800", "data:,", "../x", "\0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def places(body, before=()):
    """Yield the path of each value inside of a body."""
    yield before
    inside = (
        body.items()
        if isinstance(body, dict)
        else enumerate(body if isinstance(body, list) else ())
    )
    for key, value in inside:
        yield from places(value, (*before, key))


def changed(body, place, value):
    """Return a body with another value at a place."""
    if not place:
        return value
    body = body.copy()
    body[place[0]] = changed(body[place[0]], place[1:], value)
    return body


def nearly(tool):
    """Bodies in which up to two values are something else."""
    change = st.tuples(st.sampled_from(list(places(RIGHT[tool]))), JSON)

    def carried_out(changes):
        body = RIGHT[tool]
        for place, value in changes:
            with suppress(TypeError, KeyError, IndexError, AttributeError):
                body = changed(body, place, value)
        return body

    return st.lists(change, min_size=1, max_size=2).map(carried_out)


@pytest.fixture(scope="module")
def clients(model, tmp_path_factory):
    return {tool: client(tool, model, tmp_path_factory.mktemp("images")) for tool in PATHS}


def posted(http, path, body):
    """Ask with a body that Python's own JSON writes: numbers and halves of characters included."""
    return http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})


@given(body=JSON | nearly("x-anylabeling"))
def test_any_json_is_answered_or_refused_by_x_anylabelings_server(clients, body):
    assert posted(clients["x-anylabeling"], "/v1/predict", body).status_code in (200, 400)


@given(body=JSON | nearly("label-studio"))
def test_any_json_is_answered_or_refused_by_label_studios_server(clients, body):
    assert posted(clients["label-studio"], "/predict", body).status_code in (200, 400)
    for path in ("/setup", "/webhook"):
        assert posted(clients["label-studio"], path, body).status_code == 200


@given(body=JSON | nearly("cvat"))
def test_any_json_is_answered_or_refused_by_cvats_function(function, body):
    assert function(body)[0] in (200, 400)


VALUE = ("params", "context", "result", 0, "value", "x")
WIDTH = ("params", "context", "result", 0, "original_width")


@each(
    ("tool", "changes", "words"),
    [
        ("x-anylabeling", {("params", "marks", 0, "data", 0): 10**400}, "`data` must be a number"),
        ("label-studio", {VALUE: 10**400}, "`x` must be a number"),
        ("label-studio", {WIDTH: 1e400}, "`original_width` must be a number"),
        ("label-studio", {("tasks", 0, "id"): 1e400}, "`id` of a task"),
        ("label-studio", {VALUE: [0], WIDTH: 10**8}, "`x` must be a number"),  # not repeated
        ("label-studio", {("label_config",): "<a/>" * 300_000}, "`label_config`"),
        ("label-studio", {("tasks", 0, "data", "photo"): "\ud800\x1b]0;x\x07"}, "is not fetched"),
        ("x-anylabeling", {("params", "marks"): 60_000 * [[]]}, "not a request"),
        ("x-anylabeling", {("params", "marks"): 100_001 * [0]}, "commas"),
        (
            "x-anylabeling",
            {("params", "marks"): 1001 * RIGHT["x-anylabeling"]["params"]["marks"]},
            "points",
        ),
    ],
)
def test_absurd_values_are_refused_by_a_sentence(clients, caplog, tool, changes, words):
    body = RIGHT[tool]
    for place, value in changes.items():
        body = changed(body, place, value)
    answer = posted(clients[tool], PATHS[tool], body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert words in caplog.text
    assert caplog.messages[-1].isprintable()


def test_one_request_is_answered_at_a_time(model, tmp_path, monkeypatch):
    running, most = 0, 0

    def slowly(*arguments, **options):
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return answer(*arguments, **options)

    answer = model.answer
    monkeypatch.setattr(model, "answer", slowly)
    with client("x-anylabeling", model, tmp_path) as http, ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda _: posted(http, "/v1/predict", RIGHT["x-anylabeling"]), range(4))
        assert [one.status_code for one in answers] == 4 * [200]
    assert most == 1


def test_bodies_in_memory_have_a_limit(model, tmp_path, monkeypatch):
    monkeypatch.setattr("probseg.annotate.http.MAX_BODY", 100_000)
    go_on, answer = threading.Event(), model.answer

    def later(*arguments):
        go_on.wait(60)
        return answer(*arguments)

    monkeypatch.setattr(model, "answer", later)
    body = {**RIGHT["x-anylabeling"], "more": 80_000 * "x"}
    with client("x-anylabeling", model, tmp_path) as http, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(posted, http, "/v1/predict", body) for _ in range(server.BODIES + 2)]
        assert next(as_completed(asked, timeout=60)).result().status_code == 429
        go_on.set()
        assert sorted(one.result().status_code for one in asked) == [200, 200, 429, 429]
        assert posted(http, "/v1/predict", body).status_code == 200


def test_encoded_images_are_kept_as_far_as_they_fit(model, monkeypatch):
    encode = Mock(wraps=model.encode)
    monkeypatch.setattr(model, "encode", encode)
    encodings = Encodings(model)
    image = draw_scene(48, 64)[0]
    size = prompted._nbytes(encodings.find(0, lambda: image))
    monkeypatch.setattr(prompted, "MEMORY", 4 * size)
    for name in (1, 2, 3, 0, 1, 4, 1):
        encodings.find(name, lambda: image)
        assert sum(map(prompted._nbytes, encodings._kept.values())) <= 4 * size
    assert encode.call_count == 7  # all but the last question
    monkeypatch.setattr(prompted, "MEMORY", size // 2)
    encodings.find(5, lambda: image)
    encodings.find(5, lambda: image)
    assert list(encodings._kept) == [5]


DECODE = """
import resource, sys
from pathlib import Path
from probseg.images import read_image
read_image(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_image(Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@each("channels", [1, 4])
def test_an_image_of_16_bits_is_read_without_copies_of_it(tmp_path, channels):
    if sys.platform != "linux":
        pytest.skip("kilobytes are of Linux")
    for name, side in (("small", 8), ("large", 4000)):
        pixels = np.full((side, side, channels), 40_000, np.uint16)
        cv2.imwrite(str(tmp_path / f"{name}.png"), pixels)
    arguments = [str(tmp_path / "small.png"), str(tmp_path / "large.png")]
    command = [sys.executable, "-c", DECODE, *arguments]
    growth = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 1024 * growth < 12 * 4000**2  # bytes of a pixel: 4 decoded, 3 as they are returned
