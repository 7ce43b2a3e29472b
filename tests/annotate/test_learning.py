"""Learning from finished photographs on the server: its process, and the model that it makes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from PIL import Image

import probseg
from probseg.annotate import learning
from probseg.annotate.answers import ModelHost
from probseg.annotate.learning import COMMAND, NAME
from probseg.data.folder import ImageMaskFolder
from probseg.paths import zoo_dir
from probseg.zoo.trained import Run
from support.annotate_client import Client, again, begin, draw_photographs
from support.learnings import SAYS, StandIn
from support.rows import each


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path / "cache"))
    return draw_photographs(tmp_path / "photographs")


@pytest.fixture
def stand_in(folder, monkeypatch):
    return StandIn(folder, monkeypatch)


@pytest.fixture
def client(folder):
    client = begin(folder)
    for n in range(2):
        client.click(64, 48, n=n)
        client.act({"type": "finish"}, n=n)
        client.act({"type": "state", "state": "done"}, n=n)
    yield client
    client.sessions.learning.stop()


def ask(client: Client, what: str, status: int = 200, **body):
    answer = client.http.post(f"/api/{what}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def state(client: Client) -> dict:
    return client.get("/api/session")["learning"]


def until(client: Client, wanted: str) -> dict:
    """Wait until the training is in a state."""
    stop = time.monotonic() + 60
    while (now := state(client))["state"] != wanted:
        assert time.monotonic() < stop, now
        time.sleep(0.02)
    return now


def learn(client: Client, stand_in: StandIn, number: int = 1) -> None:
    """Begin to learn, and wait until the process runs."""
    assert ask(client, "learn", minutes=10)["state"] == "running"
    while not stand_in.arguments(number):
        time.sleep(0.02)


def test_what_is_learned_is_used_at_the_next_start_and_undone(client, stand_in, monkeypatch):
    assert state(client) == {"state": "none", "used": False}
    news = []
    monkeypatch.setattr(client.sessions.windows, "tell", news.append)
    learn(client, stand_in)
    assert "already" in ask(client, "learn", 400, minutes=10)["error"]
    assert stand_in.arguments(1) == ["10"]
    stand_in.comes_out(SAYS)
    name = f"{NAME} 1"
    assert until(client, "done") == {
        "state": "done",
        "sentence": SAYS,
        "model": name,
        "curve": [],
        "used": False,
    }
    first, *_, last = [one["learning"] for one in news if "learning" in one]
    assert first["state"] == "running"
    assert first["minutes"] == 10
    assert 0 <= first["gone"] < 1
    assert last["sentence"] == SAYS
    before = client.get("/api/session")["model"]["name"]
    assert ask(client, "learn/use", use=True)["model"]["name"] == name
    restarted = begin_again(client)
    assert restarted.get("/api/session")["model"]["name"] == name
    assert state(restarted)["used"]
    assert restarted.click(30, 30)[1].any()
    assert ask(restarted, "learn/use", use=False)["model"]["name"] == before
    assert not state(restarted)["used"]
    assert state(restarted)["model"] == name, "it is still offered"
    assert begin_again(restarted).sessions.model_host.name == before


def begin_again(client: Client) -> Client:
    """Kill a server, and start one on the same folder that asks for no model."""
    model_host = ModelHost()
    client.sessions.model_host = model_host
    return again(client)


def test_a_second_learning_goes_on_from_the_model_that_is_used(client, stand_in):
    learn(client, stand_in)
    stand_in.comes_out(SAYS)
    until(client, "done")
    ask(client, "learn/use", use=True)
    stand_in.comes_out(None)
    learn(client, stand_in, 2)
    assert stand_in.arguments(2) == ["10", str(stand_in.place / "1" / NAME)]
    stand_in.comes_out("the new network is not better")
    assert until(client, "done") == {
        "state": "done",
        "sentence": "the new network is not better",
        "model": None,
        "curve": [],
        "used": True,
    }
    assert client.get("/api/session")["model"]["name"] == f"{NAME} 1"
    assert "no learned model" in ask(client, "learn/use", 400, use=True)["error"]
    ask(client, "learn/use", use=False)
    assert "none is used" in ask(client, "learn/use", 400, use=False)["error"]
    stand_in.comes_out(None)
    learn(client, stand_in, 3)
    stand_in.comes_out(SAYS)
    until(client, "done")
    client.sessions.learning._watcher.join()
    assert sorted(path.name for path in stand_in.place.iterdir()) == ["3", "end"]


def test_a_training_that_is_killed_goes_on_from_its_last_epoch(client, stand_in):
    learn(client, stand_in)
    stand_in.kill(1)
    assert until(client, "interrupted") == {"state": "interrupted", "used": False}
    learn(client, stand_in, 2)  # there was no epoch yet
    last = stand_in.place / "2" / "run" / "version_0" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.touch()
    assert ask(client, "learn/stop")["state"] == "interrupted"
    restarted = again(client)
    assert state(restarted)["state"] == "interrupted"
    stand_in.comes_out(SAYS)
    ask(restarted, "learn", minutes=10)
    assert until(restarted, "done")["model"] == f"{NAME} 2"


def test_a_fault_of_a_training_is_told(client, stand_in):
    learn(client, stand_in)
    stand_in.comes_out("probseg: error: the disk is full")
    assert until(client, "failed")["sentence"] == "the disk is full"
    assert state(again(client))["sentence"] == "the disk is full"


def test_the_end_of_the_server_ends_the_training(client, stand_in):
    learn(client, stand_in)
    process = client.sessions.learning._process
    client.sessions.close()
    assert process.poll() is not None


def test_a_training_reads_copies_of_finished_photographs(client, stand_in):
    client.click(64, 48, n=2)
    client.act({"type": "finish"}, n=2)  # the photograph is not done
    learn(client, stand_in)
    (mask,) = [
        client.sessions.store.png(one.id) for one in client.sessions.store.listed("photo0.png")
    ]
    client.act({"type": "delete", "object": 1})
    read = ImageMaskFolder(stand_in.place / "1")
    assert [path.name for path in read.photographs] == ["photo0.png", "photo1.png"]
    assert (stand_in.place / "1" / "masks" / "photo0_1.png").read_bytes() == mask
    assert [np.any(read[n].mask) for n in range(len(read))] == [True, True]


def test_photographs_with_long_names_in_folders_are_learned_from(tmp_path):
    photographs = draw_photographs(tmp_path / "drawn", 2)
    Image.new("L", (128, 96), 1).save(tmp_path / "mask.png")
    mask = (tmp_path / "mask.png").read_bytes()
    learning._copy(
        [
            learning.Example(
                photographs / f"photo{n}.png", f"{'d' * 150}/{'e' * 150}{n}.png", [mask]
            )
            for n in range(2)
        ],
        tmp_path / "1",
    )
    read = ImageMaskFolder(tmp_path / "1")
    assert [path.name for path in read.photographs] == ["%0.png", "%1.png"]
    assert len(read) > 0


def test_other_requests_are_answered_while_photographs_are_copied(client, stand_in, monkeypatch):
    copy = learning._copy

    def look(*given):
        assert state(client)["state"] == "none"
        copy(*given)

    monkeypatch.setattr(learning, "_copy", look)
    learn(client, stand_in)


@each("minutes", [0, -1, None, "10", True, float(24 * 60 + 1)])
def test_wrong_minutes_are_refused(client, minutes):
    assert "`minutes` must be above 0" in ask(client, "learn", 400, minutes=minutes)["error"]


def test_too_few_photographs_are_refused(client):
    client.act({"type": "state", "state": "open"})
    error = ask(client, "learn", 400, minutes=10)["error"]
    assert error == "at least 2 photographs with objects must be done, got 1; press Done on more"
    assert state(client)["state"] == "none"


def test_a_learned_model_that_came_with_the_folder_is_not_used(
    client, stand_in, monkeypatch, tmp_path, caplog
):
    learn(client, stand_in)
    stand_in.comes_out(SAYS)
    until(client, "done")
    ask(client, "learn/use", use=True)
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path / "cache of somebody else"))
    other = begin_again(client)
    assert other.sessions.model_host.name == "lite2_unet_prop"
    assert f"was last used with '{NAME} 1'" in caplog.text


@each("content", ["", "[]", "{}", '{"sentence": '])
def test_what_a_folder_says_may_be_anything(client, stand_in, content):
    learn(client, stand_in)
    ask(client, "learn/stop")
    (stand_in.place / "1" / "learned.json").write_text(content)
    assert state(client)["state"] == "interrupted"


@each(
    "content", ["", "[", "{}", "[[0]]", '[[0, "a"]]', "[[0, NaN]]", "[[0, 0.5], [Infinity, 0.5]]"]
)
def test_what_a_folder_says_of_a_curve_may_be_anything(client, stand_in, content):
    learn(client, stand_in)
    newest = max(stand_in.place.glob("[0-9]*"), key=lambda path: int(path.name))
    for version, text in enumerate(["[[0, 0.5]]", content]):
        run = newest / "run" / f"version_{version}"
        run.mkdir(parents=True, exist_ok=True)
        (run / "curve.json").write_text(text)
    assert state(client)["curve"] in ([], [[0, 0.5]])
    (run / "curve.json").write_text("[[0, 0.5], [1.5, 0.75]]")
    assert state(client)["curve"] == [[0, 0.5], [1.5, 0.75]]
    ask(client, "learn/stop")


@each(("after", "better"), [(2.9, True), (4.2, False), (None, False)])
def test_a_better_network_becomes_a_model_with_a_card(folder, tmp_path, monkeypatch, after, better):
    place, given = tmp_path / str(after), []
    shutil.copytree(zoo_dir() / "lite2_unet_prop.objects", run := place / "run" / "version_0")
    for name in ("images", "masks"):
        (place / name).mkdir()
    if after is not None:
        gain = {"before": 4.2, "after": after, "saved": None, "sentence": SAYS}
        (run / "gain.json").write_text(json.dumps(gain))
    monkeypatch.setattr(
        probseg, "train", lambda *args, **options: given.append((args, options)) or Run(run)
    )
    learning._learn(place, 10, "models/first")
    ((root, settings), options) = given[0]
    assert (root, options) == (place, {"minutes": 10})
    assert settings["model.model.init_args.name"] == "models/first"
    said = {"sentence": "" if after is None else SAYS}
    assert json.loads((place / "learned.json").read_text()) == said
    assert (place / NAME).exists() == better
    if better:
        assert SAYS in (place / NAME / "README.md").read_text()
        ModelHost().load(str(place / NAME))


def test_the_process_ends_with_its_standard_input(tmp_path):
    (tmp_path / "masks").mkdir()
    words = [*COMMAND, str(tmp_path), "10"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.close()
    assert process.wait(60) == -signal.SIGTERM


def test_a_training_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    (tmp_path / "masks").mkdir()
    monkeypatch.setattr(learning.os, "nice", lambda by: None)
    monkeypatch.setattr(learning, "_end_with_the_server", lambda: None)
    with pytest.raises(ValueError, match="holds no file"):
        learning.main([str(tmp_path), "10"])
    assert f"\nprobseg: error: {tmp_path}" in capsys.readouterr().err
