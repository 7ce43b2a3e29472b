import json
import re
import shutil

import numpy as np
import pytest

from probseg.data import GrabCut
from probseg.data.published import PUBLISHED
from support.fakes import draw_scene, save, write_folder, write_grabcut, write_sbd
from support.rows import each
from support.runs import command, usage_error
from support.sites import serving


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a data folder in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


def words(capsys):
    return " ".join(capsys.readouterr().out.split())


def with_problems(*arguments):
    with pytest.raises(SystemExit, match=r"^1$"):
        command("data", *arguments)


def test_list(here, capsys):
    write_grabcut(here / "data" / "grabcut")
    (here / "data" / "Berkeley").mkdir()
    assert command("data", "list") == 0
    rows = {}
    for line in capsys.readouterr().out.splitlines():
        if (name := line.split()[:1]) and name[0] in PUBLISHED:
            rows[name[0]] = line
    assert set(rows) == set(PUBLISHED)
    for name, there in (("GrabCut", "yes"), ("Berkeley", "in part"), ("DAVIS", "no")):
        assert re.search(rf" {there}  ", rows[name]), rows[name]
    assert " 11 MB " in rows["GrabCut"]
    assert " 50 " in rows["GrabCut"]
    assert "by hand" in rows["DAVIS585"]


def test_fetch_and_check(here, capsys):
    shutil.make_archive("GrabCut", "zip", write_grabcut(here / "packed" / "GrabCut").parent)
    with serving() as site:
        site.files["/GrabCut.zip"] = (here / "GrabCut.zip").read_bytes()
        site.cuts = [1000]
        assert command("data", "fetch", "grabcut", "--source", f"{site.url}/GrabCut.zip") == 0
    shown = words(capsys)
    assert "not verified" in shown
    assert f"unpacked GrabCut.zip into {here / 'data' / 'GrabCut'}" in shown
    assert len(GrabCut()) == 3
    with_problems("check", "GrabCut")
    shown = words(capsys)
    assert "3 objects, but the complete set has 50" in shown
    assert "3 objects on 3 photographs, 2 problems, 0 notes" in shown
    assert command("data", "fetch", "GrabCut") == 0
    assert "--force" in words(capsys)


def test_check_of_a_folder(here, capsys):
    (here / "data").mkdir()
    write_folder(here / "mine", images=3)
    assert command("data", "check", "mine") == 0
    assert "3 objects on 3 photographs, 0 problems, 0 notes" in words(capsys)
    (here / "mine" / "masks" / "photo1.png").write_bytes(b"broken")
    (here / "mine" / "masks" / "photo2.png").rename(here / "mine" / "masks" / "stranger.png")
    with_problems("check", "mine", "--json", "problems.json")
    shown = words(capsys)
    assert "mine/masks/photo1.png" in shown
    assert "mine/masks/stranger.png" in shown
    assert "1 object on 1 of 3 photographs, 2 problems, 1 note" in shown
    (report,) = json.loads((here / "problems.json").read_text())["reports"]
    assert (report["objects"], report["photos"], report["with_objects"]) == (1, 3, 1)
    assert [problem["serious"] for problem in report["problems"]] == [True, True, False]
    (here / "mine").rename(here / "data" / "yours")
    with_problems("check", "yours")


def test_long_tables_are_cut_but_not_files(here, capsys):
    write_folder(here / "mine", images=2)
    small = np.zeros((48, 64), np.uint8)
    for number in range(70):
        small[2 * (number // 10), 3 * (number % 10)] = number + 1
    save(small, here / "mine" / "masks" / "photo1.png")
    with_problems("check", "mine", "--json", "problems.json")
    shown = words(capsys)
    assert "20 more; --json FILE has them all" in shown
    (report,) = json.loads((here / "problems.json").read_text())["reports"]
    assert len(report["problems"]) == 70


def test_check_of_splits(here, capsys):
    write_sbd(here / "data" / "SBD")
    with_problems("check", "SBD")
    shown = words(capsys)
    assert "SBD train in" in shown
    assert "SBD val in" in shown
    with_problems("check", "sbd", "--split", "val")
    assert "SBD train in" not in words(capsys)
    assert command("data", "check", "SBD", "--split", "train_noval") == 0
    write_sbd(here / "elsewhere")
    assert command("data", "check", "SBD", "--split", "train_noval", "--root", "elsewhere") == 0
    assert "SBD train_noval in elsewhere: 4 objects" in words(capsys)


def test_a_path_that_ends_in_the_name_of_a_data_set(here, capsys):
    write_grabcut(here / "sets" / "GrabCut")
    with_problems("check", "sets/GrabCut")
    assert "the complete set has 50" in words(capsys)
    write_folder(here / "sets" / "davis")
    assert command("data", "check", "sets/davis") == 0
    assert "folder in sets/davis" in words(capsys)


def test_photographs_in_both(here, capsys):
    write_sbd(here / "data" / "SBD")
    image, labels = draw_scene(seed=11)
    save(image, here / "mine" / "images" / "new.png")
    save(labels, here / "mine" / "masks" / "new.png")
    arguments = ("check", "mine", "--against", "SBD", "--against-split", "val")
    assert command("data", *arguments) == 0
    assert "0 of 1 photograph of mine are among the 3 of SBD" in words(capsys)
    copy = here / "data" / "SBD" / "img" / "2008_000201.jpg"
    shutil.copy(copy, here / "mine" / "images" / "copied.jpg")
    with_problems(*arguments, "--json", "shared.json")
    shown = words(capsys)
    assert "copied.jpg" in shown
    assert "1 of 2 photographs of mine" in shown
    (leak,) = json.loads((here / "shared.json").read_text())["shared"]
    assert leak["train"].endswith("copied.jpg")
    assert leak["test"].endswith("2008_000201.jpg")
    assert leak["found"] == "content"
    assert leak["correlation"] > 0.97


@each(
    ("arguments", "part"),
    [
        (["check", "nowhere"], "unknown data set or folder 'nowhere'"),
        (["check", "GrabCut"], "GrabCut was not found in"),
        (["check", "mine", "--split", "val"], "--split val"),
        (["check", "mine", "--root", "x"], "--root x"),
        (["check", "GrabCut", "--split", "val"], "--split val"),
        (["check", "SBD", "--split", "vla"], "unknown split of SBD 'vla'"),
        (["check", "mine", "--against-root", "x"], "--against-root"),
        (["check", "mine", "--against", "nowhere"], "unknown data set or folder 'nowhere'"),
        (["check", "mine", "--json", "no/x.json"], "--json"),
        (["check"], "probseg data check --help"),
        (["chekc"], "probseg data --help"),
        (["fetch", "grabcutt"], "'GrabCut'"),
        (["fetch", "DAVIS585"], "ClickSEG"),
        (["fetch", "GrabCut", "--sha256", "abc"], "--sha256"),
        (["fetch", "GrabCut", "--source", "a.zip", "--sha256", "0" * 64], "a.zip: sha256 is"),
        (["fetch", "GrabCut", "--source", "a.zip", "--root", "file/x"], "file"),
    ],
)
def test_wrong_usage(arguments, part, here, capsys):
    if not (here / "file").exists():
        write_folder(here / "mine")
        (here / "file").write_text("in the way")
        shutil.make_archive("a", "zip", write_grabcut(here / "packed" / "GrabCut").parent)
    assert part in usage_error(capsys, "data", *arguments)
