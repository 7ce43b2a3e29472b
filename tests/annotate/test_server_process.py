"""A real server process: kills at any moment, and requests that are not those of the page."""

from __future__ import annotations

import csv
import hashlib
import http.client
import json
import math
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from probseg.annotate.actions import ACTIONS, STATES
from probseg.annotate.answers import KNOBS
from probseg.annotate.files import export_names
from probseg.annotate.frames import unpack
from probseg.annotate.server import MAX_BODY
from probseg.cli import main
from support.annotate_client import draw_photographs
from support.runs import printed_line, started

pytestmark = pytest.mark.process

SIZE = (96, 128)


class Server:
    """A server process on a folder, and a client of its two addresses."""

    def __init__(self, folder, place):
        self.folder, self.output = folder, place / "output.txt"
        self.process = started(place, ["annotate", folder, "--port", 0, "--no-browser"])
        address, self.token = printed_line(self.process, place, "http://").split("/#")
        self.reader = printed_line(self.process, place, "to look").split("/#")[1]
        self.host = address.removeprefix("http://")
        self.photographs = json.loads(self.ask("GET", "/api/session")[1])["photographs"]

    def ask(self, method, path, body=None, headers=None):
        """Return status and body of an answer."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            ours = {"X-Probseg-Token": self.token, "Content-Type": "application/json"}
            connection.request(method, path, body, {**ours, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def path(self, n=0):
        return f"/api/photos/{self.photographs[n]['id']}"

    def photograph(self, n=0):
        return json.loads(self.ask("GET", self.path(n))[1])

    def change(self, path, body):
        """Return status and body of the answer to a change, or None if the server is gone."""
        try:
            if path.endswith("/actions"):
                page = json.loads(self.ask("GET", path.removesuffix("/actions"))[1])
                body = {"sequence": 0, "revision": page["revision"], **body}
            return self.ask("POST", path, json.dumps(body))
        except (OSError, http.client.HTTPException):
            return None

    def everything(self):
        """Return all that a reader sees, and the files, without times."""
        pages, frames = [], []
        for n in range(len(self.photographs)):
            page = self._read(self.path(n))
            parts = ["mask", "masks", *(f"objects/{one['id']}/mask" for one in page["objects"])]
            frames += [self._frame(f"{self.path(n)}/{part}") for part in parts]
            pages.append(page)
        return {
            "session": self._read("/api/session"),
            "report": self._read("/api/report"),
            "pages": pages,
            "frames": frames,
            "masks": _files(self.folder, "masks", ".probseg/masks"),
            "exports": _files(self.folder, *(set(export_names().values()) - {COCO_FILE})),
        }

    def _read(self, path):
        status, content = self.ask("GET", path, headers={"X-Probseg-Token": self.reader})
        assert status == 200, content
        return json.loads(content, object_hook=_timeless)

    def _frame(self, path):
        status, content = self.ask("GET", path, headers={"X-Probseg-Token": self.reader})
        assert status == 200, content
        header, maps = unpack(content, SIZE)
        header = json.loads(json.dumps(header), object_hook=_timeless)
        return header, None if maps is None else _digest(maps.tobytes())

    def stop(self):
        """Interrupt it, and return its output."""
        os.kill(self.process.pid, signal.SIGINT)
        self.process.join(60)
        assert self.process.exitcode is not None
        return self.output.read_text()


COCO_FILE = "annotations.json"


def _timeless(described):
    # `stamp` is of the file; `shared` and `by` are what windows of one server learn of each other.
    times = ("seconds", "milliseconds", "train_command", "stamp", "shared", "by")
    return {name: value for name, value in described.items() if name not in times}


def _digest(content):
    content = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(content).hexdigest()[:12]


def _files(folder, *names):
    """Return the files of some names, or in folders of them, without times."""
    files = {}
    for path in sorted(
        path for name in names for path in (folder / name, *folder.glob(f"{name}/**/*"))
    ):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".json":
                content = repr(json.loads(content, object_hook=_timeless))
            elif path.suffix == ".csv":
                rows = csv.DictReader(content.decode().splitlines())
                content = repr([(row["label"], row["objects"], row["clicks"]) for row in rows])
            files[str(path.relative_to(folder))] = _digest(content)
    return files


def _draw_folder(place):
    """Draw two photographs, the second of which has masks, and write a file of keys."""
    folder = place / "set"
    draw_photographs(folder / "images", 2, SIZE)
    labels = np.zeros(SIZE, np.uint8)
    labels[10:20, 10:30], labels[40:60, 40:80], labels[60:62] = 1, 2, 255
    (folder / "masks").mkdir()
    Image.fromarray(labels).save(folder / "masks" / "photo1.png")
    (folder / "keys.json").write_text('{"done": "w"}')
    return folder


def _stroke(x0, x1, y=20.0, radius=4.0, positive=True):
    points = [[x0, y], [x1, y]]
    return {"type": "brush", "radius": radius, "points": points, "positive": positive}


def _script(server):
    """Return changes of every kind that are possible one after the other.

    The second photograph has the objects 1 and 2, the first has 3 and 4 after the split. Strokes
    give the objects their pixels, holes and stray parts, whatever the model answers to prompts.
    """
    before = [[[[40.0, 16.0], [49.0, 16.0], [49.0, 24.0]]]]
    after = [[[[40.0, 16.0], [60.0, 16.0], [49.0, 40.0]]]]
    first = [
        _stroke(20.0, 29.0),
        _stroke(70.0, 79.0),
        {"type": "finish", "label": "bolt"},
        {"type": "split", "object": 3},
        {"type": "merge", "object": 3, "other": 4},
        {"type": "reopen", "object": 3},
        {"type": "click", "x": 64.2, "y": 48.9, "positive": True},
        {"type": "clear"},
        {"type": "undo"},
        {"type": "cancel"},
        {"type": "click", "x": 64.2, "y": 48.9, "positive": True},
        {"type": "scale"},
        {"type": "cancel"},
        _stroke(40.0, 49.0, y=60.0, radius=9.0),
        _stroke(44.0, 45.0, y=60.0, radius=3.0, positive=False),
        {"type": "fill_holes"},
        {"type": "reshape", "before": before, "after": after},
        {"type": "undo"},
        {"type": "redo"},
        {"type": "click", "x": 45.0, "y": 60.0, "positive": True},
        _stroke(44.0, 45.0, y=60.0),
        _stroke(5.0, 6.0, y=90.0, radius=12.0, positive=False),
        _stroke(5.0, 6.0, y=90.0),
        {"type": "remove_islands"},
        {"type": "state", "state": "review"},
        {"type": "state", "state": "accepted"},
        {"type": "label", "object": 3, "label": "nut"},
    ]
    source = {"photo": server.photographs[0]["id"], "object": 3}
    second = [
        {"type": "box", "box": [30.0, 20.0, 100.0, 80.0]},
        _stroke(60.0, 69.0, y=70.0),
        {"type": "copy", **source},
        {"type": "state", "state": "done"},
        {"type": "state", "state": "rejected"},
        {"type": "state", "state": "returned"},
        {"type": "delete", "object": 1},
        {"type": "undo"},
    ]
    # Classes have numbers in the order in which a file has them first, whenever that is written.
    scripted = [("/api/labels", {"add": label}) for label in ("bolt", "nut", "washer")]
    scripted += [(f"{server.path(0)}/actions", {"action": action}) for action in first]
    scripted += [("/api/export", {"format": name}) for name in export_names()]
    scripted.append(("/api/settings", {"avoid_finished": False}))
    return scripted + [(f"{server.path(1)}/actions", {"action": action}) for action in second]


def _any_change(numbers, server):
    """Return a random action, which may be impossible, or a setting or an export."""
    n = numbers.randrange(2)
    page = server.photograph(n)
    objects = [one["id"] for one in page["objects"]] or [0]
    x, y = numbers.uniform(0, 127.9), numbers.uniform(0, 95.9)
    positive = numbers.random() < 0.6
    corners = [[[[x, y], [numbers.uniform(0, 128), y], [x, numbers.uniform(0, 96)]]]]
    arguments = {
        "click": {"x": x, "y": y, "positive": positive},
        "box": {"box": [x / 2, y / 2, 128, 96]},
        "brush": _stroke(x, 64.0, y, 4.0, positive),
        "reshape": {"before": [], "after": corners}
        if positive
        else {"before": corners, "after": []},
        "copy": {"photo": server.photographs[0]["id"]},
        "merge": {"other": numbers.choice(objects)},
        "state": {"state": numbers.choice(STATES)},
        "label": {"label": numbers.choice(["bolt", "nut", "washer", None])},
    }
    kind = numbers.choice(["click", "click", *ACTIONS])
    action = {"object": numbers.choice(objects), **arguments.get(kind, {}), "type": kind}
    others = [
        ("/api/settings", {"avoid_finished": positive}),
        ("/api/export", {"format": numbers.choice(list(export_names()))}),
    ]
    return numbers.choice([(f"{server.path(n)}/actions", {"action": action})] * 9 + others)


class Recorded(NamedTuple):
    """What happens where no server is killed.

    Args:
        changes: Path and body of each change.
        durations: Of their answers in seconds.
        states: `Server.everything` before the first change and after each.
        coco: `annotations.json` in the end.
    """

    changes: list
    durations: list
    states: list
    coco: dict


def _record(place, numbers, more):
    """Make the changes of `_script` and then `more` random ones that are possible."""
    place.mkdir()
    server = Server(_draw_folder(place), place)
    script = _script(server)
    recorded = Recorded([], [], [server.everything()], {})
    while len(recorded.changes) < len(script) + more:
        scripted = len(recorded.changes) < len(script)
        change = script[len(recorded.changes)] if scripted else _any_change(numbers, server)
        began = time.monotonic()
        status, content = server.change(*change)
        if status == 200:
            recorded.durations.append(time.monotonic() - began)
            recorded.changes.append(change)
            recorded.states.append(server.everything())
        else:
            assert not scripted, (change, content)
            assert status < 500, (change, content)
    types = {body["action"]["type"] for _, body in recorded.changes if "action" in body}
    assert types == set(ACTIONS)
    output = server.stop()
    assert "Traceback" not in output, output
    return recorded._replace(coco=_files(server.folder, COCO_FILE))


def _kill_and_look(place, seed, kills, more=20):
    """Make random changes, kill servers in the middle of some, and compare what is there.

    Returns:
        How often a change was answered, and how often it was stored, when a server was killed.
    """
    numbers = random.Random(seed)
    place.mkdir(exist_ok=True)
    recorded = _record(place / "recorded", numbers, more)
    fatal = sorted(numbers.sample(range(len(recorded.changes)), kills))
    server = Server(_draw_folder(place), place)
    assert server.everything() == recorded.states[0]
    answers, stored, done = 0, 0, 0
    for n in fatal:
        for change in recorded.changes[done:n]:
            status, content = server.change(*change)
            assert status == 200, (change, content)
        done = max(done, n)
        path, body = recorded.changes[done]
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(server.change, path, body)
            time.sleep(numbers.uniform(0, 1.2 * recorded.durations[done]))
            server.process.kill()
        server.process.join()
        old, answered = server, future.result() is not None
        server = Server(server.folder, place)
        assert (server.token, server.reader) == (old.token, old.reader), "open tabs go on"
        stranger = {"X-Probseg-Token": server.token[:-1]}
        assert server.ask("GET", "/api/session", headers=stranger)[0] == 401
        refused = server.ask("POST", path, "{}", {"X-Probseg-Token": server.reader})
        assert refused[0] == 403
        now = server.everything()
        before, after = recorded.states[done : done + 2]
        if path == "/api/export" and not answered:  # what is there of it is written anew
            now = {**now, "exports": before["exports"]}
        is_after = answered or now != before
        assert now == (after if is_after else before), (seed, done, path, body)
        answers, stored, done = answers + answered, stored + is_after, done + is_after
    for change in recorded.changes[done:]:
        status, content = server.change(*change)
        assert status == 200, (change, content)
    assert server.everything() == recorded.states[-1]
    output = server.stop()
    assert "Traceback" not in output, output
    assert _files(server.folder, COCO_FILE) == recorded.coco
    assert not list(server.folder.rglob("*.part"))
    return answers, stored


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path):
    _kill_and_look(tmp_path, seed=0, kills=1, more=0)


@pytest.mark.slow
def test_what_was_acknowledged_is_there_after_a_hundred_kills(tmp_path):
    counts = [_kill_and_look(tmp_path / str(seed), 100 + seed, kills=10) for seed in range(10)]
    answered, stored = map(sum, zip(*counts, strict=True))
    assert 0 < answered <= stored < 100


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzzed") / "photos"
    server = Server(draw_photographs(folder, 2, SIZE), tmp_path_factory.mktemp("server"))
    yield server
    output = server.stop()
    assert "Traceback" not in output, output
    files = {path.relative_to(folder.parent).parts[0] for path in folder.parent.rglob("*")}
    assert files == {"photos"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
DEEP = {f"{depth} deep": depth * "[" + depth * "]" for depth in (200, 900, 20_000)}
WRITTEN = {**DEEP, "5000 digits": 5000 * "9"}
"""What is in a body in the place of a text."""

ODD = [-1, 0.5, True, 2**70, 10**400, math.nan, -math.inf, "1", "", "\ud800", [[1, 2]] * 10_001]
WRONG = JSON | st.floats(-10, 200) | st.sampled_from([*ODD, *WRITTEN])
PAIRS = st.lists(st.tuples(st.floats(-9, 137), st.floats(-9, 105)), min_size=1, max_size=4)
OUTLINES = st.lists(st.lists(PAIRS, max_size=2), max_size=2)
LABELS = st.sampled_from(["bolt", "nut", " ", None])
NUMBERS = st.integers(1, 9)
ARGUMENTS = {
    "x": st.floats(0, 127.9),
    "y": st.floats(0, 95.9),
    "positive": st.booleans(),
    "box": st.sampled_from([[30, 20, 100, 80], [0.5, 0.5, 9.5, 9.5], [30, 20, 10, 80]]),
    "radius": st.floats(0.5, 9),
    "points": PAIRS,
    "object": NUMBERS,
    "other": NUMBERS,
    "photo": st.just("ID"),
    "label": LABELS,
    "state": st.sampled_from(STATES),
    "before": OUTLINES,
    "after": OUTLINES,
}
SETTINGS = {
    "zoom": st.sampled_from(["scales", None]),
    "avoid_finished": st.booleans(),
    **dict.fromkeys(KNOBS, st.sampled_from([-1, 0, 1, 2, None])),
}


def _mostly(right):
    """Return objects whose values are often those of another argument, or missing."""
    return st.fixed_dictionaries({}, optional={name: one | WRONG for name, one in right.items()})


def _with_type(arguments):
    kinds = st.sampled_from([*ACTIONS, *ACTIONS, "other"]) | WRONG
    return st.builds(lambda kind, others: {**others, "type": kind}, kinds, arguments)


ACTION = {
    "sequence": st.integers(0, 9),
    "revision": st.just("REVISION"),
    "action": _with_type(_mostly(ARGUMENTS)),
}
SENT = {
    "/api/photos/ID/actions": st.fixed_dictionaries(ACTION)
    | st.fixed_dictionaries({**ACTION, "sequence": WRONG})
    | _mostly(ACTION),
    "/api/photos/ID/preview": _mostly({name: ARGUMENTS[name] for name in ("x", "y", "positive")}),
    "/api/photos/ID/open": _mostly({}),
    "/api/settings": _mostly(SETTINGS),
    "/api/model": _mostly({"name": st.just("none")}),
    "/api/labels": _mostly({"add": LABELS})
    | _mostly({"order": st.lists(LABELS | WRONG, max_size=3)}),
    "/api/export": _mostly({"format": st.sampled_from(list(export_names()))}),
}
"""What is sent to each path, nearly as a client of the page would."""


def _written(body):
    text = json.dumps(body)
    for name, instead in WRITTEN.items():
        text = text.replace(f'"{name}"', instead)
    return text.encode()


BODIES = st.one_of(JSON, *SENT.values()).map(_written) | st.binary(max_size=200)
PATHS = st.sampled_from(
    [
        "/api/session",
        "/api/photos/ID",
        "/api/photos/ID/open",
        "/api/photos/ID/actions",
        "/api/photos/ID/preview",
        "/api/photos/ID/mask",
        "/api/photos/ID/uncertainty",
        "/api/photos/ID/masks",
        "/api/photos/ID/outline/2.0",
        "/api/photos/ID/outline/9" + 400 * "9",
        "/api/report",
        "/api/photos/ID/objects/1/mask",
        "/api/photos/ID/objects/99999999999999999999/mask",
        "/api/photos/ID/objects/" + 5000 * "9" + "/mask",
        "/api/photos/ID/objects/-1/mask",
        "/api/photos/../../etc/passwd/image",
        "/api/photos/%2e%2e%2f%2e%2e/image",
        "/static/../../secret",
        "/static/%00",
        "/api/settings",
        "/api/model",
        "/api/labels",
        "/api/export",
    ]
) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30).map("/{}".format)
HEADERS = st.dictionaries(
    st.sampled_from(["Host", "Origin", "X-Probseg-Token", "Content-Type", "Range", "X-Other"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30).map(str.strip),
    max_size=2,
)


METHODS = ["GET", "POST", "POST", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "post"]
ANY_REQUEST = st.tuples(st.sampled_from(METHODS), PATHS, BODIES, st.just({}) | HEADERS)
NEARLY = st.one_of(
    *(
        st.tuples(st.just("POST"), st.just(path), body.map(_written), st.just({}))
        for path, body in SENT.items()
    )
)
ACTIONS_SENT = st.tuples(
    st.just("POST"),
    st.just("/api/photos/ID/actions"),
    SENT["/api/photos/ID/actions"].map(_written),
    st.just({}),
)
REQUESTS = {"request": ANY_REQUEST | NEARLY | ACTIONS_SENT, "reads": st.sampled_from([0, 0, 1])}


def _one_request(server, request, reads):
    """Make a request with one of the two addresses; nothing is changed with the reader's."""
    method, path, body, headers = request
    path = path.replace("ID", server.photographs[0]["id"])
    body = body.replace(b'"ID"', json.dumps(server.photographs[0]["id"]).encode())
    before = server.photograph() if reads or b'"REVISION"' in body else {"revision": 0}
    body = body.replace(b'"REVISION"', str(before["revision"]).encode())
    token = {"X-Probseg-Token": server.reader} if reads else {}
    try:
        status, _ = server.ask(method, path, body, {**token, **headers})
    except http.client.HTTPException:
        return  # the request itself was no HTTP
    except ConnectionError:
        assert len(body) > MAX_BODY, (method, path, body, headers)
        return
    assert status < 500, (method, path, body, headers)
    if reads:
        assert server.photograph() == before
        if path.startswith("/api") and method not in ("GET", "HEAD") and not headers:
            assert status == 403


@given(**REQUESTS)
@settings(max_examples=200)
def test_malformed_requests_are_refused(server, request, reads):
    _one_request(server, request, reads)


@pytest.mark.slow
@given(**REQUESTS)
@settings(max_examples=10_000)
def test_ten_thousand_malformed_requests_are_refused(server, request, reads):
    _one_request(server, request, reads)


def test_a_real_client_works_after_all_that(server):
    assert server.change("/api/settings", {"avoid_finished": False})[0] == 200
    before = server.photograph()["revision"]
    path, action = f"{server.path()}/actions", _stroke(64.0, 64.5, 48.0)
    status, content = server.change(path, {"action": action})
    assert status == 200, content
    header, mask = unpack(content, SIZE)
    assert mask[48, 64]
    assert header["revision"] == before + 1


def test_wrong_arguments_are_explained(tmp_path, capsys):
    photos, empty = str(draw_photographs(tmp_path / "photos", 1)), tmp_path / "empty"
    empty.mkdir()
    cases = [
        (["annotate", str(tmp_path / "none")], "no such folder"),
        (["annotate", photos, "--host", "0.0.0.0"], "--host"),
        (["annotate", photos, "--port", "70000", "--no-browser"], "--port must"),
        (["annotate", photos, "--host", "::1", "--no-browser"], "--host must"),
        (["annotate", photos, "--host", "192.0.2.1", "--no-browser"], "--host must"),
        (["annotate", str(empty), "--port", "0"], "no photograph"),
        (["annotate", photos, "--port", "0", "--model", "nothing"], "nothing"),
    ]
    for arguments, expected in cases:
        assert main(arguments) == 2
        assert expected in capsys.readouterr().err
