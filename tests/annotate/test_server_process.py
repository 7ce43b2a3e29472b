"""A real server process: kills at any moment, and requests that are not those of the page."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probseg.annotate.frames import unpack
from probseg.cli import main
from support.annotate_client import draw_photographs
from support.runs import printed_line, started

SIZE = (96, 128)


class Server:
    """A server process on a folder, and a client."""

    def __init__(self, folder, place):
        self.output = place / "output.txt"
        self.process = started(place, ["annotate", folder, "--port", 0, "--no-browser"])
        address, self.token = printed_line(self.process, place, "http://").split("/#")
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

    def act(self, revision, action):
        """Return header and mask, or None if the server is gone."""
        path = f"/api/photos/{self.photographs[0]['id']}/actions"
        body = json.dumps({"sequence": revision, "revision": revision, "action": action})
        try:
            status, content = self.ask("POST", path, body)
        except (OSError, http.client.HTTPException):
            return None
        assert status == 200, content
        return unpack(content, SIZE)

    def photograph(self):
        return json.loads(self.ask("GET", f"/api/photos/{self.photographs[0]['id']}")[1])

    def mask(self):
        frame = self.ask("GET", f"/api/photos/{self.photographs[0]['id']}/mask")[1]
        return unpack(frame, SIZE)[1]

    def stop(self):
        """Interrupt it, and return its output."""
        os.kill(self.process.pid, signal.SIGINT)
        self.process.join(60)
        assert self.process.exitcode is not None
        return self.output.read_text()


def _edits():
    """Return actions on objects and on the state that are possible one after the other."""
    strokes = [
        {"type": "brush", "radius": 4.0, "points": [[x, 20.0], [x + 9, 20.0]], "positive": True}
        for x in (20.0, 70.0, 40.0)
    ]
    before = [[[[40.0, 16.0], [49.0, 16.0], [49.0, 24.0]]]]
    after = [[[[40.0, 16.0], [60.0, 16.0], [49.0, 40.0]]]]
    return [
        *strokes[:2],
        {"type": "finish", "label": "bolt"},
        {"type": "split", "object": 1},
        {"type": "merge", "object": 1, "other": 2},
        strokes[2],
        {"type": "reshape", "before": before, "after": after},
        {"type": "state", "state": "rejected"},
        {"type": "state", "state": "returned"},
    ]


def _script(random_numbers, count):
    """Return `_edits` and then random actions, all possible one after the other."""
    actions = _edits()
    steps = cursor = len(actions)
    for _ in range(count):
        kinds = ["click", "click", "brush"] + ["undo"] * (cursor > 0) + ["redo"] * (cursor < steps)
        kind = random_numbers.choice(kinds)
        x, y = random_numbers.uniform(0, 127.9), random_numbers.uniform(0, 95.9)
        positive = random_numbers.random() < 0.6
        action = {"type": kind}
        if kind == "click":
            action |= {"x": x, "y": y, "positive": positive}
        elif kind == "brush":
            action |= {"radius": 4.0, "points": [[x, y], [64.0, 48.0]], "positive": positive}
        actions.append(action)
        cursor += -1 if kind == "undo" else 1
        steps = steps if kind in ("undo", "redo") else cursor
    return actions


def _kill_and_look(place, seed):
    """Kill a server in the middle of a script, and compare with what it had acknowledged."""
    folder = draw_photographs(place / "photos", 1, SIZE)
    numbers = random.Random(seed)
    actions = _script(numbers, 8)
    server = Server(folder, place)
    revision = server.photograph()["revision"]
    last, acknowledged = None, 0
    with ThreadPoolExecutor(1) as pool:
        fatal = numbers.randrange(1, len(actions))
        for n, action in enumerate(actions):
            future = pool.submit(server.act, revision + n, action)
            if n == fatal:
                time.sleep(numbers.uniform(0, 0.08))
                server.process.kill()
            answer = future.result()
            if answer is None:
                break
            last, acknowledged = answer, acknowledged + 1
    server.process.kill()
    server.process.join()
    server = Server(folder, place)
    now = server.photograph()
    done = now["revision"] - revision
    assert done in (acknowledged, acknowledged + 1), "only the last may be unacknowledged"
    if done == acknowledged and last is not None:
        header, mask = last
        assert now["current"] == header["current"]
        for key in ("objects", "state"):
            assert now[key] == header.get(key, now[key])
        assert (now["undo"], now["redo"]) == (header["undo"], header["redo"])
        back = server.mask()
        assert (back is None and mask is None) or np.array_equal(back, mask)
    for n, action in enumerate(actions[done:], start=done):  # and it goes on
        assert server.act(revision + n, action) is not None
    output = server.stop()
    assert "Traceback" not in output, output
    return done == acknowledged


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path):
    _kill_and_look(tmp_path, seed=0)


@pytest.mark.slow
def test_what_was_acknowledged_is_there_after_a_hundred_kills(tmp_path):
    compared = sum(_kill_and_look(tmp_path / str(seed), 100 + seed) for seed in range(100))
    assert compared > 20


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
KINDS = st.sampled_from(
    [
        "click",
        "box",
        "brush",
        "undo",
        "redo",
        "clear",
        "cancel",
        "fill_holes",
        "remove_islands",
        "reshape",
        "split",
        "merge",
        "copy",
        "finish",
        "reopen",
        "delete",
        "label",
        "state",
        "other",
    ]
)
NAMES = ["x", "y", "positive", "box", "radius", "points", "object", "photo", "label", "state"]
NAMES += ["other", "before", "after"]
ACTIONS = st.fixed_dictionaries(
    {"type": KINDS}, optional={name: JSON | st.floats(-10, 200) for name in NAMES}
)
BODIES = (
    st.fixed_dictionaries(
        {"sequence": JSON, "revision": st.integers(0, 3) | JSON, "action": ACTIONS | JSON}
    ).map(lambda body: json.dumps(body).encode())
    | JSON.map(lambda body: json.dumps(body).encode())
    | st.binary(max_size=200)
)
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


def _one_request(server, method, path, body, headers):
    path = path.replace("ID", server.photographs[0]["id"])
    try:
        status, _ = server.ask(method, path, body, headers)
    except http.client.HTTPException:
        return  # the request itself was no HTTP
    assert status < 500, (method, path, body, headers)


REQUESTS = {
    "method": st.sampled_from(["GET", "POST", "POST", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"]),
    "path": PATHS,
    "body": BODIES,
    "headers": st.just({}) | HEADERS,
}


@given(**REQUESTS)
@settings(max_examples=200)
def test_malformed_requests_are_refused(server, method, path, body, headers):
    _one_request(server, method, path, body, headers)


@pytest.mark.slow
@given(**REQUESTS)
@settings(max_examples=10_000)
def test_ten_thousand_malformed_requests_are_refused(server, method, path, body, headers):
    _one_request(server, method, path, body, headers)


def test_a_real_client_works_after_all_that(server):
    revision = server.photograph()["revision"]
    header, mask = server.act(
        revision, {"type": "brush", "radius": 5.0, "points": [[64, 48]], "positive": True}
    )
    assert mask[48, 64]
    assert header["revision"] == revision + 1


def test_wrong_arguments_are_explained(tmp_path, capsys):
    photos = str(draw_photographs(tmp_path / "photos", 1))
    cases = [
        (["annotate", str(tmp_path / "none")], "no such folder"),
        (["annotate", photos, "--host", "0.0.0.0"], "--host"),
        (["annotate", photos, "--port", "70000", "--no-browser"], "--port"),
        (["annotate", str(tmp_path), "--port", "0"], "no photograph"),
        (["annotate", photos, "--port", "0", "--model", "nothing"], "nothing"),
    ]
    for arguments, expected in cases:
        assert main(arguments) == 2
        assert expected in capsys.readouterr().err
