"""The verb tune, on a small network and drawn data."""

import json

import pytest
import torch
import yaml
from fakes import (
    micro_model,
    write_berkeley,
    write_bsds500,
    write_folder,
    write_grabcut,
    write_lvis,
    write_sbd,
)
from micro import described
from runs import QUIET, command

import probseg.cli.tune as verb
import probseg.zoo.store as store
from probseg.attention import Adaptation
from probseg.data import DATASETS
from probseg.evaluation.tuning import Trial, Tuning
from probseg.metrics import Interval
from probseg.models import read_preset

pytestmark = pytest.mark.usefixtures("undrawn")

NAMES = {
    f"--{of}-{what}": f"{of}_{what}" for of in ("key", "value") for what in ("iterations", "priors")
}
FEW = ("--key-iterations", 1, "--key-priors", 0, 1, "--value-iterations", 1, "--value-priors", 10)
TRAINED = "micro_csa_bp5"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a model folder, a folder of objects and data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "data"))
    torch.manual_seed(0)
    store.save(micro_model(TRAINED), described(TRAINED), tmp_path / "mine")
    write_folder(tmp_path / "objects", images=3, objects=2, size=(24, 32))
    return tmp_path


@pytest.fixture
def search(monkeypatch):
    """Keeps what the search is called with, in place of searching."""
    calls = []
    best = Trial(Adaptation(1, 0.5), 2.0, 0.25, Interval(-1.5, -0.5))

    def tune(*given, **options):
        calls.append((*given, options))
        return Tuning((Trial(Adaptation(), 3.0, 0.5, None), best), best)

    monkeypatch.setattr(verb, "tune", tune)
    return calls


def told(capsys):
    return " ".join(capsys.readouterr().out.split())


def refused(capsys, *arguments):
    capsys.readouterr()
    assert command("tune", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "", "refused before the search"
    assert captured.err.startswith("probseg: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_what_is_found_lies_beside_the_model(here, capsys):
    assert command("tune", "mine/", "--data", "objects", "--objects", 4, *FEW) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "mine/ on 4 objects of folder, protocol gabbur2021" in lines[0]
    tried = [line.split(":")[0].strip() for line in lines if line.startswith("  ")][:6]
    assert tried[:4] == [
        "as trained",
        "key_iterations 0",
        "key_iterations 1, key_prior 0",
        "key_iterations 1, key_prior 1",
    ]
    assert tried[4].endswith("value_iterations 0")
    assert tried[5].endswith("value_iterations 1, value_prior 10")
    assert sorted(path.name for path in (here / "mine").iterdir()) == [
        "adaptation.yaml",
        store.CONFIG,
        store.WEIGHTS,
    ]
    text = (here / "mine" / "adaptation.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Found by `probseg tune` for mine/ on 4 objects of folder")
    assert Adaptation(**yaml.safe_load(text)) == Adaptation(), (
        "random weights segment nothing, however they adapt"
    )


def test_a_test_takes_the_file_that_was_written(here, search):
    assert command("tune", "mine/", "--data", "objects", "--output", "found.yaml") == 0
    assert not (here / "mine" / "adaptation.yaml").exists()
    data = ("--data.test=probseg.data.ImageMaskFolder", "--data.test.root=objects")
    short = ("--evaluation.max_clicks=1", "--evaluation.pictures=0")
    options = ("--model.model.name=mine/", "--evaluation.protocols=[ritm]", *data, *short, *QUIET)
    config = ("--config", "configs/experiment/grabcut.yaml")
    assert command("test", *config, *options, "--evaluation.adaptation", "found.yaml") == 0
    (results,) = here.glob("runs/grabcut/version_0/test/ritm/results.json")
    assert json.loads(results.read_text())["metadata"]["adaptation"] == {
        "key_iterations": 1,
        "key_prior": 0.5,
        "value_iterations": None,
        "value_prior": None,
    }


def test_a_part_of_a_folder_can_be_chosen(here, search):
    (here / "objects" / "two.txt").write_text("photo0\nphoto1\n", encoding="utf-8")
    split = ("tune", "mine/", "--data", "objects", "--split", "two.txt")
    assert command(*split) == 0
    assert command(*split, "--held-out", 3) == 0
    found = [{sample.photo for sample in samples} for _, samples, *_ in search]
    assert found == [{"photo0", "photo1"}, {"photo0"}]


def test_everything_that_was_asked_for_reaches_the_search(here, search):
    options = ("--protocol", "human", "--trials", 3, "--seed", 9, "--batch-size", 5)
    assert command("tune", "mine/", "--data", "objects", "--objects", 3, *options, *FEW) == 0
    ((model, samples, protocol, grid, given),) = search
    assert not model.training
    assert [sample.name for sample in samples] == ["photo0#1", "photo1#1", "photo2#1"], "spread"
    assert (protocol.name, protocol.trials) == ("human", 3)
    assert {name: list(getattr(grid, name)) for name in NAMES.values()} == {
        "key_iterations": [1],
        "key_priors": [0, 1],
        "value_iterations": [1],
        "value_priors": [10],
    }
    assert (given["seed"], given["device"], given["batch_size"]) == (9, "cpu", 5)


def test_protocols_without_chance_keep_their_one_trial(here, search):
    assert command("tune", "mine/", "--data", "objects", "--protocol", "ritm", "--trials", 7) == 0
    assert search[0][2].trials == 1
    assert len(search[0][1]) == 6, "all objects, fewer than --objects"


NOT_BETTER = "No setting is shown to be better than the network as it was trained"


@pytest.mark.parametrize(
    ("interval", "better"),
    [
        (Interval(-1.5, -0.5), True),
        (Interval(-1.5, 0.0), False),
        (Interval(-1.5, 0.5), False),
        (Interval(float("nan"), float("nan")), False),
        (None, False),
    ],
)
def test_a_difference_that_may_be_chance_is_called_so(here, interval, better, monkeypatch, capsys):
    best = Trial(Adaptation(1, 0.5), 2.0, 0.25, interval)
    found = Tuning((Trial(Adaptation(), 3.0, 0.5, None), best), best)
    monkeypatch.setattr(verb, "tune", lambda *given, **options: found)
    assert command("tune", "mine/", "--data", "objects") == 0
    words = told(capsys)
    assert (NOT_BETTER not in words) == better
    assert "best: key_iterations 1, key_prior 0.5: 2.00 ± 0.25" in words
    assert ("(-1.50 to -0.50)" in words) == better
    text = (here / "mine" / "adaptation.yaml").read_text(encoding="utf-8")
    assert "# As trained: as trained: 3.00 ± 0.50" in text
    assert "# Best: key_iterations 1, key_prior 0.5: 2.00 ± 0.25" in text


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("GrabCut", None),
        ("grabcut", None),
        ("Berkeley", None),
        ("DAVIS", None),
        ("DAVIS585", None),
        ("COCO_MVal", None),
        ("coco-mval", None),
        ("SBD", "val"),
        ("PascalVOC", "val"),
        ("PascalVOC", "trainval"),
        ("BSDS500", "test"),
    ],
)
def test_nothing_is_chosen_on_what_results_are_reported_on(here, name, split, search, capsys):
    for write, folder in ((write_grabcut, "GrabCut"), (write_berkeley, "Berkeley")):
        write(here / "data" / folder)
    write_sbd(here / "data" / "SBD")
    (here / "data" / "bsds500").mkdir()
    write_bsds500(here / "data" / "bsds500")
    message = refused(
        capsys, "mine/", "--data", name, *(() if split is None else ("--split", split))
    )
    assert "results are reported on this set, so nothing may be chosen on it" in message
    assert split is None or f"--split {split}" in message
    assert not search


@pytest.mark.parametrize(
    ("name", "splits"),
    [
        ("SBD", "train, train_noval"),
        ("PascalVOC", "train"),
        ("LVIS", "train, val"),
        ("BSDS500", "train, val"),
    ],
)
def test_a_split_is_asked_for_where_there_are_some(here, name, splits, search, capsys):
    for given in ((), ("--split", "trian")):
        message = refused(capsys, "mine/", "--data", name, *given)
        assert f"--split: expected one of {splits} of {name}, got" in message
    assert not search


def test_training_splits_of_data_sets(here, search):
    for write, name, split in (
        (write_sbd, "SBD", "train"),
        (write_sbd, "SBD", "train_noval"),
        (write_lvis, "LVIS", "val"),
    ):
        root = here / "data" / name
        if not root.exists():
            root.mkdir(parents=True)
            write(root)
        assert command("tune", "mine/", "--data", name, "--split", split) == 0
        expected = DATASETS[name](split=split, root=root)
        assert [s.name for s in search[-1][1]] == [sample.name for sample in expected]
    elsewhere = write_sbd(here / "elsewhere" / "dataset")
    assert command("tune", "mine/", "--data", "sbd", "--split=train", "--root", elsewhere) == 0
    assert len(search[-1][1]) == 6


def test_photographs_of_test_sets_are_left_out_of_bsds500(here, search):
    """Its photograph 100 is in GrabCut."""
    write_bsds500(here / "data" / "bsds500")
    assert command("tune", "mine/", "--data", "BSDS500", "--split", "train") == 0
    photos = {sample.photo or sample.name for sample in search[0][1]}
    assert {photo[:3] for photo in photos} == {"101", "102"}


def test_networks_that_cannot_adapt_are_refused(here, capsys):
    store.save(micro_model("micro_conv"), read_preset("micro_conv"), here / "plain")
    assert command("tune", "plain/", "--data", "objects") == 2
    message = capsys.readouterr().err
    assert message.startswith("probseg: error: model: expected one with probabilistic attention")
    assert not (here / "plain" / "adaptation.yaml").exists()


def test_a_file_that_cannot_be_written_is_named_before_the_search(here, search, capsys):
    for output in ("nowhere/found.yaml", "objects", "mine/config.json/found.yaml"):
        message = refused(capsys, "mine/", "--data", "objects", "--output", output)
        assert f"--output {output}: cannot be written" in message
    assert not search


def test_an_earlier_file_stays_until_the_search_is_over(here, search, monkeypatch):
    path = here / "mine" / "adaptation.yaml"
    seen = []

    def interrupted(*given, **options):
        seen.append(path.read_text() if path.exists() else None)
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "tune", interrupted)
    for before in (None, "earlier"):
        if before is not None:
            path.write_text(before)
        assert command("tune", "mine/", "--data", "objects") == 130
        assert (path.read_text() if path.exists() else None) == before
    assert seen == [None, "earlier"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nowhere/", "--data", "objects"), "nowhere/config.json: no such file"),
        (("micro_cas", "--data", "objects"), "unknown zoo model 'micro_cas'"),
        (("mine/", "--data", "nowhere"), "nowhere: expected the folders images/ and masks/"),
        (("mine/", "--data", "objects", "--protocol", "rtim"), "did you mean 'ritm'"),
        (("mine/", "--data", "objects", "--objects", "0"), "--objects: expected a whole number"),
        (("mine/", "--data", "objects", "--split", "val"), "objects/val: "),
        (("mine/", "--data", "objects", "--root", "x"), "--root: objects is a folder itself"),
        (("mine/",), "--data"),
    ],
)
def test_wrong_arguments_are_named(here, arguments, expected, search, capsys):
    assert expected in refused(capsys, *arguments)
    assert not search


def test_a_model_folder_without_weights_is_named(here, search, capsys):
    (here / "mine" / store.WEIGHTS).unlink()
    assert store.WEIGHTS in refused(capsys, "mine/", "--data", "objects")
    assert not search


def test_wrong_settings_are_named(here, capsys):
    assert command("tune", "mine/", "--data", "objects", "--key-priors", "-1") == 2
    assert "key_prior" in capsys.readouterr().err
