"""No object is lost, and none is in a file as another, whatever happens to a folder."""

import base64
import io
import json
import os
import shutil
import sqlite3
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from probseg.annotate import files
from probseg.annotate.answers import ModelHost
from probseg.annotate.frames import unpack
from probseg.annotate.imports import Upload, finder
from probseg.annotate.photographs import refusals
from probseg.annotate.verbs import lasting_token
from probseg.convert import EXPORTS
from probseg.data.checks import check_folder
from probseg.errors import DataError, UsageError
from probseg.formats import coco
from support.annotate_client import MODEL, again, begin, draw_photographs
from support.pages import Disks


@pytest.fixture(scope="module")
def model_host():
    model_host = ModelHost(MODEL)
    model_host.model, model_host.zoom = Disks(), None
    return model_host


@pytest.fixture
def folder(tmp_path):
    return draw_photographs(tmp_path / "photos", 4)


def bring_masks(folder, size=(96, 128)):
    """Give each photograph a mask file of two objects."""
    (folder / "masks").mkdir(exist_ok=True)
    for n, photo in enumerate(sorted(folder.glob("*.png"))):
        labels = np.zeros(size, np.uint8)
        labels[5:15, 5 : 15 + n], labels[30:40, 30:40] = 1, 2
        Image.fromarray(labels).save(folder / "masks" / f"{photo.stem}.png")


def annotate(folder, model_host, photographs=2):
    """Finish two objects of different classes on some photographs."""
    client = begin(folder, model_host)
    for n in range(photographs):
        for x, label in ((30, "cat"), (100, None)):
            client.click(x, 40 + n, n=n)
            client.act({"type": "finish", "label": label}, n)
    client.sessions.close()


def written(folder):
    """Name, class and pixels of each object of `annotations.json`."""
    content = json.loads((folder / "annotations.json").read_text())
    names = {one["id"]: one["file_name"] for one in content["images"]}
    kinds = {one["id"]: one["name"] for one in content["categories"]}
    return sorted(
        (
            names[one["image_id"]],
            kinds[one["category_id"]],
            one["segmentation"]["counts"],
            len(one["prompts"]),
            one["seconds"],
            one.get("score"),
        )
        for one in content["annotations"]
    )


def exported(client):
    """All exports as bytes by name, and what is said of each."""
    contents = {}
    for kind in client.get("/api/session")["formats"]:
        answer = client.http.post("/api/export", json={"format": kind})
        assert answer.status_code == 200, (kind, answer.text)
        path = Path(answer.json()["path"])
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            contents[kind, file.name] = file.read_bytes() if file.is_file() else b""
        contents[kind, "lost"] = answer.json()["lost"]
    return contents


def test_exports_have_all_masks_whether_photographs_were_opened_or_not(folder, model_host):
    bring_masks(folder)
    client = begin(folder, model_host)
    rows = client.get("/api/session")["photographs"]
    assert [(row["objects"], row["labels"]) for row in rows] == [(2, {"": 2})] * 4
    before = exported(client)
    assert len(written(folder)) == 8
    assert all(b"\n" in before["yolo", f"photo{n}.txt"].strip() for n in range(4))
    for n in range(4):
        client.get(client.path(n))
        client.http.get(f"{client.path(n)}/masks")
    assert exported(client) == before
    assert client.get("/api/report")["labels"] == []
    client.sessions.close()
    problems = [problem.text for problem in check_folder(folder).problems]
    assert not any("one folder up" in text for text in problems), "exports are where they belong"


def test_masks_that_cannot_be_read_are_named_and_the_others_exported(folder, model_host):
    bring_masks(folder)
    Image.fromarray(np.zeros((10, 10), np.uint8)).save(folder / "masks" / "photo2.png")
    client = begin(folder, model_host)
    answer = client.http.post("/api/export", json={"format": "coco"}).json()
    assert any("photo2.png" in line for line in answer["lost"])
    assert len(written(folder)) == 6
    client.sessions.close()


def test_black_masks_keep_nothing_from_being_written(folder, model_host):
    bring_masks(folder)
    Image.fromarray(np.zeros((96, 128), np.uint8)).save(folder / "masks" / "photo2.png")
    client = begin(folder, model_host)
    assert client.get("/api/session")["unread"] == 0
    client.http.post("/api/export", json={"format": "coco"})
    assert len(written(folder)) == 6
    client.sessions.close()


@pytest.mark.parametrize("masks", [True, False])
def test_a_copy_without_the_hidden_folder_has_all_objects(folder, model_host, masks):
    annotate(folder, model_host)
    before = written(folder)
    shutil.rmtree(folder / ".probseg")
    if not masks:
        shutil.rmtree(folder / "masks")
    client = begin(folder, model_host)
    assert client.get("/api/session")["labels"] == ["cat"]
    client.click(64, 80, n=2)
    client.act({"type": "finish", "label": None}, 2)
    number = client.get(client.path())["objects"][0]["id"]
    assert len(client.act({"type": "reopen", "object": number})[0]["current"]["clicks"]) == 1
    client.act({"type": "cancel"})
    client.sessions.close()
    assert [one for one in written(folder) if one[0] != "photo2.png"] == before
    assert len(list((folder / "masks").iterdir())) == 1 + 4 * masks or not masks


def test_annotations_of_other_programs_are_imported_or_refused_but_not_replaced(folder, model_host):
    path = folder / "annotations.json"
    for other in ("of another program", '{"images": [{"id": 1, "file_name": "x.png"}]}'):
        path.write_text(other)
        with pytest.raises(UsageError, match="rename it"):
            begin(folder, model_host)
        assert path.read_text() == other
    square = {"id": 1, "image_id": 7, "category_id": 3, "iscrowd": 0, "area": 100}
    image = {"id": 7, "file_name": "images\\photo1.png", "height": 96, "width": 128}
    content = {
        "images": [image, {**image, "id": 8, "file_name": "elsewhere.png"}],
        "categories": [{"id": 3, "name": "horse"}],
        "annotations": [
            {**square, "segmentation": [[10, 10, 20, 10, 20, 20, 10, 20]]},
            {**square, "id": 2, "image_id": 8, "segmentation": [[1, 1, 9, 1, 9, 9]]},
        ],
    }
    path.write_text(json.dumps(content))
    client = begin(folder, model_host)
    lost = client.http.post("/api/export", json={"format": "coco"}).json()["lost"]
    assert [one[:2] for one in written(folder)] == [("photo1.png", "horse")]
    assert any("elsewhere.png" in line for line in lost)
    assert json.loads((folder / ".probseg" / "masks" / "annotations.json").read_text()) == content
    client.sessions.close()


def drawn(place):
    """Draw a mask of 100 pixels to a file, and return its bytes and run lengths."""
    place.parent.mkdir(exist_ok=True)
    mask = np.zeros((96, 128), np.uint8)
    mask[70:80, 70:80] = 255
    Image.fromarray(mask).save(place)
    counts = coco_mask.encode(np.asfortranarray(mask // 255))["counts"].decode()
    return place.read_bytes(), counts


@pytest.mark.parametrize("state", ["open", "rejected"])
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(
    ("name", "objects"),
    [("photo0_3.png", 3), ("photo0_1.png", 2), ("photo0.png", 3), ("photo1_1.png", 1)],
)
def test_masks_that_others_add_or_change_later_are_objects(
    folder, model_host, name, objects, running, state
):
    annotate(folder, model_host, 1)
    client = begin(folder, model_host)
    client.click(20, 20, n=1)  # known, without an object
    client.act({"type": "undo"}, 1)
    for n in range(2):
        client.act({"type": "state", "state": state}, n)

    def shown():
        keys = ("id", "label", "area", "clicks")
        return [[one[key] for key in keys] for one in client.get(client.path())["objects"]]

    before = shown()
    if not running:
        client.sessions.close()
    content, counts = drawn(folder / "masks" / name)
    client = client if running else begin(folder, model_host)
    n = int(name[5])
    row = client.get("/api/session")["photographs"][n]
    assert (row["objects"], row["state"]) == (objects, {"rejected": "done"}.get(state, state))
    if name == "photo0_1.png":
        assert [one[1:3] for one in shown()] == [["cat", 100], [None, before[1][2]]]
        client.act({"type": "undo"})
        assert shown() == before
        client.act({"type": "redo"})
    client.act({"type": "state", "state": "done"}, n)
    client.sessions.close()
    assert counts in [one[2] for one in written(folder)]
    assert (folder / ".probseg" / "masks" / name).read_bytes() == content
    assert begin(folder, model_host).get("/api/session")["photographs"][n]["objects"] == objects


def test_masks_that_others_change_while_somebody_clicks_are_copied(folder, model_host):
    annotate(folder, model_host, 1)
    client = begin(folder, model_host)
    client.click(64, 80)
    content, _ = drawn(folder / "masks" / "photo0_2.png")
    client.act({"type": "finish"})
    assert (folder / ".probseg" / "masks" / "photo0_2.png").read_bytes() == content
    assert "photo0_2.png" in "".join(client.get("/api/session")["left_out"])
    client.sessions.close()
    assert len(written(folder)) == 3


def test_what_somebody_changed_in_an_export_is_kept(folder, model_host):
    annotate(folder, model_host, 1)
    client = begin(folder, model_host)
    place = folder / "annotations-labelme"

    def ask():
        return client.http.post("/api/export", json={"format": "labelme"}).json()["lost"]

    ask()
    (place / "labels.cache").write_text("of a training")
    assert "is kept" not in "".join(ask())
    (place / "photo0.json").write_text("corrected")
    assert "is kept as annotations-labelme " in "".join(ask())
    (kept,) = folder.glob("annotations-labelme ?*")
    assert (kept / "photo0.json").read_text() == "corrected"
    assert json.loads((place / "photo0.json").read_text())["shapes"]
    client.sessions.close()


def test_a_series_that_is_numbered_anew_keeps_its_objects(tmp_path, model_host):
    folder = draw_photographs(tmp_path / "photos", 4)
    for path in [*folder.iterdir()]:  # files of one size and one time, as an archive gives them
        Image.open(path).save(path.with_suffix(".tif"))
        os.utime(path.with_suffix(".tif"), (10**9, 10**9))
        path.unlink()
    annotate(folder, model_host)
    before = written(folder)
    (folder / "photo0.tif").unlink()
    for n in range(1, 4):
        (folder / f"photo{n}.tif").rename(folder / f"photo{n - 1}.tif")
    client = begin(folder, model_host)
    assert [row["objects"] for row in client.get("/api/session")["photographs"]] == [2, 0, 0]
    assert any("are gone" in line for line in client.get("/api/session")["left_out"])
    client.sessions.close()
    assert written(folder) == [("photo0.tif", *one[1:]) for one in before if one[0] == "photo1.tif"]


def test_classes_and_photographs_have_the_same_numbers_in_every_export(folder, model_host):
    client = begin(folder, model_host)

    def finish(n, label):
        client.click(60, 40, n=n)
        client.act({"type": "finish", "label": label}, n)

    def numbers():
        files = exported(client)
        content = json.loads((folder / "annotations.json").read_text())
        polygons = json.loads(files["coco-polygons", "annotations-coco-polygons.json"])
        for key in ("images", "categories"):
            assert polygons[key] == content[key]
        yolo = {n: files["yolo", f"photo{n}.txt"][:1].decode() for n in range(4)}
        return {one["name"]: one["id"] for one in content["categories"]}, yolo

    finish(2, "dog")
    finish(3, None)
    ids, yolo = numbers()
    assert (ids["dog"], yolo[2]) == (1, "0")
    finish(1, "cat")
    finish(0, "bat")
    assert numbers()[1] == {0: "2", 1: "1", 2: "0", 3: "3"}
    assert {name: numbers()[0][name] for name in ids} == ids
    client.act({"type": "delete", "object": client.get(client.path(2))["objects"][0]["id"]}, 2)
    assert numbers()[1][1] == "1", "though there is no dog"
    client.http.post("/api/labels", json={"rename": "cat", "to": "tiger"})
    before = numbers()
    assert before[0]["tiger"] == 3
    client.sessions.close()
    shutil.rmtree(folder / ".probseg")
    for path in folder.glob("annotations-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / "report.csv").unlink()
    client = begin(folder, model_host)
    assert numbers() == before
    client.sessions.close()


def turned(path):
    Image.open(path).transpose(Image.Transpose.ROTATE_180).save(path)


def smaller(path):
    Image.open(path).resize((64, 48)).save(path)


@pytest.mark.parametrize("change", [turned, smaller, os.unlink])
@pytest.mark.parametrize("running", [False, True])
def test_photographs_that_changed_are_set_aside_and_come_back(folder, model_host, change, running):
    annotate(folder, model_host)
    before, path = written(folder), folder / "photo0.png"
    content = path.read_bytes()
    client = begin(folder, model_host) if running else None
    change(path)
    client = client or begin(folder, model_host)
    client.photographs = client.get("/api/session")["photographs"]
    said = "\n".join(refusals(client.sessions.files.refused()))
    assert "photo0.png (1)" in said
    if path.exists():
        assert "changed" in client.get(client.path())["error"]
        client.refused({"type": "click", "x": 5, "y": 5, "positive": True}, 0, 422)
    for name, lost in exported(client).items():
        if name[1] == "lost" and name[0] != "report":
            assert any("photo0.png" in line for line in lost), name
    assert written(folder) == [one for one in before if one[0] != "photo0.png"]
    path.write_bytes(content)
    client.get("/api/session")
    client.http.post("/api/export", json={"format": "coco"})
    assert written(folder) == before
    client.sessions.close()


def test_renamed_and_new_photographs_are_recognised_by_their_content(folder, model_host):
    annotate(folder, model_host)
    client = begin(folder, model_host)
    client.act({"type": "delete", "object": client.get(client.path())["objects"][1]["id"]})
    client.sessions.close()
    before = written(folder)
    names = {"photo0.png": "photo1.png", "photo1.png": "zebra.png", "photo3.png": "photo0.png"}
    for name in names:
        (folder / name).rename(folder / f"{name}.old")
    for name, new in names.items():
        (folder / f"{name}.old").rename(folder / new)
    os.utime(folder / "zebra.png")
    client = begin(folder, model_host)
    assert client.get("/api/session")["left_out"] == []
    rows = {row["name"]: n for n, row in enumerate(client.photographs)}
    header, _ = client.act({"type": "undo"}, rows["photo1.png"])
    assert len(header["objects"]) == 2
    client.act({"type": "redo"}, rows["photo1.png"])
    shutil.copy(folder / "zebra.png", folder / "a.png")
    assert "a.png" in [row["name"] for row in client.get("/api/session")["photographs"]]
    client.sessions.close()
    assert written(folder) == sorted((names[one[0]], *one[1:]) for one in before)
    masks = sorted(path.name for path in (folder / "masks").iterdir())
    assert masks == ["photo1_1.png", "zebra_1.png", "zebra_2.png"]
    for name in masks:
        drawn = np.asarray(Image.open(folder / "masks" / name)) > 0
        counts = coco_mask.encode(np.asfortranarray(drawn.astype(np.uint8)))["counts"].decode()
        assert (f"{name.split('_')[0]}.png", counts) in {
            (one[0], one[2]) for one in written(folder)
        }


def test_keywords_in_the_file_change_nothing(folder, model_host):
    annotate(folder, model_host)
    before, picture = written(folder), Image.open(folder / "photo0.png")
    picture.load()
    picture.save(folder / "photo0.png", compress_level=1)
    client = begin(folder, model_host)
    assert client.get("/api/session")["left_out"] == []
    client.sessions.close()
    assert written(folder) == before


def test_a_question_changes_no_setting(folder, model_host):
    client = begin(folder, model_host)
    assert client.http.get(f"{client.path()}/without").status_code == 200, "nothing is open"
    _, mask = client.click(64, 48)
    before = client.get("/api/shared")
    answer = client.http.get(f"{client.path()}/without")
    without = unpack(answer.content, client.size())[1]
    assert 0 < without.sum() < mask.sum()
    assert client.get("/api/shared") == before
    assert np.array_equal(client.mask(), mask)
    assert np.array_equal(again(client).mask(), mask)


def test_windows_learn_what_the_others_changed(folder, model_host):
    client = begin(folder, model_host)
    first = client.click(64, 48)[0]["shared"]
    settings = client.http.post("/api/settings", json={"avoid_finished": False}).json()
    assert client.click(60, 48)[0]["shared"] == settings["shared"] == first + 1
    client.sessions.close()


def change_labels(client, **change):
    answer = client.http.post("/api/labels", json=change)
    assert answer.status_code == 200, answer.text
    return answer.json()["labels"]


def test_lists_of_labels_of_two_windows_are_merged(folder, model_host):
    client = begin(folder, model_host, labels=["cat", "dog"])
    assert change_labels(client, add="zebra") == ["cat", "dog", "zebra"]
    assert change_labels(client, add="horse") == ["cat", "dog", "zebra", "horse"]
    order = ["horse", "dog", "cat", "gone"]
    assert change_labels(client, order=order) == ["horse", "dog", "cat", "zebra"]
    assert client.http.post("/api/labels", json={"labels": ["a"]}).status_code == 400
    client.sessions.close()


def test_labels_are_renamed_merged_and_removed_with_their_objects(folder, model_host):
    client = begin(folder, model_host, labels=["cat", "dog", "cow"])
    for n, label in enumerate(["cat", "dog", "cow"]):
        client.click(30, 40, n=n)
        header, _ = client.act({"type": "finish", "label": label}, n)
    client.act({"type": "delete", "object": header["objects"][0]["id"]}, 2)
    assert change_labels(client, rename="cat", to="lion") == ["lion", "dog", "cow"]
    assert change_labels(client, rename="dog", to="lion") == ["lion", "cow"]
    assert change_labels(client, rename="cow", to=None) == ["lion"]
    header, _ = client.act({"type": "undo"}, 2)
    assert [one["label"] for one in header["objects"]] == [None], "what undo brings back follows"
    client.click(100, 80)
    header, _ = client.act({"type": "finish", "label": "cat"})  # of a window that does not know
    assert [one["label"] for one in header["objects"]] == ["lion", "lion"]
    client.sessions.close()
    assert [one[:2] for one in written(folder)] == [
        *[("photo0.png", "lion")] * 2,
        ("photo1.png", "lion"),
        ("photo2.png", "object"),
    ]


def test_a_window_that_knows_an_old_label_gives_the_new_one_after_a_restart(folder, model_host):
    client = begin(folder, model_host, labels=["catt"])
    client.http.post("/api/labels", json={"rename": "catt", "to": "cat"})
    client = again(client)
    client.click(90, 30)
    header, _ = client.act({"type": "finish", "label": "catt"})
    assert [one["label"] for one in header["objects"]] == ["cat"]
    assert client.get("/api/session")["labels"] == ["cat"]
    client.http.post("/api/labels", json={"add": "catt"})
    client.click(20, 80)
    assert client.act({"type": "finish", "label": "catt"})[0]["objects"][-1]["label"] == "catt"
    client.sessions.close()


def test_an_object_has_the_label_that_it_was_begun_with_or_given(folder, model_host):
    """Whatever finishes it, and whatever label the next one is to have."""
    client = begin(folder, model_host)
    click = {"type": "click", "x": 30, "y": 40, "positive": True, "label": "cat"}
    header, _ = client.act(click)
    assert (header["current"]["label"], header["current"]["fresh"]) == ("cat", True)
    header, _ = client.act({**click, "x": 100, "label": "dog"})
    assert header["current"]["label"] == "cat"
    header, _ = client.act({"type": "finish"})
    number = header["objects"][0]["id"]
    client.act({**click, "y": 80, "label": "cow"})
    header, _ = client.act({"type": "reopen", "object": number})
    assert [one["label"] for one in header["objects"]] == ["cow"], "reopening finished it"
    assert (header["current"]["label"], header["current"]["fresh"]) == ("cat", False)
    header, _ = client.act({"type": "label", "label": None})
    assert header["current"]["label"] is None
    header, _ = client.act({"type": "finish"})
    assert sorted(str(one["label"]) for one in header["objects"]) == ["None", "cow"]
    client.sessions.close()


def test_strokes_edit_the_finished_object_that_they_are_for(folder, model_host):
    client = begin(folder, model_host)
    client.click(30, 40)
    (before,) = client.act({"type": "finish", "label": "cat"})[0]["objects"]
    client.click(100, 40)
    stroke = {"type": "brush", "radius": 3, "points": [[30, 40]], "positive": False}
    header, _ = client.act({**stroke, "object": before["id"]})
    assert header["current"] is None
    assert [one["label"] for one in header["objects"]] == ["cat", None]
    assert 20 < before["area"] - header["objects"][0]["area"] < 40
    client.act({"type": "undo"})
    (after,) = client.get(client.path())["objects"]
    assert after == {**before, "seconds": after["seconds"]}, "the time that was spent stays"
    whole = {**stroke, "radius": 90, "object": before["id"]}
    assert "no pixel" in client.refused(whole)
    client.sessions.close()


@pytest.mark.parametrize("state", ["accepted", "rejected"])
def test_work_on_a_reviewed_photograph_is_in_the_files_again(folder, model_host, state):
    annotate(folder, model_host, 1)
    client = begin(folder, model_host)
    before = written(folder)
    number = client.get(client.path())["objects"][0]["id"]
    later = {"delete": "done", "label": "done", "reopen": "open", "click": "open"}
    for kind, wanted in later.items():
        client.act({"type": "state", "state": state})
        client.http.post("/api/export", json={"format": "coco"})
        assert written(folder) == (before if state == "accepted" else [])
        action = {"object": number, "x": 5, "y": 90, "positive": True, "label": "dog"}
        header, _ = client.act({"type": kind, **action})
        assert (header["state"], header["reviewed"]) == (wanted, state), kind
        client.http.post("/api/export", json={"format": "coco"})
        assert len(written(folder)) == 2 - (kind == "delete"), kind
        assert len(list((folder / "masks").glob("photo0*"))) == 2 - (kind == "delete")
        assert client.act({"type": "undo"})[0]["state"] == state
        client.act({"type": "undo"})
        client.http.post("/api/export", json={"format": "coco"})
        assert written(folder) == before
    client.sessions.close()


@pytest.mark.parametrize("of", ["masks", "annotations.json"])
def test_a_finished_folder_is_opened_with_another_one_for_what_is_written(
    folder, model_host, tmp_path, of
):
    annotate(folder, model_host)
    before, out = written(folder), tmp_path / "out"
    (folder / "annotations.json").rename(folder / "kept")
    content = (folder / "kept").read_bytes()
    if of == "masks":
        shutil.move(folder / "masks", out / "masks")  # of `out`, whose hidden folder is gone
    else:
        (folder / "kept").rename(folder / "annotations.json")
    client = begin(folder, model_host, out=out)
    client.http.post("/api/export", json={"format": "coco"})
    places = {name: n for n, name in enumerate(("photo0.png", "photo1.png"))}
    assert [(one[0], one[2]) for one in written(out)] == [(one[0], one[2]) for one in before]
    if of != "masks":
        assert written(out) == before
        assert (folder / "annotations.json").read_bytes() == content
    client.click(64, 80, n=places["photo0.png"])
    client.act({"type": "finish", "label": None})
    assert len(list((out / "masks").glob("photo0_*"))) == 3
    client.sessions.close()


def test_annotations_of_other_photographs_do_not_keep_a_folder_from_another_out(
    folder, model_host, tmp_path
):
    (folder / "annotations.json").write_text('{"images": [{"id": 1, "file_name": "x.png"}]}')
    client = begin(folder, model_host, out=tmp_path / "out")
    said = "\n".join(refusals(client.sessions.files.refused()))
    assert "none of the photographs of this folder" in said
    client.sessions.close()


@pytest.mark.parametrize(("change", "status"), [(turned, 200), (smaller, 422)])
def test_objects_are_kept_on_other_pixels_of_the_same_size_if_the_person_says_so(
    folder, model_host, change, status
):
    annotate(folder, model_host)
    before = written(folder)
    change(folder / "photo0.png")
    client = begin(folder, model_host)
    first = client.photographs[0]
    assert (first["changed"], first["keepable"]) == (True, status == 200)
    answer = client.http.post(f"{client.path()}/keep", json={})
    assert answer.status_code == status, answer.text
    client.sessions.close()
    kept = before if status == 200 else [one for one in before if one[0] != "photo0.png"]
    assert written(folder) == kept
    client = begin(folder, model_host)
    assert (client.photographs[0]["error"] is None) == (status == 200)
    client.sessions.close()


def test_a_folder_of_schema_4_gets_the_files_of_its_photographs(folder, model_host):
    annotate(folder, model_host)
    before = written(folder)
    database = sqlite3.connect(folder / ".probseg" / "annotations.sqlite")
    for name in ("height", "width", "bytes", "modified", "digest", "pixels"):
        database.execute(f"ALTER TABLE photographs DROP COLUMN {name}")
    database.execute("PRAGMA user_version = 4")
    database.commit()
    database.close()
    smaller(folder / "photo1.png")
    client = begin(folder, model_host)
    assert [photo["changed"] for photo in client.photographs] == [False, True, False, False]
    assert len(client.act({"type": "undo"})[0]["objects"]) == 1, "its history goes on"
    client.act({"type": "redo"})
    assert client.sessions.store.fingerprints()["photo0.png"].height == 96
    client.sessions.close()
    assert written(folder) == [one for one in before if one[0] != "photo1.png"]


def test_an_object_costs_the_same_in_large_folders(folder, model_host, monkeypatch):
    """Finishing it lists no folder, and no click waits while `annotations.json` is written."""
    client = begin(folder, model_host)
    listings, list_masks, write = [], files.list_masks, coco.write

    def counted(*arguments):
        listings.append(arguments)
        return list_masks(*arguments)

    monkeypatch.setattr(files, "list_masks", counted)
    for n, (x, _) in enumerate([(30, 0), (64, 0), (100, 0)]):
        client.click(x, 48, n=n)
        client.act({"type": "finish", "label": None}, n)
    assert listings == []
    Image.fromarray(np.ones((96, 128), np.uint8)).save(folder / "masks" / "photo3.png")
    assert len(client.get(client.path(3))["objects"]) == 1, "what others add is seen"

    def meanwhile(path, images, annotations, categories):
        with ThreadPoolExecutor(1) as other:
            assert other.submit(client.click, 30, 80).result(timeout=30)[1].any()
        write(path, images, annotations, categories)

    with monkeypatch.context() as patched:
        patched.setattr(coco, "write", meanwhile)
        client.sessions.files.write_coco()
    client.act({"type": "finish", "label": "late"})
    assert client.sessions.files._timer.interval >= files.DELAY
    client.sessions.close()
    assert [one[1] for one in written(folder)].count("late") == 1


def test_ids_of_photographs_stay_in_annotations(folder, model_host):
    def ids():
        client.http.post("/api/export", json={"format": "coco"})
        images = json.loads((folder / "annotations.json").read_text())["images"]
        return {one["file_name"]: one["id"] for one in images}

    client = begin(folder, model_host)
    before = ids()
    client.act({"type": "state", "state": "rejected"})
    assert ids() == {name: before[name] for name in list(before)[1:]}
    shutil.copy(folder / "photo0.png", folder / "a.png")
    client.get("/api/session")
    assert ids().items() >= {name: before[name] for name in list(before)[1:]}.items()
    client.sessions.close()
    shutil.rmtree(folder / ".probseg")
    client = begin(folder, model_host)
    assert ids()["photo3.png"] == before["photo3.png"]
    client.sessions.close()


@pytest.mark.parametrize("place", [".", "images"])
def test_photographs_in_sub_folders_are_read_with_their_masks(tmp_path, model_host, place):
    folder, outside = tmp_path / "set", tmp_path / "outside"
    homes = [folder / place / name for name in (".", "a", "b/c")]
    for home in homes:
        draw_photographs(home, 1)
    draw_photographs(outside, 2)
    (folder / place / "a" / "linked").symlink_to(outside, target_is_directory=True)
    (folder / place / "a" / "again").symlink_to("..", target_is_directory=True)
    labels = np.zeros((96, 128), np.uint8)
    labels[5:15, 5:15] = 1
    for mask in ("masks/a/photo0_1.png", f"{place}/b/masks/photo0.png"):
        (folder / mask).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(labels).save(folder / mask)
    client = begin(folder, model_host)
    names = ["a/photo0.png", "b/c/photo0.png", "photo0.png"]
    assert [photo["name"] for photo in client.photographs] == names
    assert [photo["objects"] for photo in client.photographs] == [1, 0, 0]
    said = dict(client.sessions.files.refused())
    inside = "" if place == "." else "images/"
    assert said.keys() == {f"{inside}a/linked", f"{inside}b/masks"}
    for n, x in enumerate((30, 64, 100)):
        client.click(x, 48, n=n)
        client.act({"type": "finish", "label": f"kind {n}"}, n)
    assert "coco_json" in client.get("/api/session")["train_command"]
    for name in client.get("/api/session")["formats"]:
        client.http.post("/api/export", json={"format": name})
    before = sorted(written(folder))
    assert [one[:2] for one in before if one[1] != "object"] == [
        (name, f"kind {n}") for n, name in enumerate(names)
    ]
    masks = sorted(path.relative_to(folder).as_posix() for path in folder.glob("masks/**/*.png"))
    assert masks == [
        *("masks/a/photo0_1.png", "masks/a/photo0_2.png"),
        *("masks/b/c/photo0_1.png", "masks/photo0_1.png"),
    ]
    assert (folder / "annotations-yolo/labels/b/c/photo0.txt").read_text().startswith("1 ")
    client.sessions.close()

    (folder / place / "a/photo0.png").rename(folder / place / "b/moved.png")
    shutil.rmtree(folder / ".probseg" / "masks")
    client = begin(folder, model_host)
    draw_photographs(folder / place / "new", 1)  # while the server runs
    shown = client.get("/api/session")["photographs"]
    assert [(photo["name"], photo["objects"]) for photo in shown] == [
        *(("b/c/photo0.png", 1), ("b/moved.png", 2), ("new/photo0.png", 0), ("photo0.png", 1))
    ]
    assert not list(folder.glob("masks/a/*.png"))
    client.sessions.close()
    shutil.rmtree(folder / ".probseg")  # objects come back from annotations.json
    client = begin(folder, model_host)
    client.http.post("/api/export", json={"format": "coco"})
    again = sorted(written(folder))
    assert sorted(one[1] for one in again) == ["kind 0", "kind 1", "kind 2", "object"]
    client.sessions.close()


def test_links_that_leave_the_folder_are_followed_when_the_person_says_so(
    tmp_path, model_host, monkeypatch
):
    folder, outside = tmp_path / "set", draw_photographs(tmp_path / "outside", 2, (96, 120))
    draw_photographs(folder, 1)
    (folder / "photo1.png").symlink_to(outside / "photo1.png")
    (folder / "more").symlink_to(outside, target_is_directory=True)
    monkeypatch.delenv("PROBSEG_DATA", raising=False)
    client = begin(folder, model_host)
    assert [photo["error"] is None for photo in client.photographs] == [True, False]
    assert "PROBSEG_FOLLOW_LINKS=1" in client.photographs[1]["error"]
    client.sessions.close()
    monkeypatch.setenv("PROBSEG_FOLLOW_LINKS", "1")
    client = begin(folder, model_host)
    names = ["more/photo0.png", "more/photo1.png", "photo0.png", "photo1.png"]
    assert [p["name"] for p in client.photographs if p["error"] is None] == names
    client.click(30, 48, n=0)
    client.act({"type": "finish", "label": None}, 0)
    assert (folder / "masks/more/photo0_1.png").is_file()
    client.sessions.close()
    monkeypatch.delenv("PROBSEG_FOLLOW_LINKS")
    client = begin(folder, model_host)
    answer = client.http.post("/api/export", json={"format": "coco"}).json()
    assert "1 object of photographs that are gone: more/photo0.png" in answer["lost"]
    client.sessions.close()
    shutil.rmtree(folder / "masks" / "more")
    (folder / "masks" / "more").symlink_to(outside, target_is_directory=True)
    with pytest.raises(UsageError, match="masks/more: a link leads out"):
        begin(folder, model_host)


def test_objects_of_a_photograph_that_cannot_be_read_are_counted(folder, model_host):
    annotate(folder, model_host, 1)
    (folder / "photo0.png").write_bytes(b"no photograph")
    client = begin(folder, model_host)
    answer = client.http.post("/api/export", json={"format": "coco"}).json()
    assert "2 objects of photographs that cannot be read: photo0.png" in answer["lost"]
    client.sessions.close()


def test_a_photograph_that_cannot_be_read_holds_up_no_other_file(folder, model_host):
    annotate(folder, model_host, 2)
    shutil.rmtree(folder / ".probseg")  # as if the file came from another program
    shutil.rmtree(folder / "masks")
    path = folder / "photo0.png"
    content = path.read_bytes()
    path.write_bytes(b"no photograph")
    for deleted in (1, 2):  # in two sessions
        client = begin(folder, model_host)
        answer = client.http.post("/api/export", json={"format": "coco"}).json()
        assert "2 objects of photographs that cannot be read: photo0.png" in answer["lost"]
        client.act({"type": "delete", "object": deleted + 2}, 1)
        client.http.post("/api/export", json={"format": "coco"})
        assert [one[0] for one in written(folder)] == ["photo1.png"] * (2 - deleted)
        client.sessions.close()
    path.write_bytes(content)
    client = begin(folder, model_host)
    client.http.post("/api/export", json={"format": "coco"})
    assert [one[0] for one in written(folder)] == ["photo0.png"] * 2
    client.sessions.close()


COCO = {
    "images": [
        {"id": n, "file_name": f"set/{name}", "height": 96, "width": 128}
        for n, name in enumerate(("photo1.png", "elsewhere.png"))
    ],
    "categories": [{"id": 3, "name": "horse"}],
    "annotations": [
        {"id": n, "image_id": n, "category_id": 3, "segmentation": [[10, 10, 20, 10, 20, 30]]}
        for n in range(2)
    ],
}
YOLO = "1 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5\n"


@pytest.mark.parametrize("form", ["coco", "yolo"])
def test_annotations_of_other_programs_are_opened_for_correction(
    folder, model_host, tmp_path, form
):
    annotate(folder, model_host, 1)
    before = written(folder)
    path = tmp_path / "brought"
    if form == "coco":
        path.write_text(json.dumps(COCO))
        path = path.rename(tmp_path / "brought.json")
    else:
        (path / "labels").mkdir(parents=True)
        (path / "data.yaml").write_text("names: [cow, horse]")
        (path / "labels" / "photo1.txt").write_text(YOLO)
    for _ in range(2):  # what is there is not added again
        client = begin(folder, model_host, imported=path)
        client.http.post("/api/export", json={"format": "coco"})
        classes = {"coco": ["horse"], "yolo": ["cow", "horse"]}[form]  # all that the file lists
        assert client.get("/api/session")["labels"] == ["cat", *classes]
        assert [one for one in written(folder) if one[0] == "photo0.png"] == before
        assert [one[:2] for one in written(folder)[2:]] == [("photo1.png", "horse")]
        assert [path.name for path in (folder / "masks").glob("photo1*")] == ["photo1_1.png"]
        said = "\n".join(refusals(client.sessions.files.refused()))
        assert ("1 object of other photographs" in said) == (form == "coco")
        client.sessions.close()


def pieces(files, size=100):
    """The requests with which a page sends files."""
    parts = [
        (name, content[begin : begin + size])
        for name, content in files.items()
        for begin in range(0, len(content), size)
    ]
    for number, (name, part) in enumerate(parts):
        content = base64.b64encode(part).decode()
        last = number + 1 == len(parts)
        body = {"upload": hash(tuple(files)), "piece": number, "name": name}
        yield {**body, "content": content, "last": last}


def zipped(files):
    """A ZIP in memory."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


UPLOADS = {
    "a file": {"a.json": json.dumps(COCO).encode()},
    "several": {"photo1.txt": YOLO.encode(), "classes.txt": b"cow\nhorse\n"},
    "ZIP of COCO": {"a.zip": zipped({"README.txt": "x", "train/_a.coco.json": json.dumps(COCO)})},
    "ZIP of YOLO": {"a.zip": zipped({"data.yaml": "names: [c, horse]", "labels/photo1.txt": YOLO})},
}


@pytest.mark.parametrize("kind", UPLOADS)
def test_a_page_imports_what_is_sent_in_pieces(folder, model_host, kind):
    client = begin(folder, model_host)

    def bring():
        for piece in [{**next(pieces(UPLOADS[kind])), "upload": 0}, *pieces(UPLOADS[kind])]:
            answer = client.http.post("/api/import", json=piece)
            assert answer.status_code == 200, answer.text
        return answer.json()["objects"]

    assert bring() == 1
    (one,) = client.get(client.path(1))["objects"]
    assert (one["label"], client.get("/api/session")["photographs"][1]["objects"]) == ("horse", 1)
    client.act({"type": "delete", "object": one["id"]}, 1)
    assert bring() == 0, "what was corrected since does not come back"
    client.sessions.close()
    client = begin(folder, model_host)
    assert bring() == 0
    client.sessions.close()


def test_an_import_follows_another_whatever_that_has_left():
    upload = Upload()
    for name in ("a.json", "b.json"):
        (piece,) = pieces({name: b"{}"})
        path = upload.add(piece)
        assert [path.name] == [one.name for one in path.parent.iterdir()]
        (path.parent / ".probseg").mkdir()  # of the reader
    upload.close()


def test_a_path_of_an_import_means_the_photograph_of_the_same_path():
    find = finder(["a.jpg", "x/a.jpg", "x/y/a.jpg", "b.jpg"])
    paths = ["a.jpg", "x/a.jpg", "w/x/a.jpg", "y/a.jpg", "w/a.jpg", "w/b.jpg", "c.jpg"]
    expected = ["a.jpg", "x/a.jpg", "x/a.jpg", "x/y/a.jpg", None, "b.jpg", None]
    assert list(map(find, paths)) == expected


def test_files_have_the_objects_of_the_photographs_that_are_there(folder, model_host):
    """Also after a photograph was replaced, and after it came back."""
    annotate(folder, model_host, 1)
    masks = sorted((folder / "masks").glob("photo0*"))
    contents, before = [path.read_bytes() for path in masks], written(folder)
    photo, kept = folder / "photo0.png", folder.parent / "kept.png"
    theirs = folder / "masks" / "photo0_7.png"  # of another program, for the new picture
    for act, said in (
        ("replace", "2 objects of photographs that have changed since"),
        ("remove", "2 objects of photographs that are gone"),
        ("put back", "files that another program changed, copied to .probseg/masks"),
    ):
        comes_back = act == "put back"
        if act == "replace":
            photo.rename(kept)
            Image.open(kept).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(photo)
            theirs.write_bytes(masks[0].read_bytes() + b"x")
        elif act == "remove":
            photo.unlink()
        else:
            kept.replace(photo)
        client = begin(folder, model_host)
        left_out = client.get("/api/session")["left_out"]
        assert [line.split(":")[0] for line in left_out] == [said]
        assert [path.exists() for path in masks] == [comes_back] * len(masks)
        assert theirs.exists() is not comes_back
        client.sessions.close()
        assert ("photo0.png" in [one[0] for one in written(folder)]) is comes_back
    assert written(folder) == before
    assert [path.read_bytes() for path in masks] == contents
    assert [*folder.rglob(".probseg/masks/photo0_7.png")], "a copy is kept"


def test_a_piece_that_a_full_disk_refused_is_sent_again(folder, model_host, monkeypatch):
    client = begin(folder, model_host)
    first, *rest = pieces({"a.json": json.dumps(COCO).encode()})
    assert client.http.post("/api/import", json=first).status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *_: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
        assert client.http.post("/api/import", json=rest[0]).status_code == 507
    answers = [client.http.post("/api/import", json=piece) for piece in rest]
    assert answers[-1].json() == {"objects": 1}
    client.sessions.close()


def test_pieces_of_two_windows_and_of_lost_answers_are_told_apart(folder, model_host):
    client = begin(folder, model_host)
    first, second = (
        [*pieces({f"{name}.json": json.dumps(COCO).encode() + b" " * spaces})]
        for name, spaces in (("a", 0), ("b", 1))
    )
    for piece in (*first[:2], *second[:2]):
        assert client.http.post("/api/import", json=piece).status_code == 200
    answer = client.http.post("/api/import", json=first[2])
    assert "a.json: another import has begun meanwhile; send" in answer.json()["error"]
    for piece in (second[1], *second[2:]):  # one is sent again
        answer = client.http.post("/api/import", json=piece)
    assert answer.json() == {"objects": 1}
    client.sessions.close()


def test_of_two_exports_at_a_time_one_is_refused(folder, model_host):
    annotate(folder, model_host)
    client, answers = begin(folder, model_host), []
    exported = client.sessions.files.export

    def twice(progress):
        with pytest.raises(DataError, match="another export is being written; wait"):
            exported("png", lambda done: None)
        answers.append(progress)

    path, _ = exported("labelme", twice)
    assert answers
    assert len([*path.glob("*.json")]) == 4
    exported("png", lambda done: None)
    client.sessions.close()


def test_a_photograph_that_is_removed_meanwhile_holds_up_no_mask(folder, model_host, monkeypatch):
    bring_masks(folder)
    look = files.fingerprint

    def gone(photo):
        if photo.name == "photo1.png":
            raise FileNotFoundError(photo.path)
        return look(photo)

    monkeypatch.setattr(files, "fingerprint", gone)
    client = begin(folder, model_host)
    client.sessions.files.read_all()
    counts = [photo["objects"] for photo in client.get("/api/session")["photographs"]]
    assert counts == [2, 0, 2, 2]
    client.sessions.close()


TEXTS = {
    "CVAT": (
        "a.xml",
        '<annotations><version>1.1</version><image name="photo0.png" width="128" height="96">'
        '<polygon label="cat" points="10,10;50,10;50,50;10,50"/></image></annotations>',
    ),
    "VIA": (
        "a.json",
        '{"photo0.png9": {"filename": "photo0.png", "size": 9, "regions": [{"shape_attributes": '
        '{"name": "polygon", "all_points_x": [10, 50, 50, 10], "all_points_y": [10, 10, 50, 50]}, '
        '"region_attributes": {"class": "cat"}}]}}',
    ),
}


@pytest.mark.parametrize("form", [*EXPORTS, *TEXTS])
def test_a_page_imports_each_format_that_the_command_does(folder, model_host, form):
    """One file alone, or all of the format."""
    if form in TEXTS:
        name, text = TEXTS[form]
        files = {name: text.encode()}
    else:
        annotate(folder, model_host, 1)
        client = begin(folder, model_host)
        answer = client.http.post("/api/export", json={"format": form}).json()
        place = Path(answer["path"])
        files = {
            path.name: path.read_bytes()
            for path in ([place] if place.is_file() else place.rglob("photo*"))
            if path.parent.name != "images"
        }
        client.sessions.close()
        for path in (folder / ".probseg", folder / "masks", folder / "annotations.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    client = begin(folder, model_host)
    for piece in pieces(files, 10**6):
        answer = client.http.post("/api/import", json=piece)
    if form == "coco-results":
        assert "a list of COCO results" in answer.json()["error"]
    else:
        assert answer.json()["objects"] == len(client.get(client.path())["objects"]) > 0
    client.sessions.close()


@pytest.mark.parametrize("kind", ["masks", "texts"])
def test_loose_files_find_their_photographs_in_folders(folder, model_host, kind):
    (folder / "sub").mkdir()
    (folder / "photo1.png").rename(folder / "sub" / "photo1.png")
    drawn, content = np.zeros((96, 128), np.uint8), io.BytesIO()
    drawn[20:40, 30:60] = 255
    Image.fromarray(drawn).save(content, "PNG")
    files = {"photo1_1.png": content.getvalue()} if kind == "masks" else UPLOADS["several"]

    def bring():
        client = begin(folder, model_host)
        for piece in pieces(files):
            answer = client.http.post("/api/import", json=piece).json()
        listed = client.get("/api/session")["photographs"]
        client.sessions.close()
        return answer, {photo["name"]: photo["objects"] for photo in listed if photo["objects"]}

    answer, objects = bring()
    assert (answer, objects) == ({"objects": 1}, {"sub/photo1.png": 1})
    shutil.copy(folder / "photo0.png", folder / "photo1.png")
    answer, objects = bring()
    assert "several photographs are called photo1" in answer["error"]
    assert objects == {"sub/photo1.png": 1}


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        ({"name": "../a.json"}, "expected {'upload'"),
        ({"content": "no base64!"}, "expected {'upload'"),
        ({}, "a.json: its format is not known"),
        ({"name": "a.txt"}, "a.txt: there is no photograph of this name"),
        ({"name": "a_1.png"}, "no mask matches an image"),
        ({"content": base64.b64encode(b'{"dm_format_version": "1.0"}').decode()}, "Datumaro"),
    ],
)
def test_pages_are_told_why_nothing_is_imported(folder, model_host, piece, said):
    client = begin(folder, model_host)
    whole = {"upload": 1, "piece": 0, "name": "a.json", "content": "", "last": True}
    answer = client.http.post("/api/import", json={**whole, **piece})
    assert answer.status_code in (400, 422)
    assert said in answer.json()["error"]
    assert "probseg-" not in answer.json()["error"], "no temporary folder is named"
    assert "data check" not in answer.json()["error"], "of a folder that is none of theirs"
    client.sessions.close()


def test_an_import_of_other_photographs_is_refused(folder, model_host, tmp_path):
    content = {**COCO, "annotations": COCO["annotations"][1:]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="names of files must be the same"):
        begin(folder, model_host, imported=tmp_path / "a.json")
    begin(folder, model_host).sessions.close()


def test_a_folder_has_one_address_that_lasts_and_is_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path / "cache"))
    token = lasting_token("annotate", tmp_path)
    assert lasting_token("annotate", tmp_path / ".") == token
    assert len({token, lasting_token("look", tmp_path), lasting_token("annotate", Path())}) == 3
    key = tmp_path / "cache" / "annotate.key"
    if os.name == "posix":
        assert key.stat().st_mode & 0o077 == 0
        key.chmod(0o644)
        assert lasting_token("annotate", tmp_path) != token, "others may have read the key"
    key.unlink()
    assert lasting_token("annotate", tmp_path) != token


def test_a_demo_has_photographs_and_leaves_a_folder_that_is_there(folder, monkeypatch):
    from probseg.annotate import verbs

    monkeypatch.chdir(folder)
    monkeypatch.setattr(verbs, "listen", lambda *_: 1 / 0)
    for arguments, count in ((["--demo"], 7), (["--demo", str(folder)], 4)):
        with pytest.raises(ZeroDivisionError):
            verbs.run_annotate(arguments)
        place = Path(arguments[-1]) if len(arguments) > 1 else folder / "probseg_demo"
        assert len([path for path in place.iterdir() if path.is_file()]) == count
    with pytest.raises(UsageError, match="--demo"):
        verbs.run_annotate([])
