"""The page ends in order, and what was below it may be taken away."""

import json
import os
import shutil
import signal
import time

import pytest
from test_server_process import Server, _draw_folder

from probseg.annotate import files
from probseg.annotate.answers import ModelHost
from support.annotate_client import MODEL, Client, draw_photographs
from support.rows import each

pytestmark = pytest.mark.process

CLICK = {"type": "click", "x": 64, "y": 48, "positive": True}


@pytest.fixture(scope="module")
def model_host(tmp_path_factory):
    return ModelHost(MODEL, tmp_path_factory.mktemp("runs"), "cpu")


@pytest.fixture
def client(tmp_path, model_host):
    from probseg.annotate.sessions import Sessions

    client = Client(Sessions(draw_photographs(tmp_path / "set"), None, model_host))
    return client


def refuse_writing(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_masks", full)


@pytest.mark.parametrize("way", ["timer", "export", "close"])
def test_masks_that_could_not_be_written_are_written_again(way, client, monkeypatch):
    monkeypatch.setattr(files, "DELAY", 0.2 if way == "timer" else 60)
    masks = client.sessions.folder / "masks"
    client.act(CLICK)
    with monkeypatch.context() as patched:
        refuse_writing(patched)
        revision = client.get(client.path())["revision"]
        finish = {"type": "finish", "label": None}
        body = {"sequence": 1, "revision": revision, "action": finish}
        assert client.http.post(f"{client.path()}/actions", json=body).status_code == 507
        time.sleep(0.5 if way == "timer" else 0)
    if way == "export":
        client.sessions.export("coco")
    elif way == "close":
        client.sessions.close()
    end = time.monotonic() + 30
    while not (masks / "photo0_1.png").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert (masks / "photo0_1.png").exists()
    if way != "close":
        client.sessions.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_was_taken_away_is_written_anew(replaced, client, caplog):
    client.act(CLICK)
    client.act({"type": "finish", "label": "disk"})
    database = client.sessions.out / files.DATABASE
    if replaced:
        database.rename(database.with_name("old"))
        database.write_bytes(b"of another program")
    else:
        shutil.rmtree(database.parent)
    client.act(CLICK)
    assert "is written anew" in caplog.text
    assert any(database.parent.glob("*.replaced-*")) == replaced
    client.sessions.close()
    again = Client(type(client.sessions)(client.sessions.folder, None, client.sessions.model_host))
    objects = again.get(again.path())["objects"]
    assert [one["label"] for one in objects] == ["disk"]
    assert again.get(again.path())["undo"]
    again.sessions.close()


@pytest.mark.process
@each("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_page_in_order(number, tmp_path):
    place = tmp_path / signal.Signals(number).name
    place.mkdir()
    before = signal.signal(number, signal.SIG_DFL)  # `nohup pytest` ignores SIGHUP
    server = Server(_draw_folder(place), place)
    signal.signal(number, before)
    for action in (CLICK, {"type": "finish", "label": "disk"}):
        assert server.change(f"{server.path()}/actions", {"action": action})[0] == 200
    os.kill(server.process.pid, number)
    server.process.join(60)
    assert server.process.exitcode == 143, server.output.read_text()
    stored = json.loads((server.folder / "annotations.json").read_text())
    assert len(stored["annotations"]) > 0
    assert not (server.folder / f"{files.DATABASE}-wal").exists()
