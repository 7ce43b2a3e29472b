"""The page ends in order, and what was below it may be taken away."""

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import time
from contextlib import closing

import pytest
from test_server_process import Server, _draw_folder

from probseg import paths
from probseg.annotate import files
from probseg.annotate.answers import ModelHost
from probseg.errors import UsageError
from support.annotate_client import MODEL, Client, begin, draw_photographs
from support.rows import each

pytestmark = pytest.mark.process

CLICK = {"type": "click", "x": 64, "y": 48, "positive": True}


@pytest.fixture(scope="module")
def model_host(tmp_path_factory):
    return ModelHost(MODEL, tmp_path_factory.mktemp("runs"), "cpu")


@pytest.fixture
def client(tmp_path, model_host):
    return begin(draw_photographs(tmp_path / "set"), model_host)


def refuse_writing(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_masks", full)


def test_looking_at_a_photograph_needs_no_room_on_the_disk(client, monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(client.sessions.store, "change", full)
    assert client.http.get(client.path()).status_code == 200


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
        answer = client.http.post(f"{client.path()}/actions", json=body)
        assert (answer.status_code, "No space" in answer.json()["error"]) == (507, True)
        time.sleep(0.5 if way == "timer" else 0)
    if way == "export":
        client.sessions.export("coco")
    elif way == "close":
        client.sessions.close()
    end = time.monotonic() + 30
    while not (masks / "photo0_1.png").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert [path.name for path in masks.iterdir()] == ["photo0_1.png"]
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


@each("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_page_in_order(number, tmp_path):
    place = tmp_path / signal.Signals(number).name
    place.mkdir()
    before = signal.signal(number, signal.SIG_DFL)  # `nohup pytest` ignores SIGHUP
    server = Server(_draw_folder(place), place)
    signal.signal(number, before)
    for action in (CLICK, {"type": "finish", "label": "disk"}):
        assert server.change(f"{server.path()}/actions", {"action": action})[0] == 200
    server.ask("GET", "/api/report")  # looks for masks: else they wait for the next start
    os.kill(server.process.pid, number)
    server.process.join(60)
    assert server.process.exitcode == 143, server.output.read_text()
    stored = json.loads((server.folder / "annotations.json").read_text())
    assert len(stored["annotations"]) > 0
    assert not (server.folder / f"{files.DATABASE}-wal").exists()


DAMAGE = {
    "cut to nothing": lambda content: b"",
    "cut to 100 bytes": lambda content: content[:100],
    "cut to half": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
    "zeroed in the middle": lambda content: content[:8192] + bytes(8192) + content[16384:],
    "random": lambda content: random.Random(0).randbytes(len(content)),
    "another format": lambda content: content[:47] + b"\5" + content[48:],
}


@each("damage", [*DAMAGE, "DROP TABLE settings", "CREATE TABLE other (x)"])
def test_a_damaged_database_is_kept_and_made_anew(
    damage, tmp_path, model_host, caplog, monkeypatch
):
    """From annotations.json, with clicks, and from masks; a notice counts what was lost."""
    caplog.clear()
    monkeypatch.setattr(files, "DELAY", 60)  # the second object is in no annotations.json yet
    place = tmp_path / damage
    client = begin(draw_photographs(place), model_host)
    client.act(CLICK)
    client.act({"type": "finish", "label": "disk"})
    client.sessions.export("coco")
    client.act(CLICK, n=1)
    client.act({"type": "finish", "label": None}, n=1)
    client.act(CLICK, n=1)
    client.sessions.files.close()  # as a server that is killed
    client.sessions._opened.close()
    database = place / files.DATABASE
    if damage in DAMAGE:
        database.write_bytes(DAMAGE[damage](database.read_bytes()))
    else:
        with closing(sqlite3.connect(database)) as db:
            db.execute(damage)
    before = database.read_bytes()
    client = begin(place, model_host)
    (aside,) = database.parent.glob("*.damaged-*[0-9]")
    assert aside.read_bytes() == before
    (notice,) = [record.getMessage() for record in caplog.records if "kept as" in record.message]
    assert aside.name in notice
    assert re.findall(r"(\d+) of ", notice) == ["2", "1", "0", "0"]
    if "TABLE" in damage:
        assert "2 of 3 objects, 1 of 3 clicks" in notice
    first, second = (client.get(client.path(n))["objects"] for n in (0, 1))
    assert [(one["label"], one["clicks"]) for one in first] == [("disk", 1)]
    assert [one["label"] for one in second] == [None]
    client.act(CLICK)
    client.sessions.close()
    assert len(json.loads((place / "annotations.json").read_text())["annotations"]) == 2
    begin(place, model_host).sessions.close()
    assert len([*database.parent.glob("*.damaged-*[0-9]")]) == 1


def test_a_second_page_is_refused_by_the_name_of_the_first(client, model_host, monkeypatch):
    monkeypatch.setattr(paths, "PATIENCE", 0.1)
    folder = client.sessions.folder
    owner = rf"{folder}: `probseg annotate`, process {os.getpid()} on .* is at work"
    with pytest.raises(UsageError, match=owner):
        begin(folder, model_host)
    client.sessions.close()
    begin(folder, model_host).sessions.close()


def test_a_lock_that_links_out_of_the_folder_is_refused(tmp_path, model_host):
    folder, secret = draw_photographs(tmp_path / "set"), tmp_path / "secret"
    secret.write_text("mine")
    (folder / paths.LOCK).symlink_to(secret)
    with pytest.raises(UsageError, match="a link leads out"):
        begin(folder, model_host)
    assert secret.read_text() == "mine"
