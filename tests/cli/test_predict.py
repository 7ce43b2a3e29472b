"""Masks of a photograph and of folders: the same as the predictor's, each written once."""

import errno
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

import probseg
from probseg import paths
from probseg.annotate.photographs import list_photographs
from probseg.convert import Request, convert
from probseg.formats import png
from probseg.interact.mask import ProbabilityMap
from probseg.masks import read_labels
from probseg.models import build, read_preset
from probseg.semantic.network import predict_classes
from probseg.zoo import store
from support.drawn_sets import write_coco
from support.fakes import draw_scene, micro_model, save
from support.micro import described
from support.runs import command, separately, started, usage_error

CLICKS = [probseg.Click(20, 30), probseg.Click(3, 4, positive=False)]
BOX = (10, 12, 40, 44)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Six photographs, prompts for them, and two networks with random weights."""
    place = tmp_path_factory.mktemp("predict")
    torch.manual_seed(1)  # whose masks are neither empty nor full
    store.save(micro_model("micro_csa"), described("micro_csa"), place / "clicks")
    classes = read_preset("micro_fcn", "semantic")
    store.save(build(classes), classes, place / "classes")
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
    """The predictor's answer."""
    predictor = probseg.Predictor.from_pretrained("./clicks")
    predictor.set_image(np.asarray(Image.open(f"photos/{name}")))
    return predictor.predict(clicks, box=box)


def test_a_photograph(here):
    prompts = ("--click=20,30", "--click=3,4,-", "--box=10,12,40,44")
    given = ("photos/p0.png", *prompts, "--output")
    expected = predicted("p0.png", CLICKS, BOX).binary
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


def test_a_folder_has_the_masks_of_the_predictor(here, capsys, monkeypatch):
    formats = "--format=masks,coco,overlays"
    given = ("photos", "--prompts=prompts.json", formats, "--output", here, "--batch-size=1")
    assert predict(*given) == 0
    shown = capsys.readouterr().out
    assert "6 photographs: 6 done, 0 failed\n" in shown
    assert "12 objects: 12 done, 0 failed\n" in shown
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
        answer = predicted(name, *([], (5 + i, 6, 40, 40)) if left else (clicks,))
        mask = answer.binary
        assert entry["score"] == pytest.approx(answer.quality, abs=1e-3)
        np.testing.assert_array_equal(coco_mask.decode(entry["segmentation"]), mask)
        number = 1 if left else 2
        file = here / "masks" / f"p{i}_{number}.png"
        np.testing.assert_array_equal(read_labels(file) > 0, mask)
    assert {path.name for path in (here / "overlays").iterdir()} == set(names.values())
    before = {path: path.stat().st_mtime_ns for path in (here / "masks").iterdir()}
    assert predict(*given) == 0
    assert "6 done (6 of them before)" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (here / "masks").iterdir()}
    monkeypatch.setattr("probseg.cli.predict_photographs.__version__", "another")
    assert predict(*given) == 0
    assert "6 done, 0 failed" in capsys.readouterr().out
    masks = {path.name for path in (here / "masks").iterdir()}
    for formats in ("overlays", "coco"):  # results of other formats stay
        assert predict(*given[:2], f"--format={formats}", "--output", here) == 0
        assert {path.name for path in (here / "masks").iterdir()} == masks
    assert {path.name for path in (here / "overlays").iterdir()} == set(names.values())


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
    np.testing.assert_array_equal(written, predicted("p1.png", CLICKS).binary)
    prompts.write_text("\n".join(rows[:-1]))
    (masks / "p0_2.png").unlink()
    capsys.readouterr()
    assert predict(*given) == 0
    assert "3 done (1 of them before)" in capsys.readouterr().out
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
    request = Request(ids_of=tmp_path / "a.json")
    source, results = tmp_path / "out" / "annotations.json", tmp_path / "results.json"
    convert(source, results, ("coco", "coco-results"), request)
    found = COCO(tmp_path / "a.json").loadRes(str(results))
    assert [one["score"] for one in found.anns.values()] == [
        e["score"] for e in made["annotations"]
    ]


def test_failures_are_listed_and_the_rest_is_done(here, capsys):
    prompts = {
        "p0.png": [{"box": [5, 6, 40, 40]}, {"box": [5, 6, 70, 40]}, {"clicks": [[64, 3]]}],
        "absent.png": [{"clicks": [[1, 1]]}],
        "p1.png": [{"clicks": [[1, 1]]}],
        "p2.png": [],
    }
    (here / "p.json").write_text(json.dumps(prompts))
    given = ("photos", "--prompts", here / "p.json", "--output", here / "out")
    for before in ("", " (1 of them before)"):
        assert predict(*given) == 1
        shown = capsys.readouterr().out
        assert f"7 photographs: 1 done{before}, 2 failed, 4 skipped\n" in shown
        assert "5 objects: 2 done, 3 failed\n" in shown
        assert "skipped, as they have no prompt: p2.png, p3.png, p4.png, ...\n" in shown
        failed = [
            line.split(":")[1].strip() for line in shown.splitlines() if line.startswith("failed")
        ]
        assert failed == ["p0.png, object 2", "p0.png, object 3", "absent.png"]
    names = {path.name for path in (here / "out" / "masks").iterdir()}
    assert names == {"p0_1.png", "p1_1.png"}


def coco_prompts(categories, annotations):
    """The text of a COCO file with boxes on p0.png."""
    image = {"id": 1, "file_name": "p0.png", "height": 48, "width": 64}
    boxed = [{"id": n, "image_id": 1, "bbox": [9, 9, 30, 30], **own} for n, own in annotations]
    return json.dumps({"images": [image], "categories": categories, "annotations": boxed})


CAR, TWIN = {"id": 3, "name": "car"}, {"id": 9, "name": "car"}


@pytest.mark.parametrize(
    ("categories", "annotations", "named"),
    [
        ([CAR, TWIN], [{"category_id": 3}, {"category_id": 9}], {3: "car", 9: "car"}),
        ([CAR], [{"category_id": 3}, {}], {3: "car", 4: "object"}),
        ([CAR], [{"category_id": None}, {"category_id": 3}], {3: "car", 4: "object"}),
        ([{"id": 7, "name": "object"}], [{}, {"category_id": 7}], {7: "object"}),
        ([], [{}, {}], {1: "object"}),
        ([CAR, TWIN], [{"category_id": 3}, {"iscrowd": 1}], {3: "car", 9: "car"}),
    ],
)
def test_categories_stay_what_they_are(here, capsys, categories, annotations, named):
    text = coco_prompts(categories, [*enumerate(annotations)])
    (here / "p.json").write_text(text)
    given = ("photos", "--prompts", here / "p.json", "--format=coco", "--output", here / "out")
    assert predict(*given) == 0
    made = json.loads((here / "out" / "annotations.json").read_text())
    assert {entry["id"]: entry["name"] for entry in made["categories"]} == named
    kept = [entry for entry in annotations if not entry.get("iscrowd")]
    unnamed = next((key for key, name in named.items() if name == "object"), None)
    wanted = [unnamed if e.get("category_id") is None else e["category_id"] for e in kept]
    assert [entry["category_id"] for entry in made["annotations"]] == wanted
    crowds = len(annotations) - len(kept)
    assert f"{len(kept)} done, 0 failed{f', {crowds} skipped' if crowds else ''}\n" in (
        capsys.readouterr().out
    )


def test_prompts_are_checked_before_a_network_is_loaded(here, capsys, monkeypatch):
    loaded = "probseg.cli.predict_photographs._load_network"
    monkeypatch.setattr(loaded, lambda options: pytest.fail("loaded"))
    (here / "p.json").write_text(coco_prompts([CAR], [(1, {"category_id": 5})]))
    given = ("photos", "--prompts", here / "p.json", "--format=coco", "--output", here / "out")
    shown = usage_error(capsys, "predict", *given, "--model", "./clicks")
    assert "p.json" in shown
    assert "annotation 1 is of the category 5" in shown
    assert not (here / "out").exists()


def test_a_label_may_be_on_any_row_of_its_object(here):
    (here / "p.csv").write_text("image,x,y,label\np0.png,9,9,\np0.png,20,30,cat\n")
    given = ("photos", "--prompts", here / "p.csv", "--format=coco", "--output", here / "out")
    assert predict(*given) == 0
    made = json.loads((here / "out" / "annotations.json").read_text())
    assert made["categories"] == [{"id": 1, "name": "cat"}]


def test_files_that_no_prediction_wrote_are_not_replaced(here, capsys):
    given = ("photos", "--prompts=prompts.json", "--format=masks,overlays", "--output", here)
    for own in ("masks/p1_2.png", "overlays/p3.png"):
        (here / own).parent.mkdir()
        (here / own).write_bytes(b"drawn by hand")
        assert own in usage_error(capsys, "predict", *given, "--model", "./clicks")
        assert (here / own).read_bytes() == b"drawn by hand"
        assert [path for path in here.rglob("*.*") if path.is_file()] == [here / own]
        (here / own).unlink()
    assert predict(*given) == 0
    photo = save(draw_scene(48, 64)[0], here / "photo.png")
    before = photo.read_bytes()
    itself = (photo, "--click=9,9", "--output", here / "masks" / ".." / "photo.png")
    assert "itself" in usage_error(capsys, "predict", *itself, "--model", "./clicks")
    assert photo.read_bytes() == before


def test_a_folder_in_which_another_command_is_at_work_is_refused(here, capsys, monkeypatch):
    monkeypatch.setattr(paths, "PATIENCE", 0.1)
    given = ("photos", "--prompts=prompts.json", "--output", here)
    with paths.alone_in(here, "annotate"):
        message = usage_error(capsys, "predict", *given, "--model", "./clicks")
    assert message.startswith(f"{here}: `probseg annotate`, process {os.getpid()} on ")
    assert not (here / "masks").exists()
    assert predict(*given) == 0


def test_annotations_of_other_work_are_not_replaced(here, capsys):
    def asked(file, formats="coco"):
        (here / "p.json").write_text(json.dumps({file: [{"clicks": [[20, 30]]}]}))
        out = ("--format", formats, "--output", here / "out")
        return ("photos", "--prompts", here / "p.json", *out)

    path = here / "out" / "annotations.json"
    path.parent.mkdir()
    path.write_text("drawn by hand")
    assert "from no prediction" in usage_error(
        capsys, "predict", *asked("p0.png"), "--model=./clicks"
    )
    path.unlink()
    assert predict(*asked("p0.png")) == predict(*asked("p0.png")) == 0
    before = path.read_bytes()
    shown = usage_error(capsys, "predict", *asked("p1.png"), "--model=./clicks")
    assert "1 photograph not among these, 'p0.png'" in shown
    assert predict(*asked("p1.png", "masks")) == 0
    assert "annotations.json: was there before, and has not been" in capsys.readouterr().out
    assert path.read_bytes() == before


@pytest.mark.parametrize("record", ["", "{", "[]", '{"files": []}'])
def test_a_record_that_something_else_has_changed_is_none(here, capsys, record):
    (here / "p.json").write_text(json.dumps({"p0.png": [{"clicks": [[20, 30]]}]}))
    given = ("photos", "--prompts", here / "p.json", "--output", here / "out", "--model=./clicks")
    assert command("predict", *given) == 0
    (here / "out" / ".probseg" / "p0.png.json").write_text(record)
    assert "not from these photographs" in usage_error(capsys, "predict", *given)
    (here / "out" / "masks" / "p0_1.png").unlink()
    assert command("predict", *given) == 0


def test_results_in_one_folder_do_not_remove_each_other(here, capsys):
    """The first mask of a.png had the name that is now that of the class map of a_1.png."""
    for name in ("a", "a_1"):
        save(draw_scene(48, 64)[0], here / "photos" / f"{name}.png")
    (here / "photos" / "a_1.png").rename(here / "away.png")
    (here / "p.json").write_text(json.dumps({"a.png": [{"clicks": [[20, 30]]}]}))
    given = (here / "photos", "--output", here / "out")
    assert predict(*given, "--prompts", here / "p.json") == 0
    (here / "away.png").rename(here / "photos" / "a_1.png")
    assert predict(*given, model="./classes") == 0
    assert "2 photographs: 2 done, 0 failed\n" in capsys.readouterr().out
    assert {path.name for path in (here / "out" / "masks").iterdir()} == {"a.png", "a_1.png"}
    (here / "photos" / "a.png").write_bytes(b"no photograph")
    assert predict(*given, model="./classes") == 1
    assert "2 photographs: 1 done (1 of them before), 1 failed\n" in capsys.readouterr().out
    assert {path.name for path in (here / "out" / "masks").iterdir()} == {"a_1.png"}


def test_answers_without_a_pixel_are_failures(here, capsys, monkeypatch):
    def nothing(loop, states):
        return [s._replace(answer=ProbabilityMap.zero(s.photograph.size)) for s in states]

    monkeypatch.setattr("probseg.interact.InteractionLoop.answer", nothing)
    (here / "p.json").write_text(json.dumps({"p0.png": [{"clicks": [[20, 30]]}]}))
    given = ("photos", "--prompts", here / "p.json", "--output", here / "out")
    assert predict(*given) == 1
    shown = capsys.readouterr().out
    assert "6 photographs: 0 done, 1 failed, 5 skipped\n" in shown
    assert "failed: p0.png, object 1: the answer has no pixel" in shown
    assert not list((here / "out").rglob("*.png"))
    one = ("photos/p0.png", "--click=20,30", "--output", here / "mask.png", "--model=./clicks")
    assert "no pixel" in usage_error(capsys, "predict", *one)
    assert not (here / "mask.png").exists()


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
    done = {
        path: path.stat().st_mtime_ns
        for path in records.glob("[0-9]*.json")
        if json.loads(path.read_text())["digest"]  # the one that was begun has none
    }
    assert len(done) < 60
    assert predict(*given, model=f"{place}/clicks") == 0
    assert f"60 done ({len(done)} of them before)" in capsys.readouterr().out
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
    output = separately(Path.cwd(), "predict", *given, *many, HOME="/dev/null")
    assert "MEMBER: 2/2" in output
    assert output.count(f"{photos} done, 0 failed") == 1
    files = {p.relative_to(here / "alone"): p for p in (here / "alone").rglob("*.*")}
    for name, path in files.items():
        if path.is_file() and name.name != ".probseg.lock":
            assert (here / "shared" / name).read_bytes() == path.read_bytes(), name


def test_wrong_usage_is_refused_before_a_network_is_loaded(here, capsys, monkeypatch):
    monkeypatch.setattr(
        "probseg.cli.predict_photographs._load_network", lambda options: pytest.fail("loaded")
    )
    out = ("--output", here / "m.png")

    def refused(*arguments, model="./clicks"):
        return usage_error(capsys, "predict", *arguments, "--model", model)

    assert "absent.jpg" in refused("absent.jpg", *out, "--click=1,1")
    assert "--click" in refused("photos/p0.png", *out)
    assert "(64.0, 1.0)" in refused("photos/p0.png", *out, "--click=64,1")
    assert "box" in refused("photos/p0.png", *out, "--box=0,0,99,9")
    assert "--box" in refused("photos/p0.png", *out, "--box=0,0,9")
    assert "one box" in refused("photos/p0.png", *out, "--box=0,0,9,9", "--box=9,9,20,20")
    for wrong in ("1", "1,1,1"):
        assert "--click: must be X,Y" in refused("photos/p0.png", *out, f"--click={wrong}")
    assert "--output" in refused("photos/p0.png", "--output", here / "m.jpg", "--click=1,1")
    assert "--format" in refused("photos/p0.png", *out, "--click=1,1", "--format=svg")
    assert "--prompts" in refused("photos", "--output", here)
    assert "--prompts" in refused("photos", "--output", here, "--click=1,1")
    assert "x.json" in refused("photos", "--output", here, "--prompts", here / "x.json")
    assert "semantic" in refused("photos/p0.png", *out, "--click=1,1", model="./classes")
    assert "micro" in refused("photos/p0.png", *out, "--click=1,1", model="micro_cas")


def test_of_two_photographs_of_one_stem_the_second_is_refused_by_name(here, capsys):
    """Their masks would have one name."""
    for name in ("cat.jpg", "cat.png", "dog.png"):
        save(draw_scene(48, 64)[0], here / "photos" / name)
    prompts = {name: [{"box": [5, 6, 40, 40]}] for name in ("cat.png", "dog.png", "cat.jpg")}
    (here / "prompts.json").write_text(json.dumps(prompts))
    for options in (["--prompts", here / "prompts.json"], []):
        output = here / f"out{len(options)}"
        given = (here / "photos", *options, "--output", output)
        assert predict(*given, model="./clicks" if options else "./classes") == 1
        printed = capsys.readouterr().out
        assert f"{output}: 3 photographs: 2 done, 1 failed\n" in printed
        assert "failed: cat.png: has the same stem as cat.jpg; rename one of them\n" in printed
        assert len([*(output / "masks").iterdir()]) == 2
    refused = [photo.name for photo in list_photographs(here / "photos") if photo.error]
    assert refused == ["cat.png"]


@pytest.mark.parametrize("failing", ["p0", "p5"])  # the last batch has none behind it
def test_what_cannot_be_written_ends_the_command(here, monkeypatch, failing, capsys):
    written = png.write_binary

    def full(path, mask):
        if path.name.startswith(failing):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        written(path, mask)

    monkeypatch.setattr(png, "write_binary", full)
    given = ("photos", "--prompts=prompts.json", "--output", here / "out", "--batch-size=1")
    assert command("predict", *given, "--model=./clicks") == 2
    assert f"{failing}_1.png: No space left on device (" in capsys.readouterr().err
    assert not (here / "out" / "masks" / f"{failing}_1.png").exists()
    monkeypatch.setattr(png, "write_binary", written)
    assert predict(*given) == 0
