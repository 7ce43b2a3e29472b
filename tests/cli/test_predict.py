"""Masks of a photograph and of folders: the same as the predictor's, each written once."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn_sets import write_coco
from fakes import draw_scene, micro_model, save
from micro import described
from PIL import Image
from pycocotools import mask as coco_mask
from runs import command, separately, started, usage_error

import probseg
from probseg.masks import read_labels
from probseg.models import build_semantic, read_preset
from probseg.models.multiscale import predict_classes
from probseg.zoo import store

CLICKS = [probseg.Click(20, 30), probseg.Click(3, 4, positive=False)]
BOX = (10, 12, 40, 44)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Six photographs, prompts for them, and two networks with random weights."""
    place = tmp_path_factory.mktemp("predict")
    torch.manual_seed(1)  # whose masks are neither empty nor full
    store.save(micro_model("micro_csa"), described("micro_csa"), place / "clicks")
    classes = read_preset("micro_fcn", "semantic")
    store.save(build_semantic(classes), classes, place / "classes")
    for i in range(6):
        save(draw_scene(48, 64, seed=i)[0], place / "photos" / f"p{i}.png")
    prompts = {
        f"p{i}.png": [
            {"box": [5 + i, 6, 40, 40], "label": "left"},
            {"clicks": [[20, 30 - i], [3, 4, False]], "label": "right"},
        ]
        for i in range(6)
    }
    (place / "prompts.json").write_text(json.dumps(prompts))
    return place


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    return tmp_path


def predict(*arguments, model="./clicks"):
    try:
        return command("predict", *arguments, "--model", model)
    except SystemExit as stop:
        return stop.code


def predicted(name, clicks, box=None):
    """Mask that the predictor gives."""
    predictor = probseg.Predictor.from_pretrained("./clicks")
    predictor.set_image(np.asarray(Image.open(f"photos/{name}")))
    return predictor.predict(clicks, box=box).binary


def test_a_photograph(here):
    prompts = ("--click=20,30", "--click=3,4,-", "--box=10,12,40,44")
    given = ("photos/p0.png", *prompts, "--output")
    expected = predicted("p0.png", CLICKS, BOX)
    assert expected.any()
    assert predict(*given, here / "mask.png") == 0
    np.testing.assert_array_equal(read_labels(here / "mask.png") > 0, expected)
    assert predict(*given, here / "mask.json", "--format=coco") == 0
    rle = json.loads((here / "mask.json").read_text())
    np.testing.assert_array_equal(coco_mask.decode(rle), expected)
    assert predict(*given, here / "overlay.png", "--format=overlays") == 0
    changed = np.asarray(Image.open(here / "overlay.png")) != np.asarray(
        Image.open("photos/p0.png")
    )
    assert (changed.any(axis=2) <= expected).all()
    assert changed.any()


def test_a_folder_has_the_masks_of_the_predictor(here, capsys):
    formats = "--format=masks,coco,overlays"
    given = ("photos", "--prompts=prompts.json", formats, "--output", here, "--batch-size=1")
    assert predict(*given) == 0
    assert "6 of 6 photographs" in capsys.readouterr().out
    content = json.loads((here / "annotations.json").read_text())
    names = {entry["id"]: entry["file_name"] for entry in content["images"]}
    labels = {entry["id"]: entry["name"] for entry in content["categories"]}
    assert sorted(names.values()) == [f"p{i}.png" for i in range(6)]
    assert len(content["annotations"]) == 12
    for entry in content["annotations"]:
        name = names[entry["image_id"]]
        left = labels[entry["category_id"]] == "left"
        i = int(name[1])
        clicks = [probseg.Click(20, 30 - i), probseg.Click(3, 4, positive=False)]
        mask = predicted(name, *([], (5 + i, 6, 40, 40)) if left else (clicks,))
        np.testing.assert_array_equal(coco_mask.decode(entry["segmentation"]), mask)
        number = 1 if left else 2
        file = here / "masks" / f"p{i}_{number}.png"
        np.testing.assert_array_equal(read_labels(file) > 0, mask)
    assert {path.name for path in (here / "overlays").iterdir()} == set(names.values())
    before = {path: path.stat().st_mtime_ns for path in (here / "masks").iterdir()}
    assert predict(*given) == 0
    assert "6 of them finished before" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (here / "masks").iterdir()}


def test_only_what_has_changed_is_done_again(here, capsys):
    rows = ["image,object,x,y,positive,x0,y0,x1,y1"]
    for i in range(3):
        rows += [f"p{i}.png,a,20,30,1,,,,", f"p{i}.png,a,3,4,0,,,,", f"p{i}.png,b,,,,5,6,40,40"]
    prompts = here / "prompts.csv"
    prompts.write_text("\n".join(rows))
    given = ("photos", "--prompts", prompts, "--output", here / "out")
    assert predict(*given) == 0
    masks = here / "out" / "masks"
    assert len(list(masks.iterdir())) == 6
    written = read_labels(masks / "p1_1.png") > 0
    np.testing.assert_array_equal(written, predicted("p1.png", CLICKS))
    prompts.write_text("\n".join(rows[:-1]))
    (masks / "p0_2.png").unlink()
    capsys.readouterr()
    assert predict(*given) == 0
    assert "1 of them finished before" in capsys.readouterr().out
    assert {path.name for path in masks.iterdir()} == {
        "p0_1.png", "p0_2.png", "p1_1.png", "p1_2.png", "p2_1.png"
    }  # fmt: skip


def test_boxes_of_coco(here, tmp_path):
    write_coco(tmp_path / "a.json", tmp_path / "images", count=2)
    content = json.loads((tmp_path / "a.json").read_text())
    for entry in content["annotations"]:
        entry["bbox"] = [3, 4, 62.5, 30]  # 1.5 pixels too wide
    (tmp_path / "a.json").write_text(json.dumps(content))
    given = (tmp_path / "images", "--prompts", tmp_path / "a.json", "--format=coco")
    with pytest.warns(UserWarning, match="`box`"):
        assert predict(*given, "--output", tmp_path / "out") == 0
    made = json.loads((tmp_path / "out" / "annotations.json").read_text())
    wanted = [entry for entry in content["annotations"] if not entry["iscrowd"]]
    for key in ("id", "image_id", "category_id"):
        assert [e[key] for e in made["annotations"]] == [e[key] for e in wanted]
    assert made["categories"] == content["categories"]
    assert made["images"] == content["images"]


def test_failures_are_listed_and_the_rest_is_done(here, capsys):
    prompts = {
        "p0.png": [{"box": [5, 6, 40, 40]}, {"box": [5, 6, 70, 40]}, {"clicks": [[64, 3]]}],
        "absent.png": [{"clicks": [[1, 1]]}],
        "p1.png": [{"clicks": [[1, 1]]}],
    }
    (here / "p.json").write_text(json.dumps(prompts))
    given = ("photos", "--prompts", here / "p.json", "--output", here / "out")
    for again in (False, True):
        assert predict(*given) == 1
        shown = capsys.readouterr().out
        assert "2 of 3 photographs" in shown
        assert ("2 of them finished before" in shown) == again
        failed = [line.split(":")[1].strip() for line in shown.splitlines() if "failed" in line]
        assert failed == ["p0.png, object 2", "p0.png, object 3", "absent.png"]
    names = {path.name for path in (here / "out" / "masks").iterdir()}
    assert names == {"p0_1.png", "p1_1.png"}


def test_classes(here):
    model = probseg.create_model("./classes", pretrained=True)
    assert predict("photos", "--output", here, "--format=masks,overlays", model="./classes") == 0
    assert predict("photos/p1.png", "--output", here / "one.png", model="./classes") == 0
    for i in range(6):
        image = np.asarray(Image.open(f"photos/p{i}.png"))
        with torch.inference_mode():
            pixels = torch.tensor(image).permute(2, 0, 1)[None].float() / 255
            expected = predict_classes(model, pixels)[0].numpy()
        np.testing.assert_array_equal(read_labels(here / "masks" / f"p{i}.png"), expected)
        assert Image.open(here / "overlays" / f"p{i}.png").size == (64, 48)
    assert (here / "one.png").read_bytes() == (here / "masks" / "p1.png").read_bytes()


def test_a_killed_prediction_goes_on(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    images = tmp_path / "many"
    prompts = {f"{i}.png": [{"clicks": [[9, 9]]}] for i in range(60)}
    for name in prompts:
        save(draw_scene(48, 64)[0], images / name)
    (tmp_path / "p.json").write_text(json.dumps(prompts))
    out = tmp_path / "out"
    given = (images, "--prompts", tmp_path / "p.json", "--output", out, "--batch-size", 1)
    records = out / ".probseg"
    process = started(tmp_path, ("predict", *given, "--model", f"{place}/clicks"))
    end = time.monotonic() + 200
    while not records.is_dir() or len(list(records.glob("*.json"))) < 3:
        assert process.is_alive(), (tmp_path / "output.txt").read_text()
        assert time.monotonic() < end
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    done = {path: path.stat().st_mtime_ns for path in records.glob("[0-9]*.json")}
    assert len(done) < 60
    assert predict(*given, model=f"{place}/clicks") == 0
    assert f"{len(done)} of them finished before" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert len(list((out / "masks").iterdir())) == 60
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize("photos", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_two_processes_write_each_photograph_once(here, photos):
    prompts = json.loads(Path("prompts.json").read_text())
    kept = {f"p{i}.png": prompts[f"p{i}.png"] for i in range(photos)}
    (here / "p.json").write_text(json.dumps(kept))
    given = ["photos", "--prompts", str(here / "p.json"), "--format=masks,coco", "--batch-size=1"]
    assert predict(*given, "--output", here / "alone") == 0
    many = ["--output", str(here / "shared"), "--processes=2", "--model=./clicks"]
    output = separately(Path.cwd(), "predict", *given, *many)
    assert "MEMBER: 2/2" in output
    assert output.count(f"{photos} of {photos} photographs") == 1
    files = {p.relative_to(here / "alone"): p for p in (here / "alone").rglob("*.*")}
    for name, path in files.items():
        if path.is_file():
            assert (here / "shared" / name).read_bytes() == path.read_bytes(), name


def test_wrong_usage_is_refused_before_a_network_is_loaded(here, capsys, monkeypatch):
    monkeypatch.setattr(
        "probseg.cli.predict_photographs._loaded", lambda options: pytest.fail("loaded")
    )
    out = ("--output", here / "m.png")

    def refused(*arguments, model="./clicks"):
        return usage_error(capsys, "predict", *arguments, "--model", model)

    assert "absent.jpg" in refused("absent.jpg", *out, "--click=1,1")
    assert "--click" in refused("photos/p0.png", *out)
    assert "(64.0, 1.0)" in refused("photos/p0.png", *out, "--click=64,1")
    assert "box" in refused("photos/p0.png", *out, "--box=0,0,99,9")
    assert "--box" in refused("photos/p0.png", *out, "--box=0,0,9")
    assert "--click" in refused("photos/p0.png", *out, "--click=1,1,1")
    assert "--output" in refused("photos/p0.png", "--output", here / "m.jpg", "--click=1,1")
    assert "--format" in refused("photos/p0.png", *out, "--click=1,1", "--format=svg")
    assert "--prompts" in refused("photos", "--output", here)
    assert "--prompts" in refused("photos", "--output", here, "--click=1,1")
    assert "x.json" in refused("photos", "--output", here, "--prompts", here / "x.json")
    assert "semantic" in refused("photos/p0.png", *out, "--click=1,1", model="./classes")
    assert "micro" in refused("photos/p0.png", *out, "--click=1,1", model="micro_cas")
