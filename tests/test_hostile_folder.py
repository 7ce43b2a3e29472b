"""All verbs agree about every file of a hostile folder, and none is left out without a word."""

import csv
import json
import shutil
from pathlib import Path, PurePosixPath

import pytest
import torch

from probseg.annotate.answers import ModelHost
from probseg.annotate.photographs import read_readable
from probseg.annotate.sessions import Sessions
from probseg.convert import READERS, WRITERS, Request, convert
from probseg.convert.parts import IMAGES, OBJECTS
from probseg.data import ImageMaskFolder
from probseg.data.checks import check_folder
from probseg.errors import DataError
from probseg.models import build, read_preset
from probseg.zoo import store
from support.fakes import micro_model, save
from support.hostile import (
    BARE,
    EMPTY,
    NESTED,
    NO_PICTURE,
    ONLY_SIZES,
    REFUSED,
    STRANDED,
    USED,
    files_in,
    scene,
    squares,
    write_hostile,
)
from support.micro import described
from support.runs import MICRO, QUIET, command, finished, folder_fit

SHORT = ("--evaluation.trials=1", "--evaluation.max_clicks=1", "--data.eval_batch_size=64")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return write_hostile(tmp_path_factory.mktemp("hostile") / "mine")


@pytest.fixture(scope="module")
def mended(hostile, tmp_path_factory):
    """A copy without the files that `data check` refuses, until it refuses none."""
    root = tmp_path_factory.mktemp("mended") / "mine"
    shutil.copytree(hostile.root, root, symlinks=True)
    while refused := named(root, serious=True):
        for file in refused:
            path = root / file
            path.rmdir() if path.is_dir() else path.unlink()
    return root


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def named(root, *, serious):
    """Files that `data check` names as problems, or as notes."""
    problems = check_folder(root).problems
    return {
        str(Path(problem.path).relative_to(root))
        for problem in problems
        if problem.serious == serious
    }


def status(*arguments):
    try:
        return command(*arguments)
    except SystemExit as stop:
        return stop.code


def objects_in(hostile):
    return sum(verdict.objects for verdict in hostile.verdicts.values())


def test_check(hostile, capsys):
    assert sorted(files_in(hostile.root)) == sorted(hostile.verdicts)
    assert status("data", "check", hostile.root, "--json", "report.json") == 1
    (report,) = json.loads(Path("report.json").read_text())["reports"]
    found = {True: set(), False: set()}
    for problem in report["problems"]:
        found[problem["serious"]].add(str(Path(problem["path"]).relative_to(hostile.root)))
    assert found[True] == {*hostile.of(REFUSED)}
    unused = {*hostile.of(EMPTY), *hostile.of(BARE), *hostile.of(NESTED)}
    unused -= {"images/nothing.jpg"}  # its mask is named
    partly = {*hostile.of(STRANDED, "images"), *hostile.of(REFUSED, "images")}  # without a mask
    assert unused <= found[False] <= unused | partly
    assert report["objects"] == objects_in(hostile)
    read = [file for kind in (USED, BARE, STRANDED) for file in hostile.of(kind, "images")]
    assert report["photos"] == len(read)
    assert f"{report['objects']} objects on {report['with_objects']} of" in capsys.readouterr().out


def alone(hostile, file, root):
    """A folder with one refused file, its partners, and a good pair."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    scene(0).save(root / "images" / "good.png")
    save(squares(), root / "masks" / "good.png")
    for other in hostile.verdicts:
        if Path(other).stem == Path(file).stem:
            path = hostile.root / other
            if path.is_dir():
                shutil.copytree(path, root / other)
            else:
                shutil.copy(path, root / other, follow_symlinks=False)
    return root


def test_each_refused_file_is_refused_by_name(hostile, here, caplog):
    """Trainings and conversions name the first such files; so each is alone with good ones."""
    counted = "2 images: ['1 image in formats of photographs that are not read']"

    def fitted(root):
        assert list(ImageMaskFolder(root))
        return caplog.text

    def converted(root):
        request = Request(root / "images")
        ledger = convert(root, root.with_suffix(".json"), ("png", "coco"), request)
        assert not +ledger.changes
        return f"{ledger.found[IMAGES]} images: {ledger.lines()}"

    for number, file in enumerate(hostile.of(REFUSED)):
        root, name = alone(hostile, file, here / str(number)), Path(file).name
        said = []
        for use in (fitted, converted):
            caplog.clear()
            try:
                said.append(use(root))
            except DataError as error:
                said.append(str(error))
        assert name in said[0], file
        sizes_alone = file in ONLY_SIZES and "[]" in said[1]
        assert name in said[1] or said[1] == counted or sizes_alone, file


def test_fit(hostile, mended, caplog, monkeypatch):
    monkeypatch.setattr("probseg.data.folder.NAMED", 1000)
    run = finished(*folder_fit(mended, "--trainer.fast_dev_run=true"))
    train, val = (sum(map(len, part)) for part in (run.datamodule.train, run.datamodule.val))
    assert train + val == objects_in(hostile)
    said = caplog.text
    left_out = [file for kind in (BARE, EMPTY, NESTED) for file in hostile.of(kind)]
    for file in [*left_out, *hostile.of(STRANDED, "images")]:
        if (mended / file).exists() and file != "images/nothing.jpg":
            assert Path(file).name in said


def test_test(hostile, mended, here):
    config = ("--config", "configs/experiment/folder.yaml", *MICRO, *QUIET, *SHORT)
    assert status("test", "--folder", mended, *config, "--seed_everything=1") == 0
    (rows,) = here.rglob("objects.csv")
    with rows.open(newline="", encoding="utf-8") as file:
        assert len({row["object"] for row in csv.DictReader(file)}) == objects_in(hostile)


def test_predict(hostile, here, monkeypatch, capsys):
    monkeypatch.setattr("probseg.cli.predict_photographs.LISTED_FAILURES", 1000)
    torch.manual_seed(1)
    store.save(micro_model("micro_csa"), described("micro_csa"), here / "clicks")
    store.save(
        build(read_preset("micro_fcn", "semantic")),
        read_preset("micro_fcn", "semantic"),
        here / "classes",
    )
    images = [
        Path(file).name
        for file in hostile.verdicts
        if file.startswith("images/") and file not in (*hostile.of(NO_PICTURE), *hostile.of(NESTED))
    ]
    bare = {Path(file).name for file in hostile.of(BARE, "images")}
    entries = {name: [{"clicks": [[0, 0]]}] for name in images if name not in bare}
    Path("p.json").write_text(json.dumps(entries), encoding="utf-8")
    for model, options, skipped in (
        ("./classes", (), 0),
        ("./clicks", ("--prompts", "p.json"), len(bare)),
    ):
        given = (hostile.root / "images", *options, "--output", f"of{model}", "--model", model)
        assert status("predict", *given) == 1
        lines = capsys.readouterr().out.splitlines()
        failed = [line.removeprefix("failed: ") for line in lines if line.startswith("failed: ")]
        unread = {line.split(": ")[0] for line in failed if "the answer has no pixel" not in line}
        assert unread == {Path(file).name for file in hostile.of(REFUSED, "images")}
        done = len(images) - len(failed) - skipped
        total = f"{len(images)} photographs: {done} done, {len(failed)} failed"
        assert "not looked into, as they are folders: nested" in lines
        assert lines[0].endswith(total + (f", {skipped} skipped" if skipped else ""))


def test_annotate(hostile, here):
    root = here / "mine"
    shutil.copytree(hostile.root, root, symlinks=True)
    sessions = Sessions(root, None, ModelHost())
    refused = {name if "/" in name else f"images/{name}" for name, _ in sessions.files.refused()}
    shown, objects, said = set(), 0, ""
    for photograph in sessions.photographs:
        try:
            read_readable(photograph)
            objects += len(sessions.describe(photograph)["objects"])
            shown.add(f"images/{photograph.name}")
        except DataError as error:
            said += f"{photograph.name}: {error}\n"
    sessions.close()
    assert objects == objects_in(hostile) + 1  # in the folder inside of it
    nested = {file for file in shown if Path(file).parent.as_posix() in hostile.of(NESTED)}
    assert {*hostile.of(USED, "images"), *hostile.of(BARE)} <= shown
    assert nested
    usable = {file for kind in (USED, BARE, STRANDED) for file in hostile.of(kind, "images")}
    assert shown - nested <= usable
    unnamed = {file for file in {*hostile.of(REFUSED)} - refused if Path(file).name not in said}
    assert unnamed <= {"masks/phone.png"}  # with its photograph


def test_convert_in_all_directions(hostile, mended, here, capsys):
    images, count = mended / "images", objects_in(hostile) + 1  # in the folder inside of it
    options = ("--from=png", "--to=coco", f"--images={images}")
    assert status("data", "convert", mended, "first.json", *options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{count} objects of")
    others = [file for file in hostile.of(NO_PICTURE, "masks") if "/." not in file]
    assert lines[1:] == [
        "lost: 1 object in masks without a pixel",
        f"lost: files that are not read: {len(others)}",
    ]
    request = Request(images, storage=PurePosixPath("photographs"))
    with_truth = [name for name in WRITERS if name != "coco-results"]  # which need one
    for source in with_truth:
        reader = next(name for name in READERS if source.startswith(name))
        made = convert(mended, here / source, ("png", source), request)
        assert (made.found[OBJECTS], made.written[OBJECTS]) == (count + 1, count)
        for target in with_truth:
            way = here / source, here / f"{source}-{target}", (reader, target)
            ledger = convert(*way, request)
            assert ledger.found[OBJECTS] == ledger.written[OBJECTS] == count, way
