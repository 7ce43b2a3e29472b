from __future__ import annotations

import json
import os
import resource
import shlex
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from probseg import Predictor
from probseg.annotate import files
from probseg.annotate.answers import ModelHost
from probseg.annotate.frames import unpack
from probseg.annotate.photographs import list_photographs, refusals
from probseg.cli import main
from probseg.data import ImageMaskFolder
from probseg.errors import UsageError
from probseg.images import read_image
from probseg.interact.steps import brush_pixels, snap, tidy
from probseg.types import Click, Stroke
from probseg.zoo import store
from support.annotate_client import HOST, MODEL, again, begin, draw_photographs
from support.fakes import micro_model
from support.micro import described
from support.rows import each


@pytest.fixture(scope="module")
def model_host():
    return ModelHost(MODEL)


@pytest.fixture
def client(tmp_path, model_host):
    client = begin(draw_photographs(tmp_path / "photos"), model_host)
    yield client
    client.sessions.close()


CLICKS = [(64.2, 48.9, True), (5.5, 5.5, False), (64.0, 30.0, True)]


def test_masks_are_those_of_the_predictor_for_the_same_prompts(client):
    predictor = Predictor.from_pretrained(MODEL, zoom=client.sessions.model_host.zoom)
    predictor.set_image(read_image(client.sessions.photographs[0].path))
    for x, y, positive in CLICKS:
        _, mask = client.click(x, y, positive)
        wanted = predictor.predict([Click(int(x), int(y), positive)]).binary
        assert np.array_equal(mask, wanted)
    assert mask.any()
    assert not mask.all()
    _, mask = client.act({"type": "box", "box": [30.4, 20.6, 99.5, 80.0]})
    assert np.array_equal(mask, predictor.predict(box=(30, 20, 100, 80)).binary)


def test_undo_and_redo_are_exact_and_outlive_the_server(client):
    masks = [None]
    for click in CLICKS:
        masks.append(client.click(*click)[1])
    header, mask = client.act({"type": "undo"})
    assert np.array_equal(mask, masks[2])
    assert header["redo"]
    assert len(header["current"]["clicks"]) == 2
    client = again(client)
    assert np.array_equal(client.mask(), masks[2])
    header, mask = client.act({"type": "redo"})
    assert np.array_equal(mask, masks[3])
    assert not header["redo"]
    for wanted in (masks[2], masks[1], None):
        header, mask = client.act({"type": "undo"})
        assert (mask is None and wanted is None) or np.array_equal(mask, wanted)
    assert not header["undo"]
    client.act({"type": "redo"})
    header, _ = client.click(20, 20, False)  # a new step drops those behind it
    assert not header["redo"]
    client.sessions.close()


def test_strokes_hold_over_later_clicks_and_are_undone(client):
    _, before = client.click(*CLICKS[0])
    stroke = {"type": "brush", "radius": 5, "points": [[10, 10], [40, 10]], "positive": True}
    _, mask = client.act(stroke)
    assert mask[10, 10:40].all()
    assert mask[7:13, 25].all()
    assert not mask[20, 25]
    erase = {"type": "brush", "radius": 3, "points": [[64.5, 48.5]], "positive": False}
    _, mask = client.act(erase)
    assert not mask[48, 64]
    _, mask = client.click(*CLICKS[1])
    assert mask[10, 10:40].all()
    assert not mask[48, 64]
    client = again(client)
    assert np.array_equal(client.mask(), mask)
    for _ in range(3):
        _, mask = client.act({"type": "undo"})
    assert np.array_equal(mask, before)
    client.sessions.close()


SNAPPED = {"type": "brush", "radius": 20, "points": [[64, 48], [96, 48]], "snap": True}


def test_a_snapped_stroke_is_stored_as_the_pixels_that_it_has(client):
    _, before = client.click(*CLICKS[0])
    one = client.sessions.store.open_object("photo0.png")
    photograph = client.sessions.photographs[0]
    probability = client.sessions.answers.session(photograph, one).answer.state.probability
    stroke = Stroke(((64.0, 48.0), (96.0, 48.0)), 20.0, positive=False)
    pixels = snap(stroke, read_image(photograph.path), probability).pixels
    assert 0 < pixels.sum() < brush_pixels(stroke, pixels.shape).sum()
    _, mask = client.act({**SNAPPED, "positive": False})
    assert np.array_equal(mask, tidy(before & ~pixels, [Click(*CLICKS[0])]))
    _, later = client.click(*CLICKS[1])
    assert not later[pixels].any()
    client = again(client)
    assert np.array_equal(client.mask(), later)
    client.act({"type": "undo"})
    header, undone = client.act({"type": "undo"})
    assert np.array_equal(undone, before)
    assert len(header["current"]["clicks"]) == 1
    _, redone = client.act({"type": "redo"})
    assert np.array_equal(redone, mask)
    client.act({"type": "finish"})
    number = client.get(client.path())["objects"][0]["id"]
    client.act({"type": "reopen", "object": number})
    client = again(client)  # the steps before the finished mask have no answers
    assert np.array_equal(client.mask(), mask)
    _, corrected = client.click(*CLICKS[1])
    assert not corrected[pixels].any()
    client.sessions.close()


def test_a_snapped_stroke_begins_an_object(client):
    stroke = Stroke(((64.0, 48.0), (96.0, 48.0)), 20.0)
    image = read_image(client.sessions.photographs[0].path)
    pixels = snap(stroke, image, np.zeros(image.shape[:2], np.float32)).pixels
    _, mask = client.act(SNAPPED)
    assert np.array_equal(mask, pixels)
    client.sessions.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"snap": 1}, "`snap` must be true or false, got 1"),
        ({"snap": "yes"}, "`snap` must be true or false, got 'yes'"),
        ({"snap": None}, "`snap` must be true or false, got None"),
        ({"positive": 0}, "`positive` must be true or false, got 0"),
        ({"radius": 0}, "`radius` must be above 0"),
    ],
)
def test_wrong_fields_of_a_snapped_stroke_are_refused(client, wrong, said):
    revision = client.get(client.path())["revision"]
    body = {"revision": revision, "action": {**SNAPPED, **wrong}}
    answer = client.http.post(f"{client.path()}/actions", json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert client.get(client.path())["current"] is None
    client.sessions.close()


def test_finished_objects_are_files_that_training_reads(client):
    _, first = client.click(*CLICKS[0])
    predictor = Predictor.from_pretrained(MODEL, zoom=client.sessions.model_host.zoom)
    predictor.set_image(read_image(client.sessions.photographs[0].path))
    x, y, positive = CLICKS[0]
    quality = pytest.approx(predictor.predict([Click(int(x), int(y), positive)]).quality, abs=1e-3)
    header, _ = client.act({"type": "finish", "label": "disk"})
    assert header["current"] is None
    assert header["objects"][0]["label"] == "disk"
    assert header["objects"][0]["quality"] == quality
    stroke = {"type": "brush", "radius": 4, "points": [[8, 8], [64, 48]], "positive": True}
    _, second = client.act(stroke)
    assert not (first & second).any(), "finished objects are background of the next one"
    client.act({"type": "finish", "label": None})
    client.act({"type": "state", "state": "done"})
    client.sessions.close()
    folder = client.sessions.folder
    samples = ImageMaskFolder(folder)
    assert [samples[n].name for n in range(len(samples))] == ["photo0_1", "photo0_2"]
    assert np.array_equal(samples[0].mask == 1, first)
    assert np.array_equal(samples[1].mask == 1, second)
    content = json.loads((folder / "annotations.json").read_text())
    decoded = [coco_mask.decode(one["segmentation"]) for one in content["annotations"]]
    assert np.array_equal(decoded[0], first)
    assert np.array_equal(decoded[1], second)
    names = {one["id"]: one["name"] for one in content["categories"]}
    assert [names[one["category_id"]] for one in content["annotations"]] == ["disk", "object"]
    assert content["annotations"][0]["model"] == MODEL
    assert content["annotations"][0]["score"] == quality
    assert len(content["annotations"][0]["prompts"]) == 1


def test_objects_open_again_with_their_mask_and_prompts(client):
    _, first = client.click(*CLICKS[0])
    client.act({"type": "finish", "label": "disk"})
    client.click(10, 10)
    (finished,) = client.get(client.path())["objects"]
    number = finished["id"]
    header, mask = client.act({"type": "reopen", "object": number})
    assert np.array_equal(mask, first)
    assert len(header["current"]["clicks"]) == 1
    assert header["current"]["label"] == "disk"
    _, mask = client.act({"type": "undo"})
    _, mask = client.act({"type": "redo"})
    assert np.array_equal(mask, first)
    _, further = client.click(90, 70)
    client = again(client)
    assert np.array_equal(client.mask(), further), "it goes on from the finished mask"
    _, mask = client.act({"type": "undo"})
    assert np.array_equal(mask, first)
    header, _ = client.act({"type": "finish", "label": "disk"})
    assert finished["quality"] in [one["quality"] for one in header["objects"]]
    header, _ = client.act({"type": "delete", "object": number})
    assert number not in [one["id"] for one in header["objects"]]
    client.sessions.close()
    masks = sorted(p.name for p in (client.sessions.folder / "masks").iterdir())
    assert masks == [f"photo0_{n}.png" for n in range(1, len(header["objects"]) + 1)]


def test_a_folder_of_the_first_schema_gets_what_the_later_ones_have(client):
    """Objects had a cursor, behind which were steps that undo had taken back, and no quality."""
    _, mask = client.click(*CLICKS[0])
    client.act({"type": "finish", "label": "disk"})
    client.click(10, 10)
    _, drawn = client.click(20, 20)
    client.sessions.close()
    database = sqlite3.connect(client.sessions.folder / ".probseg" / "annotations.sqlite")
    triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        database.execute(f"DROP TRIGGER {name}")
    database.executescript(
        "ALTER TABLE objects DROP COLUMN quality;"
        "ALTER TABLE objects ADD COLUMN cursor INTEGER NOT NULL DEFAULT 2;"
        "INSERT INTO steps SELECT object, 2, body FROM steps WHERE object = 2 AND position = 0;"
        "DROP TABLE history; DROP TABLE recording; PRAGMA user_version = 1;"
    )
    database.close()
    client = begin(client.sessions.folder, client.sessions.model_host)
    page = client.get(client.path())
    assert [(one["area"], one["quality"]) for one in page["objects"]] == [(mask.sum(), None)]
    assert len(page["current"]["clicks"]) == 2
    assert np.array_equal(client.mask(), drawn)
    client.act({"type": "cancel"})
    client.act({"type": "reopen", "object": page["objects"][0]["id"]})
    _, further = client.click(*CLICKS[2])
    header, _ = client.act({"type": "finish", "label": "disk"})
    assert 0 < header["objects"][0]["quality"] <= 1
    assert np.array_equal(client.act({"type": "undo"})[1], further)
    client.sessions.close()


def test_masks_that_were_there_are_objects_and_keep_their_ignored_pixels(tmp_path, model_host):
    folder = tmp_path / "set"
    draw_photographs(folder / "images")
    labels = np.zeros((96, 128), np.uint8)
    labels[10:20, 10:30], labels[40:60, 40:80], labels[60:62] = 1, 7, 255
    (folder / "masks").mkdir()
    Image.fromarray(labels).save(folder / "masks" / "photo1.png")
    client = begin(folder, model_host)
    rows = client.get("/api/session")["photographs"]
    assert [(row["objects"], row["labels"]) for row in rows] == [(0, {}), (2, {"": 2}), (0, {})]
    objects = client.get(client.path(1))["objects"]
    assert [one["window"] for one in objects] == [[10, 10, 20, 10], [40, 40, 40, 20]]
    assert (folder / "masks" / "photo1.png").is_file(), "looking changes nothing"
    _, mask = client.act({"type": "reopen", "object": objects[1]["id"]}, 1)
    assert np.array_equal(mask, labels == 7)
    _, mask = client.click(60, 50, True, 1)
    client.act({"type": "undo"}, 1)
    stroke = {"type": "brush", "radius": 9, "points": [[100, 80]], "positive": True}
    client.act(stroke, 1)
    client.act({"type": "finish", "label": "box"}, 1)
    client.act({"type": "reopen", "object": objects[1]["id"]}, 1)
    for _ in ("reopen", "finish", "stroke"):
        _, mask = client.act({"type": "undo"}, 1)
    assert np.array_equal(mask, labels == 7), "undo leads back to the file"
    for _ in ("stroke", "finish", "reopen"):
        client.act({"type": "redo"}, 1)
    client.act({"type": "clear"}, 1)
    client.act({"type": "finish", "label": "box"}, 1)
    client.sessions.close()
    samples = ImageMaskFolder(folder)
    wanted = [np.where(labels == 255, 255, labels == number) for number in (1, 7)]
    assert [np.array_equal(samples[n].mask, wanted[n]) for n in (0, 1)] == [True, True]
    kept = np.asarray(Image.open(folder / ".probseg" / "masks" / "photo1.png"))
    assert np.array_equal(kept, labels)


def test_one_history_of_all_that_was_done_to_a_photograph(client):
    """Undo leads back through each state, redo forth again, also by a new server."""
    folder = client.sessions.folder

    def now():
        page, mask = client.get(client.path()), client.mask()
        objects = [
            (one["id"], one["label"], one["area"], one["quality"]) for one in page["objects"]
        ]
        current = page["current"] and (page["current"]["clicks"], page["current"]["label"])
        files = sorted(p.read_bytes() for p in (folder / "masks").glob("*.png"))
        drawn = None if mask is None else mask.tobytes()
        return page["state"], objects, current, files, drawn

    def act(kind, **more):
        client.act({"type": kind, **more})
        states.append(now())

    states = [now()]
    act("click", x=64.2, y=48.9, positive=True)
    act("finish", label="disk")
    number = client.get(client.path())["objects"][0]["id"]
    act("label", object=number, label="ring")
    act("click", x=90.0, y=70.0, positive=True)
    act("reopen", object=number)
    act("click", x=100.0, y=20.0, positive=False)
    act("clear")
    act("brush", radius=4, points=[[8, 8]], positive=True)
    act("cancel")
    act("delete", object=number)
    act("state", state="done")
    assert states[9][1] == states[3][1] + states[5][1], "as before it was opened again"
    back = len(states) - 1
    while back:
        back -= 1
        header, _ = client.act({"type": "undo"})
        if back == 5:
            client = again(client)
        assert now() == states[back], back
    assert not header["undo"]
    for state in states[1:]:
        header, _ = client.act({"type": "redo"})
        assert now() == state
    assert not header["redo"]
    client.act({"type": "undo"})
    header, _ = client.act({"type": "label", "object": number + 1, "label": "new"})
    assert not header["redo"], "a new change takes the place of those that were undone"
    assert "nothing to redo" in client.refused({"type": "redo"})
    client.sessions.close()


def test_holes_and_stray_parts_are_edited_by_steps_that_undo_takes_back(client):
    assert "no object is open" in client.refused({"type": "fill_holes"})
    client.act({"type": "brush", "radius": 20, "points": [[64, 48]], "positive": True})
    _, whole = client.click(64, 48)
    client.act({"type": "brush", "radius": 4, "points": [[64, 48]], "positive": False})
    _, ragged = client.act({"type": "brush", "radius": 3, "points": [[5, 90]], "positive": True})
    _, filled = client.act({"type": "fill_holes"})
    assert filled[48, 64]
    assert "no hole" in client.refused({"type": "fill_holes"})
    _, clean = client.act({"type": "remove_islands"})
    assert not clean[90, 5]
    assert "no stray part" in client.refused({"type": "remove_islands"})
    client = again(client)
    assert np.array_equal(client.mask(), clean)
    assert np.array_equal(client.click(5, 90)[1][90, 5], False), "edits hold over later clicks"
    for wanted in (clean, filled, ragged):
        assert np.array_equal(client.act({"type": "undo"})[1], wanted)
    assert whole[48, 64]
    client.sessions.close()


def test_an_object_is_copied_to_the_next_photograph(client):
    _, mask = client.click(*CLICKS[0])
    header, _ = client.act({"type": "finish", "label": "disk"})
    source = {"photo": client.photographs[0]["id"], "object": header["objects"][0]["id"]}
    _, drawn = client.act({"type": "brush", "radius": 2, "points": [[5, 5]], "positive": True}, 1)
    header, copied = client.act({"type": "copy", **source}, 1)
    assert [one["area"] for one in header["objects"]] == [drawn.sum()], "the open one is finished"
    assert header["current"]["label"] == "disk"
    assert np.array_equal(copied, mask & ~drawn)
    client.click(60, 40, True, 1)
    client.act({"type": "clear"}, 1)
    assert np.array_equal(client.mask(1), copied), "starting over leads back to the copy"
    header, _ = client.act({"type": "finish", "label": "disk"}, 1)
    assert [one["area"] for one in header["objects"]] == [drawn.sum(), copied.sum()]
    for wrong in ({"photo": []}, {"object": 99}):
        client.refused({"type": "copy", **source, **wrong}, 2, 404)
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(client.sessions.folder / "small.png")
    client = again(client)
    assert "photographs of one size" in client.refused({"type": "copy", **source}, 3)
    client.sessions.close()


def test_a_new_object_that_is_cancelled_is_gone_until_undo(client):
    _, drawn = client.click(*CLICKS[0])
    header, mask = client.act({"type": "cancel"})
    assert (header["current"], mask) == (None, None)
    assert "nothing to cancel" in client.refused({"type": "cancel"})
    assert np.array_equal(client.act({"type": "undo"})[1], drawn)


@pytest.mark.parametrize("state", ["done", "accepted", "rejected", "review"])
def test_a_decision_holds_again_once_what_was_opened_is_cancelled(client, state):
    for x in (20.0, 100.0):
        client.act({"type": "brush", "radius": 8, "points": [[x, 48.0]]})
        client.act({"type": "finish", "label": "disk"})
    one, other = (one["id"] for one in client.get(client.path())["objects"])
    now = lambda: client.get(client.path())["state"]  # noqa: E731
    files = lambda: len(list((client.sessions.folder / "masks").glob("*.png")))  # noqa: E731
    stroke = {"type": "brush", "radius": 2, "points": [[5, 5]]}
    label = {"type": "label", "object": other, "label": "ring"}
    for opening in ({"type": "reopen", "object": one}, stroke):
        for meanwhile, expected in (
            ({"type": "label", "label": "x"}, state),
            (label, "review" if state == "review" else "done"),
            ({"type": "state", "state": "returned"}, "returned"),
        ):
            client.act({"type": "state", "state": state})
            before = files()
            client.act(opening)
            assert now() == ("review" if state == "review" else "open")
            client.act(meanwhile)
            client.act({"type": "cancel"})
            assert now() == expected, (opening, meanwhile)
            assert expected != state or files() == before
            client.act({"type": "undo"})
            client.act({"type": "redo"})
            assert now() == expected
            label["label"] += "s"  # so that it is another one each time


DONE = {"type": "state", "state": "done"}
NO_PIXEL = {"type": "brush", "radius": 4, "points": [[8, 8]], "positive": False}


def test_a_photograph_that_is_done_has_no_open_object(client):
    """Whatever comes before: what is drawn is in the files, or the photograph is not done."""
    folder = client.sessions.folder

    def now():
        described = client.get(client.path())
        masks = folder / "masks"
        files = len(list(masks.iterdir())) if masks.is_dir() else 0
        return described["state"], described["current"] is not None, files

    _, drawn = client.click(*CLICKS[0])
    header, _ = client.act({**DONE, "label": "disk"})
    assert (header["state"], header["current"]) == ("done", None)
    assert [(one["label"], one["area"]) for one in header["objects"]] == [("disk", drawn.sum())]
    assert now() == ("done", False, 1)
    number = header["objects"][0]["id"]
    header, _ = client.act({"type": "reopen", "object": number})
    assert header["state"] == "open"
    _, drawn = client.act({"type": "brush", "radius": 4, "points": [[8, 8]], "positive": True})
    header, _ = client.act(DONE)
    assert [(one["label"], one["area"]) for one in header["objects"]] == [("disk", drawn.sum())]
    header, _ = client.act(NO_PIXEL)
    assert header["state"] == "open"
    assert "no pixel" in client.refused(DONE), "these prompts would be lost"
    assert "no pixel" in client.refused({"type": "reopen", "object": number})
    assert now() == ("open", True, 1)
    client.act({"type": "undo"})
    client.act(DONE)
    assert now() == ("done", False, 1)
    client.click(90, 80)
    client.act({"type": "state", "state": "review"})
    assert now() == ("review", True, 1)
    answer = client.http.post("/api/export", json={"format": "coco"}).json()
    assert answer["unfinished"] == ["photo0.png"]


def test_all_prompts_are_in_the_annotations_and_give_the_mask_again(client, tmp_path):
    given = [
        {"type": "box", "box": [30, 20, 100, 80]},
        {"type": "click", "x": 64.2, "y": 48.9, "positive": True},
        {"type": "brush", "radius": 5.0, "points": [[10.0, 10.0], [40.0, 10.0]], "positive": True},
        {"type": "click", "x": 5.5, "y": 5.5, "positive": False},
    ]
    for action in [*given, NO_PIXEL]:
        client.act(action)
    client.act({"type": "undo"})
    client.act({"type": "finish"})
    number = client.get(client.path())["objects"][0]["id"]
    client.act({"type": "reopen", "object": number})
    client.click(*CLICKS[2])  # not finished: the file has the mask of before, and its prompts
    client.sessions.close()
    path = client.sessions.folder / "annotations.json"
    (entry,) = json.loads(path.read_text())["annotations"]
    assert entry["prompts"] == given
    client = begin(draw_photographs(tmp_path / "again"), client.sessions.model_host)
    for step in entry["prompts"]:
        _, mask = client.act(step)
    client.sessions.close()
    assert np.array_equal(coco_mask.decode(entry["segmentation"]), mask)


def test_what_the_command_line_chose_is_kept_for_the_next_start(tmp_path):
    folder = draw_photographs(tmp_path / "photos", 1)
    begin(folder, ModelHost(MODEL), labels=["cat", "dog"]).sessions.close()
    later = ModelHost()
    client = begin(folder, later)
    assert client.get("/api/session")["labels"] == ["cat", "dog"]
    assert later.name == MODEL != ModelHost().name
    client.sessions.close()
    client = begin(folder, later, labels=["cow", "cat"])
    assert client.get("/api/session")["labels"] == ["cow", "cat", "dog"]
    client.click(*CLICKS[0])
    client.act({**DONE, "label": "   "})
    (one,) = client.get(client.path())["objects"]
    assert one["label"] is None, "spaces are no label"
    client.act({"type": "label", "object": one["id"], "label": " hen "})
    client.sessions.close()
    client = begin(folder, later, labels=[" cat", "  "])
    assert client.get("/api/session")["labels"] == ["cat", "cow", "dog", "hen"]
    client.sessions.close()
    with pytest.raises(UsageError, match="--labels"):
        begin(folder, later, labels=["a" * 101])


def test_two_clients_do_not_overwrite_each_other(client):
    revision = client.get(client.path())["revision"]
    client.click(*CLICKS[0])
    body = {"sequence": 1, "revision": revision, "action": {"type": "undo"}}
    answer = client.http.post(f"{client.path()}/actions", json=body)
    assert answer.status_code == 409
    assert "another tab" in answer.json()["error"]
    assert len(client.get(client.path())["current"]["clicks"]) == 1


def test_settings_are_live_and_checked(client):
    client.click(*CLICKS[0])
    client.click(*CLICKS[2])
    answer = client.http.post("/api/settings", json={"zoom": None, "avoid_finished": False})
    assert answer.json()["settings"]["zoom"] is None
    predictor = Predictor.from_pretrained(MODEL, zoom=None)
    predictor.set_image(read_image(client.sessions.photographs[0].path))
    for x, y, positive in (CLICKS[0], CLICKS[2]):
        wanted = predictor.predict([Click(int(x), int(y), positive)]).binary
    assert np.array_equal(client.mask(), wanted)
    for wrong in ({"zoom": "none"}, {"key_iterations": 1.5}, {"colour": 1}, {"avoid_finished": 1}):
        answer = client.http.post("/api/settings", json=wrong)
        assert answer.status_code == 400
        assert next(iter(wrong)) in answer.json()["error"]
    client = again(client)
    assert client.get("/api/session")["settings"]["zoom"] is None, "settings outlive the server"
    assert np.array_equal(client.mask(), wanted)
    client.http.post("/api/settings", json={"zoom": "look"})
    client.sessions.close()


def test_priors_of_iterations_that_are_off_outlive_the_server(tmp_path):
    model = f"{tmp_path / 'model'}/"
    store.save(micro_model("micro_csa"), described("micro_csa"), Path(model))
    client = begin(draw_photographs(tmp_path / "photographs", 1), ModelHost(model))
    for change in ({"key_iterations": 2, "key_prior": 0.25}, {"key_iterations": 0}):
        before = client.http.post("/api/settings", json=change).json()["settings"]
    client.sessions.close()
    client = begin(tmp_path / "photographs", ModelHost(model))
    assert client.get("/api/session")["settings"] == before
    client.sessions.close()


def test_numbers_and_names_that_cannot_be_are_refused(client):
    far = {"type": "click", "x": 10**400, "y": 1, "positive": True}
    revision = client.get(client.path())["revision"]
    for path, body in (
        (f"{client.path()}/actions", {"sequence": 1, "revision": revision, "action": far}),
        ("/api/model", {"name": "/etc/passwd"}),
        ("/api/settings", {"key_prior": 10**400}),
    ):
        answer = client.http.post(path, json=body)
        assert answer.status_code == 400
        assert "must be" in answer.json()["error"]


def test_numbers_of_objects_are_whole_numbers_alone(client):
    client.click(*CLICKS[0])
    header, _ = client.act({"type": "finish", "label": None})
    number = header["objects"][0]["id"]
    assert number == 1
    for wrong in (True, 1.0, "1", [1], None):
        client.refused({"type": "delete", "object": wrong}, status=404)
    for wrong in ("1.0", "-1", "x", 5000 * "9"):
        answer = client.http.get(f"{client.path()}/objects/{wrong}/mask")
        assert (answer.status_code, wrong[:99] in answer.json()["error"]) == (404, True)
    frame = client.http.get(f"{client.path()}/objects/{number}/mask")
    assert unpack(frame.content, client.size())[1].any()


def test_halves_of_characters_are_answered(client):
    """JSON and names of files can have them, UTF-8 cannot."""
    body = {"revision": client.get(client.path())["revision"]}
    text = json.dumps({**body, "action": {"type": "delete", "object": "\ud800"}})
    answer = client.http.post(f"{client.path()}/actions", content=text, headers=_json({}))
    assert (answer.status_code, "\ud800" in answer.json()["error"]) == (404, True)
    action = {"type": "state", "state": "returned", "comment": "half \ud83d"}
    text = json.dumps({**body, "action": action})
    answer = client.http.post(f"{client.path()}/actions", content=text, headers=_json({}))
    assert (answer.status_code, "whole characters" in answer.json()["error"]) == (400, True)
    text = json.dumps({"rename": "\ud800", "to": "x"})
    answer = client.http.post("/api/labels", content=text, headers=_json({}))
    assert (answer.status_code, "`label` must be" in answer.json()["error"]) == (400, True)
    (client.sessions.out / "keys.json").write_text('{"done": "\\ud800"}')
    assert client.get("/api/session")["keys"] == {"done": ["\ud800"]}


def test_the_next_server_writes_the_annotations_that_a_killed_one_did_not(client, monkeypatch):
    path = client.sessions.folder / "annotations.json"
    monkeypatch.setattr(files, "DELAY", 60)
    client.click(*CLICKS[0])
    client.act({"type": "finish", "label": "disk"})
    assert not path.exists()
    monkeypatch.setattr(files, "DELAY", 0.01)
    client = again(client)
    end = time.monotonic() + 30
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert len(json.loads(path.read_text())["annotations"]) == 1
    client.sessions.close()
    path.write_text("looking changes nothing")
    client = again(client)
    time.sleep(0.1)
    client.sessions.files.close()
    assert path.read_text() == "looking changes nothing"
    client.sessions.store.close()


def test_the_answer_to_a_step_that_could_not_be_stored_is_forgotten(client, monkeypatch):
    client.click(*CLICKS[0])
    _, wanted = client.click(*CLICKS[1])
    client.act({"type": "undo"})
    revision = client.get(client.path())["revision"]
    stroke = {"type": "brush", "radius": 5, "points": [[10, 10]], "positive": True}

    def full(name):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(client.sessions.store, "keep_written", full)  # the end of the transaction
        body = {"revision": revision, "action": stroke}
        answer = client.http.post(f"{client.path()}/actions", json=body)
    assert answer.status_code == 507
    header, mask = client.act({"type": "redo"}, revision=revision)
    assert len(header["current"]["clicks"]) == 2
    assert np.array_equal(mask, wanted)


def test_masks_of_photographs_with_similar_names_stay_apart(tmp_path, model_host):
    folder = tmp_path / "set"
    draw_photographs(folder / "images", 1)
    (folder / "images" / "photo0.png").rename(folder / "images" / "cat.png")
    draw_photographs(folder / "images", 1, (40, 60))
    (folder / "images" / "photo0.png").rename(folder / "images" / "cat_1.png")
    (folder / "masks").mkdir()
    labels = np.zeros((40, 60), np.uint8)
    labels[10:20, 10:30] = 255
    Image.fromarray(labels).save(folder / "masks" / "cat_1.png")
    client = begin(folder, model_host)
    assert [row["objects"] for row in client.photographs] == [0, 1]
    _, mask = client.click(*CLICKS[0])
    client.act({"type": "finish", "label": None})
    client.sessions.close()
    samples = ImageMaskFolder(folder)
    assert {sample.name for sample in samples} == {"cat_2", "cat_1"}
    wanted = {"cat_2": mask, "cat_1": labels == 255}
    assert all(np.array_equal(sample.mask == 1, wanted[sample.name]) for sample in samples)


def test_uncertainty_and_suggestion(client):
    client.click(*CLICKS[0])
    frame = client.http.get(f"{client.path()}/uncertainty").content
    header, entropy = unpack(frame, client.size())
    assert entropy.max() > 0
    if header["suggestion"] is not None:
        x, y = int(header["suggestion"]["x"]), int(header["suggestion"]["y"])
        assert entropy[y, x] > 127
        assert header["suggestion"]["positive"] == (not client.mask()[y, x])


def test_a_preview_changes_nothing(client):
    client.http.post("/api/settings", json={"zoom": None})  # a preview has no second look
    client.click(*CLICKS[0])
    before = client.get(client.path())
    body = {"sequence": 3, "x": 5.0, "y": 5.0, "positive": False}
    answer = client.http.post(f"{client.path()}/preview", json=body)
    header, preview = unpack(answer.content, client.size())
    assert header["sequence"] == 3
    assert client.get(client.path()) == before
    assert np.array_equal(client.click(5.0, 5.0, False)[1], preview)
    client.http.post("/api/settings", json={"zoom": "look"})


def test_photographs_of_all_kinds_map_pixel_by_pixel(tmp_path, model_host):
    outside = tmp_path / "outside.png"
    Image.fromarray(np.zeros((40, 60), np.uint8)).save(outside)
    tmp_path = tmp_path / "photographs"
    tmp_path.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(tmp_path / "deep.png")
    Image.fromarray(np.dstack([pixels, pixels[..., 0]])).save(tmp_path / "glass.png")
    Image.fromarray(pixels[..., 0]).save(tmp_path / "grey.png")
    Image.fromarray(pixels).save(tmp_path / "key.png", transparency=tuple(map(int, pixels[0, 0])))
    Image.fromarray(pixels).save(os.fsencode(tmp_path) + b"/caf\xe9.png")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    (tmp_path / "phone.jxl").write_bytes(b"no picture")
    (tmp_path / "outside.png").symlink_to(outside)
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    client = begin(tmp_path, model_host)
    errors = {row["name"]: row["error"] for row in client.photographs if row["error"]}
    assert set(errors) == {"broken.jpg", "phone.jxl", "outside.png", "caf?.png", "loop.png"}
    assert errors["phone.jxl"] == "JXL is not supported; convert it to JPEG or PNG"
    assert "outside" in errors["outside.png"]
    for n, row in enumerate(client.photographs):
        answer = client.http.get(f"{client.path(n)}/image")
        if row["error"]:
            assert client.http.post(f"{client.path(n)}/open", json={}).status_code == 200
            for path in ("image", "thumbnail"):
                answer = client.http.get(f"{client.path(n)}/{path}")
                assert answer.status_code == 422
                assert answer.json()["error"] == row["error"]
            client.act({"type": "state", "state": "done"}, n)
            continue
        (tmp_path / ".shown").write_bytes(answer.content)
        picture = Image.open(tmp_path / ".shown")
        assert picture.getexif().get(0x0112, 1) == 1
        shown = np.asarray(picture.convert("RGB"))
        assert np.array_equal(shown, read_image(tmp_path / row["name"])), row["name"]
        assert shown.shape[:2] == (row["height"], row["width"])
        small = client.http.get(f"{client.path(n)}/thumbnail")
        assert small.headers["content-type"] == "image/jpeg"
    client.sessions.close()


def test_nothing_is_written_through_links(tmp_path, model_host):
    folder = draw_photographs(tmp_path / "photos", 1)
    other = tmp_path / "other"
    other.mkdir()
    for place in (".probseg", "masks", ".probseg/masks", ".probseg/annotations.sqlite"):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).symlink_to(other)
        with pytest.raises(ValueError, match="link"):
            begin(folder, model_host)
        (folder / place).unlink()
    (folder / "masks").mkdir()
    (other / "secret.png").write_bytes(b"secret")
    for name in ("photo0_1.png", ".photo0_1.png.part"):  # as an archive may bring them
        (folder / "masks" / name).symlink_to(other / "secret.png")
    client = begin(folder, model_host)
    client.click(*CLICKS[0])
    client.act({"type": "finish", "label": None})
    client.sessions.close()
    assert (other / "secret.png").read_bytes() == b"secret"
    assert not (folder / "masks" / "photo0_1.png").is_symlink()


@pytest.mark.slow
def test_memory_is_bounded_for_a_thousand_photographs(tmp_path, model_host, monkeypatch):
    from probseg.annotate import answers

    client = begin(draw_photographs(tmp_path, 1000, (48, 64)), model_host)
    monkeypatch.setattr(answers, "MEMORY", 16 << 20)
    for n in range(1000):
        client.http.post(f"{client.path(n)}/open", json={})
        client.click(32, 24, True, n)
        if n == 100:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert client.sessions.answers.nbytes <= answers.MEMORY
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50_000, "kilobytes"
    client.sessions.close()


def test_an_encoding_counts_once_in_memory(tmp_path, model_host):
    client = begin(draw_photographs(tmp_path, 1), model_host)
    client.http.post("/api/settings", json={"zoom": None})
    client.click(64, 48)
    before = client.sessions.answers.nbytes
    client.click(70, 40)
    photograph = client.sessions.photographs[0]
    session = client.sessions.answers.session(
        photograph, client.sessions.store.open_object(photograph.name)
    )
    assert client.sessions.answers.nbytes - before == session.answer.own_nbytes
    held = session.photograph.nbytes + sum(session.answer.encoded.values())
    assert client.sessions.answers.nbytes < 1.5 * held
    client.sessions.close()


def test_memory_is_bounded(tmp_path, model_host, monkeypatch):
    from probseg.annotate import answers

    client = begin(draw_photographs(tmp_path, 3), model_host)
    monkeypatch.setattr(answers, "MEMORY", 6 << 20)  # one photograph with zoomed answers is 5 MB
    masks = [client.click(64, 48, True, n)[1] for n in range(3)]
    assert client.sessions.answers.nbytes <= answers.MEMORY
    for _ in range(6):
        client.click(70, 40, True, 2)
    assert client.sessions.answers.nbytes <= answers.MEMORY
    for _ in range(6):
        _, mask = client.act({"type": "undo"}, 2)
    assert np.array_equal(mask, masks[-1]), "answers that were forgotten are computed again"
    client.sessions.close()


REFUSED = [
    ({"host": "evil.example"}, 403),
    ({"host": "evil.example:8808"}, 403),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": f"http://{HOST}.evil.example"}, 403),
    ({"origin": f"http://evil.example/{HOST}"}, 403),
    ({"origin": "null"}, 403),
    ({"x-probseg-token": "wrong"}, 401),
    ({"x-probseg-token": ""}, 401),
    ({"content-type": "text/plain"}, 415),
    ({"content-type": "application/x-www-form-urlencoded"}, 415),
]


@each(("headers", "status"), REFUSED)
def test_requests_of_other_sites_are_refused(client, headers, status):
    answer = client.http.post(f"{client.path()}/open", content=b"{}", headers=_json(headers))
    assert answer.status_code == status
    assert "error" in answer.json()


def _json(headers):
    return {"content-type": "application/json", **headers}


def test_everything_but_the_page_needs_the_token(client):
    headers = _json({"x-probseg-token": "wrong"})
    for route in client.http.app.app.routes:
        path = route.path.replace("{name}", "x").replace("{number}", "1")
        for method in route.methods - {"HEAD"}:
            answer = client.http.request(method, path, headers=headers, content=b"{}")
            assert answer.status_code == (401 if path.startswith("/api/") else 200), path


def test_the_page_may_not_load_from_elsewhere(client):
    answer = client.http.get("/", headers={"x-probseg-token": ""})
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers
    ours = client.http.post(f"{client.path()}/open", json={}, headers={"origin": f"http://{HOST}"})
    assert ours.status_code == 200
    for path in ("/static/../app.py", "/static/app.py", "/static/%2e%2e/app.py", "/etc/passwd"):
        assert client.http.get(path).status_code == 404
    big = client.http.post("/api/labels", json={"labels": ["x" * (1 << 20)]})
    assert big.status_code == 413


@pytest.mark.usefixtures("undrawn")
def test_the_folder_is_clean_and_its_training_answers(client, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for n in range(5):
        client.click(*CLICKS[0], n=n % 3)
        client.act({"type": "brush", "radius": 3 + n, "points": [[20 * n, 5]]}, n % 3)
        client.act({"type": "finish", "label": "disk"}, n % 3)
    folder = client.sessions.folder
    assert main(["data", "check", str(folder)]) == 0, capsys.readouterr()
    command = shlex.split(client.get("/api/session")["train_command"])
    quick = ["--trainer.max_epochs", "1", "--data.val_objects", "1", "--data.batch_size", "2"]
    smaller = ["--data.crop_size", "64", "--data.num_workers", "0"]
    quiet = ["--trainer.enable_progress_bar", "false"]
    assert main([*command[1:], *quick, *smaller, *quiet]) == 0, capsys.readouterr()
    client.sessions.model_host = ModelHost(runs=tmp_path / "runs")
    (run,) = [name for name in client.get("/api/session")["models"] if "version_0" in name]
    answer = client.http.post("/api/model", json={"name": run})
    assert answer.json()["model"]["name"] == run
    client.click(*CLICKS[0])
    client.sessions.close()
    later = ModelHost(runs=tmp_path / "runs")
    begin(folder, later).sessions.close()
    assert later.name == run, "the next server goes on with it"


def test_photographs_that_cannot_be_annotated_are_printed_with_the_reason(tmp_path):
    originals = draw_photographs(tmp_path / "originals", 4)
    folder = tmp_path / "links"
    folder.mkdir()
    for original in originals.iterdir():
        (folder / original.name).symlink_to(original)
    (folder / "mine.gif").write_bytes(b"no picture")
    long = "\N{CAT FACE}" * 58 + "1.png"
    (folder / long).write_bytes(next(originals.iterdir()).read_bytes())
    (folder / "mine.png").write_bytes(next(originals.iterdir()).read_bytes())
    listed = list_photographs(folder)
    first, *others = refusals((photo.name, photo.error) for photo in listed)
    names = ", ".join(sorted(path.name for path in originals.iterdir())[:3])
    assert first == (
        f"refused: {names} ... (4): links to a file outside of the folder; copy the file into it"
        ", or set PROBSEG_FOLLOW_LINKS=1 if you made the link"
    )
    assert [line.split(" (1): ")[0] for line in others] == [
        "refused: mine.gif",
        "refused: mine.png",
        f"refused: {long}",
    ]
    assert "the name has 237 bytes" in others[2]
    assert others[1].endswith("has the same stem as mine.gif; rename one of them")
    several = [(f"{n}.png", f"{n}") for n in range(7)]
    assert refusals(several)[4:] == ["refused: 4.png (1): 4", "refused: 2 more"]
    assert refusals([]) == []
