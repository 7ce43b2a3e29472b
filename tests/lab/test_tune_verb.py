"""The verb tune, on a small network and drawn data."""

import json
import re

import pytest
import yaml

import probseg.lab.tuning as verb
import probseg.zoo.index as index
import probseg.zoo.store as store
from probseg.attention import Adaptation
from probseg.data import DATASETS
from probseg.lab.tuning import Trial, Tuning
from probseg.metrics import Interval
from probseg.models import build, read_preset
from support.fakes import (
    micro_model,
    write_berkeley,
    write_bsds500,
    write_folder,
    write_grabcut,
    write_lvis,
    write_sbd,
)
from support.micro import described
from support.rows import each
from support.runs import QUIET, command, usage_error
from support.zoos import write_run

pytestmark = pytest.mark.usefixtures("undrawn")

FEW = (
    *("--key-iterations", 1, "--key-priors", 0, 1, "--value-iterations", 1, "--value-priors", 10),
    *("--click-iterations", 2, "--click-priors", 3, 30),
)
TRAINED = "micro_csa_bp5"
OBJECTS = ("tune", "mine/", "--data", "objects")
WRITERS = {"SBD": write_sbd, "LVIS": write_lvis, "BSDS500": write_bsds500}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a model folder, a folder of objects and data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "data"))
    store.save(micro_model(TRAINED), described(TRAINED), tmp_path / "mine")
    write_folder(tmp_path / "objects", images=3, objects=2, size=(24, 32))
    return tmp_path


def refused(capsys, search, *arguments):
    message = usage_error(capsys, "tune", *arguments)
    assert not search, "refused before the search"
    return message


def found(interval):
    """What a search returns that prefers one iteration of the keys."""
    best = Trial(Adaptation(1, 0.5), 2.0, 0.25, interval)
    return Tuning((Trial(Adaptation(), 3.0, 0.5, None), best), best)


@pytest.fixture
def search(monkeypatch):
    """Keeps what the search is called with, in place of searching."""
    calls = []

    def tune(*given, **options):
        calls.append((*given, options))
        return found(Interval(-1.5, -0.5))

    monkeypatch.setattr(verb, "tune", tune)
    return calls


def test_a_search_and_its_file(here, capsys):
    assert command(*OBJECTS, "--objects", 2, *FEW) == 0
    printed = capsys.readouterr().out
    first, *lines = printed.splitlines()
    total = int(re.search(r"^(\d+) evaluations, each of 2 runs", printed, re.MULTILINE)[1])
    progress = re.findall(r"\[(\d+) of (\d+), \d+ s left\]", printed)
    assert progress == [(str(number), str(total)) for number in range(1, total + 1)]
    assert f"[{total} of {total}, 0 s left]" in printed
    assert "mine/ on 2 objects of folder, protocol gabbur2021" in first
    tried = [line.split(":")[0].strip() for line in lines if line.startswith("  ")][:6]
    assert tried[:4] == [
        "as trained",
        "key_iterations 0",
        "key_iterations 1, key_prior 0",
        "key_iterations 1, key_prior 1",
    ]
    assert tried[4].endswith("value_iterations 0")
    assert tried[5].endswith("value_iterations 1, value_prior 10")
    files = sorted(path.name for path in (here / "mine").iterdir())
    assert files == [index.CHECKSUMS, store.CONFIG, store.WEIGHTS], "a zoo stays as it is"
    text = (here / "adaptation.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Found by `probseg tune` for mine/ on 2 objects of folder")
    assert Adaptation(**yaml.safe_load(text)) == Adaptation(), "random weights segment nothing"


def test_a_test_takes_the_file_that_was_written(here, search):
    assert command(*OBJECTS, "--output", "found.yaml") == 0
    assert not (here / "adaptation.yaml").exists()
    data = ("--data.test=probseg.data.ImageMaskFolder", "--data.test.root=objects")
    short = ("--evaluation.max_clicks=1", "--evaluation.pictures=0")
    options = ("--model.model.name=mine/", "--evaluation.protocols=[ritm]", *data, *short, *QUIET)
    config = ("--config", "configs/experiment/grabcut.yaml")
    assert command("test", *config, *options, "--evaluation.adaptation", "found.yaml") == 0
    (results,) = here.glob("runs/grabcut/version_0/test/ritm/results.json")
    adaptation = json.loads(results.read_text())["metadata"]["adaptation"]
    assert (adaptation["key_iterations"], adaptation["key_prior"]) == (1, 0.5)


def test_runs_and_checkpoints_are_models(here, search):
    run = write_run(here / "run", micro_model(TRAINED).state_dict(), described(TRAINED))
    for name in (run, run / "checkpoints" / "last.ckpt"):
        assert command("tune", name, "--data", "objects") == 0
    assert len(search) == 2


def test_everything_that_was_asked_for_reaches_the_search(here, search):
    options = ("--protocol", "human", "--trials", 3, "--seed", 9, "--batch-size", 5)
    assert command(*OBJECTS, "--objects", 3, *options, *FEW) == 0
    ((model, samples, protocol, grid, given),) = search
    assert not model.training
    assert [sample.name for sample in samples] == ["photo0#1", "photo1#1", "photo2#1"], "spread"
    assert (protocol.name, protocol.trials) == ("human", 3)
    values = [list(values) for values in vars(grid).values()]
    assert values == [[1], [0, 1], [1], [10], [2], [3, 30]]
    assert (given["seed"], given["device"], given["batch_size"]) == (9, "cpu", 5)
    assert command(*OBJECTS, "--protocol", "ritm", "--trials", 7) == 0
    assert search[1][2].trials == 1, "no chance in this protocol"
    assert len(search[1][1]) == 6, "all objects, fewer than --objects"


def test_a_part_of_a_folder_can_be_chosen(here, search):
    (here / "objects" / "two.txt").write_text("photo0\nphoto1\n", encoding="utf-8")
    assert command(*OBJECTS, "--split", "two.txt") == 0
    assert command(*OBJECTS, "--split", "two.txt", "--held-out", 3) == 0
    photos = [{sample.photo for sample in samples} for _, samples, *_ in search]
    assert photos == [{"photo0", "photo1"}, {"photo0"}]


@pytest.mark.parametrize(
    ("interval", "better"),
    [
        (Interval(-1.5, -0.5), True),
        (Interval(-1.5, 0.0), False),
        (Interval(float("nan"), float("nan")), False),
        (None, False),
    ],
)
def test_a_difference_that_may_be_chance_is_called_so(here, interval, better, monkeypatch, capsys):
    monkeypatch.setattr(verb, "tune", lambda *given, **options: found(interval))
    assert command(*OBJECTS) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("No setting is shown to be better" not in printed) == better
    assert "best: key_iterations 1, key_prior 0.5: 2.00 ± 0.25" in printed
    assert ("(-1.50 to -0.50)" in printed) == better
    text = (here / "adaptation.yaml").read_text(encoding="utf-8")
    assert "# As trained: as trained: 3.00 ± 0.50" in text
    assert "# Best: key_iterations 1, key_prior 0.5: 2.00 ± 0.25" in text


@each("name", ["GrabCut", "grabcut", "Berkeley", "DAVIS585", "coco-mval"])
@pytest.mark.parametrize("written", [False, True])
def test_nothing_is_chosen_on_test_sets(here, name, written, search, capsys):
    if written:
        write_grabcut(here / "data" / "GrabCut")
        write_berkeley(here / "data" / "Berkeley")
    assert "nothing may be chosen" in refused(capsys, search, "mine/", "--data", name)


@each(
    ("name", "closed", "splits"),
    [
        ("SBD", ["val"], ["train", "train_noval"]),
        ("PascalVOC", ["val", "trainval"], ["train"]),
        ("LVIS", [], ["train", "val"]),
        ("BSDS500", ["test"], ["train", "val"]),
    ],
)
def test_a_split_that_no_results_are_reported_on_is_asked_for(
    here, name, closed, splits, search, capsys
):
    for split in closed:
        message = refused(capsys, search, "mine/", "--data", name, "--split", split)
        assert "nothing may be chosen" in message
        assert f"--split {split}" in message
    for given in ((), ("--split", "trian")):
        message = refused(capsys, search, "mine/", "--data", name, *given)
        assert "--split" in message
        assert f"{', '.join(splits)} of {name}" in message
    if name in WRITERS and not search:
        WRITERS[name](here / "data" / ("bsds500" if name == "BSDS500" else name))
        for split in splits:
            assert command("tune", "mine/", "--data", name, "--split", split) == 0
            names = [sample.name for sample in DATASETS[name](split=split)]
            assert [sample.name for sample in search.pop()[1]] == names


@each(
    ("arguments", "part"),
    [
        (("nowhere/", "--data=objects"), "nowhere: no such folder"),
        (("empty/", "--data=objects"), store.WEIGHTS),
        (("micro_cas", "--data=objects"), "unknown zoo model 'micro_cas'"),
        (("plain/", "--data=objects"), "nothing to tune"),
        (("mine/",), "--data"),
        (("mine/", "--data=nowhere"), "nowhere"),
        (("mine/", "--data=objects", "--protocol=rtim"), "'ritm'"),
        (("mine/", "--data=objects", "--objects=0"), "--objects"),
        (("mine/", "--data=objects", "--split=val"), "objects/val"),
        (("mine/", "--data=objects", "--root=x"), "--root"),
        (("mine/", "--data=objects", "--key-priors=-1"), "key_prior"),
        (("mine/", "--data=objects", "--output=nowhere/found.yaml"), "got 'nowhere/found.yaml'"),
        (("mine/", "--data=objects", "--output=objects"), "got 'objects'"),
    ],
)
def test_wrong_arguments_are_named(here, arguments, part, search, capsys):
    store.save(micro_model(TRAINED), described(TRAINED), here / "empty")
    (here / "empty" / store.WEIGHTS).unlink()
    standard = read_preset("micro_csa")
    standard["init_args"]["head"]["init_args"]["attention"] = "standard"
    if not (here / "plain").exists():
        store.save(build(standard), standard, here / "plain")
    assert part in refused(capsys, search, *arguments)
