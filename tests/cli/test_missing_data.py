"""Data sets that are not there: what the user is told, and which of them a test can do without."""

import json
import shlex

import pytest
from fakes import write_berkeley, write_grabcut, write_lvis
from runs import MICRO, QUIET, SMALL, command, finished

from probseg.data import Berkeley, GrabCut
from probseg.errors import UsageError
from probseg.paths import configs_dir

TEST_ONLY = ("--data.train", "null", "--data.val", "null")
FIG4 = ("test", "--config", "configs/experiment/gabbur2021_fig4_csa.yaml", *MICRO, *QUIET)
SMALL_NETWORK = ("--model.model.of=micro_prob_botnet", "--model.model.changes={}")
SHORT = ("--trainer.limit_test_batches=1", "--evaluation.trials=1", "--evaluation.max_clicks=2")
KEY_ADAPTATION = [
    *(f"gabbur2021_fig2_prob_botnet50_factored_pe_ka1_prec{prior}" for prior in ("0.0", "0.001")),
    *(f"gabbur2021_fig5_csa_ka1{steps}" for steps in ("", "_bp5")),
    *(f"gabbur2021_fig7_prob_botnet50_full_pe_ka1_prec{prior}" for prior in ("0.0", "0.001")),
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory whose data folder has GrabCut alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "data"))
    write_grabcut(tmp_path / "data" / "GrabCut")
    return tmp_path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """What a training on LVIS leaves behind, of a small network."""
    place = tmp_path_factory.mktemp("trained")
    for write, name in ((write_lvis, "LVIS"), (write_grabcut, "GrabCut")):
        write(place / name)
    write_berkeley(place / "Berkeley")
    recipe = ("--config", f"configs/experiment/{KEY_ADAPTATION[0]}.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("PROBSEG_DATA", str(place))
        finished("fit", *recipe, *SMALL_NETWORK, *QUIET, *SMALL, "--trainer.max_epochs=1")
    return next(place.glob("runs/gabbur2021/version_0/checkpoints/last.ckpt"))


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


def documented(text, recipe):
    """The one command of a text that tests a recipe, as a list of arguments."""
    lines = [line.lstrip("# ") for line in text.splitlines() if "probseg test" in line]
    (line,) = (line for line in lines if f"/{recipe}.yaml" in line)
    return shlex.split(line.partition("probseg ")[2])


@pytest.mark.parametrize("recipe", [*KEY_ADAPTATION, "docs"])
def test_documented_tests_take_the_test_sets_only(recipe, here, checkpoint, repository):
    write_berkeley(here / "data" / "Berkeley")
    if recipe == "docs":
        text = (repository / "docs" / "paper.md").read_text()
        arguments = documented(text, KEY_ADAPTATION[0])
    else:
        text = (configs_dir() / "experiment" / f"{recipe}.yaml").read_text()
        arguments = documented(text, recipe)
    arguments = [str(checkpoint) if word == "CKPT" else word for word in arguments]
    cli = finished(*arguments, *SMALL_NETWORK, *QUIET, *SHORT)
    assert [type(part) for part in cli.datamodule.test] == [GrabCut, Berkeley]
    assert cli.datamodule.train == cli.datamodule.val == []
    assert len(list(here.glob("runs/gabbur2021/version_*/test/gabbur2021/results.json"))) == 1
