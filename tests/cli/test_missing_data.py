"""Data sets that are not there: what the user is told, and which of them a test can do without."""

import json

import pytest
from documented import commands
from fakes import write_berkeley, write_grabcut, write_lvis
from runs import MICRO, QUIET, SMALL, command, finished

from probseg.data import Berkeley, GrabCut
from probseg.errors import UsageError

TEST_ONLY = ("--data.train", "null", "--data.val", "null")
FIG4 = ("test", "--config", "configs/experiment/gabbur2021_sbd.yaml", *MICRO, *QUIET)
SMALL_NETWORK = ("--model.model", "configs/model/prob_botnet26_small.yaml")
SHORT = ("--trainer.limit_test_batches=1", "--evaluation.trials=1", "--evaluation.max_clicks=2")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory whose data folder has GrabCut alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "data"))
    write_grabcut(tmp_path / "data" / "GrabCut")
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Run of a training on LVIS, with a small network."""
    place = tmp_path_factory.mktemp("trained")
    for write, name in ((write_lvis, "LVIS"), (write_grabcut, "GrabCut")):
        write(place / name)
    write_berkeley(place / "Berkeley")
    recipe = ("--config", "configs/experiment/gabbur2021.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("PROBSEG_DATA", str(place))
        finished("fit", *recipe, *SMALL_NETWORK, *QUIET, *SMALL, "--trainer.max_epochs=1")
    return place / "runs" / "gabbur2021" / "version_0"


def test_one_of_several_data_sets_is_missing(here, capsys):
    assert command(*FIG4, *TEST_ONLY) == 2
    told = capsys.readouterr().err.partition("probseg: error: ")[2]
    assert told.startswith(f"Berkeley was not found in {here / 'data' / 'Berkeley'}: expected ")
    assert "probseg data fetch Berkeley" in told
    assert "Namespace(" not in told
    with pytest.raises(UsageError, match=r"^Berkeley was not found in"):
        finished(*FIG4, *TEST_ONLY)


def test_one_of_several_data_sets_cannot_be_used(here):
    mask = next((write_berkeley(here / "data" / "Berkeley") / "masks").iterdir())
    mask.rename(mask.with_name("stranger.png"))
    with pytest.raises(UsageError, match=r"^.*Berkeley.*no image for \['stranger'\]"):
        finished(*FIG4, *TEST_ONLY)


def test_wrong_arguments_of_one_of_several_data_sets_are_named(here, capsys):
    sets = [{"class_path": "probseg.data.GrabCut", "init_args": {"rot": "x"}}]
    assert command(*FIG4, *TEST_ONLY, f"--data.test={json.dumps(sets)}") == 2
    assert "'rot' is not accepted" in capsys.readouterr().err


@pytest.mark.parametrize("words", commands("paper.md", "test"), ids=["plain", "adapting"])
def test_documented_tests_take_the_test_sets_only(words, here, trained):
    write_berkeley(here / "data" / "Berkeley")
    known = {
        "RUN/config.yaml": trained / "config.yaml",
        "CKPT": trained / "checkpoints" / "last.ckpt",
    }
    cli = finished(*(known.get(word, word) for word in words), *QUIET, *SHORT)
    assert [type(part) for part in cli.datamodule.test] == [GrabCut, Berkeley]
    assert cli.datamodule.train == cli.datamodule.val == []
    assert len(list(here.glob("runs/gabbur2021/version_*/test/gabbur2021/results.json"))) == 1
