"""The annotation server for reviewers: states, objects split and merged, exports, readers, keys."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from probseg.annotate import sessions
from probseg.annotate.answers import ModelHost
from probseg.annotate.app import create_app
from probseg.annotate.frames import unpack
from probseg.annotate.sessions import Sessions
from probseg.data import ImageMaskFolder
from probseg.errors import UsageError
from probseg.formats import png
from probseg.interact.steps import fill_holes
from support.annotate_client import HOST, MODEL, TOKEN, begin, draw_photographs


@pytest.fixture(scope="module")
def model_host():
    model_host = ModelHost(MODEL)
    model_host.zoom = None
    return model_host


@pytest.fixture
def client(tmp_path, model_host):
    client = begin(draw_photographs(tmp_path / "photos"), model_host)
    yield client
    client.sessions.close()


def stroke(x0, x1, y=48, positive=True):
    points = [[x0, y], [x1, y]]
    return {"type": "brush", "radius": 4.0, "points": points, "positive": positive}


def finish(client, *strokes, label=None, n=0):
    """Finish an object of strokes; returns its number and mask."""
    for one in strokes:
        _, mask = client.act(one, n)
    header, _ = client.act({"type": "finish", "label": label}, n)
    return max(one["id"] for one in header["objects"]), mask


def finished(client, n=0):
    """Return label and mask of each finished object."""
    objects = client.get(client.path(n))["objects"]
    frames = [client.http.get(f"{client.path(n)}/objects/{one['id']}/mask") for one in objects]
    masks = [unpack(frame.content, client.size(n))[1] for frame in frames]
    return [(one["label"], mask) for one, mask in zip(objects, masks, strict=True)]


def written(client, name="photo0"):
    folder = client.sessions.out / "masks"
    return [png.decode(path.read_bytes()) for path in sorted(folder.glob(f"{name}_*.png"))]


def undone_and_redone(client):
    """Undo the last change and redo it; returns the finished objects after each."""
    client.act({"type": "undo"})
    before = finished(client)
    client.act({"type": "redo"})
    return before, finished(client)


def assert_same(objects, others):
    assert [label for label, _ in objects] == [label for label, _ in others]
    for (_, mask), (_, other) in zip(objects, others, strict=True):
        np.testing.assert_array_equal(mask, other)


def test_the_parts_of_an_object_become_objects(client):
    number, whole = finish(client, stroke(20, 25), stroke(60, 90), label="bolt")
    header, _ = client.act({"type": "split", "object": number})
    (label, large), (other, small) = finished(client)
    assert (label, other) == ("bolt", "bolt")
    assert header["objects"][0]["id"] == number
    assert header["objects"][0]["clicks"] == header["objects"][1]["clicks"] == 0
    np.testing.assert_array_equal(large, whole & (np.arange(128) > 40))
    np.testing.assert_array_equal(small, whole & (np.arange(128) < 40))
    assert [int((mask == 1).sum()) for mask in written(client)] == [large.sum(), small.sum()]
    before, after = undone_and_redone(client)
    assert_same(before, [("bolt", whole)])
    assert_same(after, [("bolt", large), ("bolt", small)])
    assert "one part" in client.refused({"type": "split", "object": number})
    client.act({"type": "reopen", "object": number})
    _, mask = client.act(stroke(100, 110))
    assert mask[48, 105]
    assert not mask[48, 22]


def test_two_objects_become_one(client):
    first, left = finish(client, stroke(20, 25), label="bolt")
    second, right = finish(client, stroke(60, 90), label="nut")
    client.act(stroke(100, 110))  # the open one is finished
    header, _ = client.act({"type": "merge", "object": first, "other": second})
    assert header["current"] is None
    (label, merged), (_, third) = finished(client)
    assert label == "bolt"
    np.testing.assert_array_equal(merged, left | right)
    assert third[48, 105]
    before, after = undone_and_redone(client)
    assert [label for label, _ in before] == ["bolt", "nut"]
    np.testing.assert_array_equal(after[0][1], merged)
    assert len(written(client)) == 2
    for wrong, status in (({"other": first}, 400), ({"other": 99}, 404), ({"object": []}, 404)):
        client.refused({"type": "merge", "object": first, "other": 1, **wrong}, status=status)


@pytest.mark.parametrize("kept", [True, False], ids=["in memory", "dropped"])
def test_the_open_object_leaves_merged_objects_their_pixels(client, kept):
    """Also where the server has dropped the finished objects from its memory."""
    first, left = finish(client, stroke(20, 25))
    second, right = finish(client, stroke(60, 90))
    _, drawn = client.act(stroke(80, 110))
    assert not (drawn & right).any()
    if not kept:
        client.sessions.answers.clear()
    client.act({"type": "merge", "object": first, "other": second})
    (_, merged), (_, third) = finished(client)
    np.testing.assert_array_equal(merged, left | right)
    np.testing.assert_array_equal(third, drawn)


def test_an_outline_changes_the_mask_only_where_it_was_moved(client):
    client.act(stroke(30, 60, 30))
    _, mask = client.act(stroke(30, 60, 37))
    before = client.get(f"{client.path()}/outline/2.0")["polygons"]
    exact = client.get(f"{client.path()}/outline/0.0")["polygons"]
    assert 4 <= len(before[0][0]) < len(exact[0][0]) / 3
    after = json.loads(json.dumps(before))
    corner = max(range(len(before[0][0])), key=lambda k: before[0][0][k][0])
    after[0][0][corner] = [100.0, before[0][0][corner][1]]
    _, moved = client.act({"type": "reshape", "before": before, "after": after})
    assert moved[:, 70:].any()
    assert not fill_holes(moved).pixels.any(), "up to the line"
    np.testing.assert_array_equal(moved[:, :40], mask[:, :40])
    _, back = client.act({"type": "undo"})
    np.testing.assert_array_equal(back, mask)
    _, empty = client.act({"type": "reshape", "before": exact, "after": []})
    assert not empty.any()
    client.act({"type": "undo"})
    for wrong in ({"after": 3}, {"after": [3]}, {"after": [[[["x", 1]]]]}, {"before": [[[]]]}):
        request = {"type": "reshape", "before": before, "after": after, **wrong}
        client.refused(request)
    client.refused({"type": "reshape", "before": before, "after": [[[[0, 1]] * 10001]]})


def test_rejected_photographs_are_in_no_file(client):
    _, mask = finish(client, stroke(20, 25), label="bolt")
    finish(client, stroke(30, 35), n=1)
    client.act({"type": "state", "state": "rejected"})
    assert written(client) == []
    assert len(finished(client)) == 1
    lost = client.sessions.export("coco")["lost"]
    assert lost == [
        "rejected photographs: 1",
        "labels of objects, which are written as `object`: 1",
    ]
    names = [
        one["file_name"]
        for one in json.loads((client.sessions.out / "annotations.json").read_text())["images"]
    ]
    assert names == ["photo1.png", "photo2.png"]
    client.act({"type": "undo"})
    assert [int((one == 1).sum()) for one in written(client)] == [mask.sum()]
    client.act({"type": "redo"})
    client.act({"type": "state", "state": "returned"})
    assert len(written(client)) == 1
    assert len(ImageMaskFolder(client.sessions.folder)) == 2


def test_accepted_photographs_that_change_are_to_be_accepted_again(client):
    number, _ = finish(client, stroke(20, 25), label="bolt")
    header, _ = client.act({"type": "state", "state": "accepted"})
    assert header["state"] == "accepted"
    header, _ = client.act({"type": "label", "object": number, "label": "nut"})
    assert header["state"] == "done"
    client.act({"type": "state", "state": "accepted"})
    header, _ = client.act(stroke(60, 70))
    assert header["state"] == "open"
    header, _ = client.act({"type": "state", "state": "accepted"})  # finishes the open one
    assert [len(header["objects"]), header["current"]] == [2, None]


def test_the_overview_has_small_masks_and_the_lowest_quality(client):
    client.click(64, 48)
    client.act({"type": "finish"})
    finish(client, stroke(20, 25, 10))
    (first, _), (_, second) = finished(client)[0], finished(client)[1]
    header, small = unpack(client.http.get(f"{client.path()}/masks").content, (96, 128))
    assert small.shape == (96, 128), "no larger than the photograph"
    assert [one["label"] for one in header["objects"]] == [None, None]
    np.testing.assert_array_equal(small == 2, second)
    rows = client.get("/api/session")["photographs"]
    qualities = [one["quality"] for one in client.get(client.path())["objects"]]
    assert rows[0]["quality"] == min(qualities)
    assert rows[1]["quality"] is None
    assert first is None


def test_the_report_counts_work_by_label(client):
    client.click(64, 48)
    client.click(64, 40)
    client.act({"type": "finish", "label": "bolt"})
    finish(client, stroke(20, 25, 10), label="bolt")
    finish(client, stroke(20, 25, 10), label="été, nut", n=1)
    bolt, nut = client.get("/api/report")["labels"]
    assert [bolt["label"], bolt["objects"], bolt["clicks"]] == ["bolt", 2, 2]
    assert [nut["label"], nut["objects"], nut["clicks"]] == ["été, nut", 1, 0]
    path = Path(client.sessions.export("report")["path"])
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], row["objects"], row["clicks_per_object"]) for row in rows] == [
        ("bolt", "2", "1.0"),
        ("été, nut", "1", "0.0"),
    ]


def test_every_format_is_exported_as_often_as_asked(client):
    finish(client, stroke(20, 25), label="bolt")
    formats = client.get("/api/session")["formats"]
    assert {"coco", "png", "index", "yolo", "labelme", "label-studio", "report"} <= set(formats)
    for _ in range(2):
        for name in formats:
            answer = client.http.post("/api/export", json={"format": name})
            assert answer.status_code == 200, answer.text
            assert answer.json()["path"].startswith(str(client.sessions.out))
    theirs = client.sessions.out / "annotations-yolo"
    client.sessions.store.set_setting("exports", [])
    answer = client.http.post("/api/export", json={"format": "yolo"})
    assert answer.status_code == 422
    assert "not an export of this page" in answer.text
    assert any(theirs.iterdir())
    for wrong in ("tiff", None, ["coco"]):
        assert client.http.post("/api/export", json={"format": wrong}).status_code == 400


def test_an_export_says_how_far_it_is_and_can_be_stopped(client, monkeypatch):
    finish(client, stroke(20, 25), label="bolt")
    monkeypatch.setattr(sessions, "TELLING", 0)
    news = []
    monkeypatch.setattr(client.sessions.windows, "tell", news.append)
    request = {"format": "yolo", "window": "mine"}
    assert client.http.post("/api/export", json=request).status_code == 200
    of = len(client.sessions.photographs)
    assert news == [{"export": n, "of": of, "by": "mine"} for n in range(1, of + 1)]
    for window, status in (("other", 200), ("mine", 422)):

        def stop(_, window=window):
            client.http.post("/api/export/stop", json={"window": window})

        monkeypatch.setattr(client.sessions.windows, "tell", stop)
        answer = client.http.post("/api/export", json=request)
        assert answer.status_code == status
        assert (client.sessions.out / "annotations-yolo").exists() == (status == 200)
    assert "stopped" in answer.text
    monkeypatch.setattr(client.sessions.windows, "tell", news.append)
    assert client.http.post("/api/export", json=request).status_code == 200


def test_a_reader_sees_all_and_changes_nothing(client):
    finish(client, stroke(20, 25), label="bolt")
    app = create_app(client.sessions, frozenset({HOST}), TOKEN, "looks")
    headers = {"X-Probseg-Token": "looks"}
    reader = TestClient(app, base_url=f"http://{HOST}", headers=headers)
    assert reader.get("/api/session").json()["reader"] is True
    assert client.get("/api/session")["reader"] is False
    for path in ("", "/image", "/thumbnail", "/masks", "/mask"):
        assert reader.get(client.path() + path).status_code == 200
    described = client.get(client.path())
    action = {"sequence": 1, "revision": described["revision"], "action": stroke(60, 70)}
    posts = [
        (f"{client.path()}/actions", action),
        (f"{client.path()}/open", {}),
        ("/api/labels", {"labels": []}),
        ("/api/settings", {"value_iterations": 0}),
        ("/api/export", {"format": "coco"}),
    ]
    for path, body in posts:
        answer = reader.post(path, json=body)
        assert (answer.status_code, "only shows" in answer.text) == (403, True)
    assert client.get(client.path()) == described
    headers = {"X-Probseg-Token": "other"}
    assert reader.get("/api/session", headers=headers).status_code == 401


def test_keys_are_read_from_a_file(client, tmp_path, model_host):
    path = client.sessions.out / "keys.json"
    assert client.get("/api/session")["keys"] == {}
    path.write_text('{"done": "w", "next": ["n", "PageDown"]}')
    assert client.get("/api/session")["keys"] == {"done": ["w"], "next": ["n", "PageDown"]}

    for wrong in ("{", "[]", '{"done": 3}', '{"done": ["w", 3]}', 100_000 * "["):
        path.write_text(wrong)
        answer = client.http.get("/api/session")
        assert (answer.status_code, "keys.json" in answer.text) == (400, True)
    folder = draw_photographs(tmp_path / "other", 1)
    (folder / "keys.json").write_text("{")
    with pytest.raises(UsageError, match=r"keys\.json"):
        Sessions(folder, None, model_host)
