"""All shipped configurations: each is read, and each experiment does one step on drawn data."""

import pytest
import torch
import yaml
from fakes import write_bsds500, write_folder, write_grabcut
from runs import MICRO, QUIET, SMALL, command, finished, folder_fit

from probseg.attention import ProbabilisticAttention2d, StandardAttention2d
from probseg.models import list_presets
from probseg.paths import configs_dir
from probseg.tasks import InteractiveSegmentation
from probseg.zoo import create_model

TRAINING = (
    "experiment/folder.yaml",
    "experiment/resnet16_csa_cpu.yaml",
    "experiment/resnet16_csa_finetune.yaml",
)
TESTING = ("experiment/grabcut.yaml", "quickstart.yaml")
ONE_STEP = ("--trainer.fast_dev_run=1",)
SHORT_TEST = (
    "--trainer.limit_test_batches=1",
    "--evaluation.trials=1",
    "--evaluation.max_clicks=2",
    "--evaluation.pictures=1",
)


def shipped(*folders):
    found = (path for folder in folders for path in (configs_dir() / folder).glob("*.yaml"))
    return sorted(str(path.relative_to(configs_dir())) for path in found)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """Drawn data of all kinds, where the shipped configurations look for them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "drawn"))
    root = write_folder(tmp_path / "drawn" / "objects", images=4, size=(24, 32))
    (root / "train.txt").write_text("photo0\nphoto1\nphoto2\n")
    (root / "val.txt").write_text("photo3\n")
    write_grabcut(tmp_path / "drawn" / "GrabCut")
    write_bsds500(tmp_path / "drawn" / "bsds500")
    return tmp_path / "drawn"


@pytest.fixture
def first_weights(monkeypatch):
    """The weights at the start of a training, filled in when it begins."""
    kept = {}

    def keep(task):
        kept.update({name: p.detach().clone() for name, p in task.named_parameters()})

    monkeypatch.setattr(InteractiveSegmentation, "on_fit_start", keep)
    return kept


def checked_step(cli, first_weights):
    """Return the network after checking that a step of training did something to all of it."""
    loss = cli.trainer.callback_metrics["train/loss"]
    assert torch.isfinite(loss)
    assert cli.trainer.global_step == 1
    changed = {
        name: not torch.equal(parameter, first_weights[name])
        for name, parameter in cli.model.named_parameters()
    }
    assert any(changed[name] for name in changed if ".backbone." in name)
    assert any(changed[name] for name in changed if ".decoder." in name)
    assert any(changed[name] for name in changed if ".head." in name)
    assert all(p.isfinite().all() for p in cli.model.parameters())
    return cli.model.model


def test_all_configurations_are_in_a_folder_that_is_tested():
    assert set(shipped("experiment", ".")) == {*TRAINING, *TESTING}
    tested = {*shipped("experiment", ".", "model", "data", "trainer")}
    assert {
        str(path.relative_to(configs_dir())) for path in configs_dir().rglob("*.yaml")
    } == tested


@pytest.mark.parametrize("path", [*TRAINING, *TESTING])
def test_experiments_print_all_their_settings(path, capsys):
    verb = "fit" if path in TRAINING else "test"
    with pytest.raises(SystemExit, match=r"^0$"):
        command(verb, "--config", f"configs/{path}", "--print_config")
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"]["class_path"] == "probseg.tasks.InteractiveSegmentation"
    assert printed["evaluation"]["protocols"]
    assert printed["trainer"]["logger"]["init_args"]["save_dir"] == "runs"
    assert type(printed["seed_everything"]) is int


@pytest.mark.parametrize("path", TRAINING)
def test_experiments_train_a_step(path, first_weights):
    more = ("--data.root", "objects") if path.endswith("folder.yaml") else ()
    experiment = ("fit", "--config", f"configs/{path}", *more)
    cli = finished(*experiment, *MICRO, *QUIET, *SMALL, *ONE_STEP)
    checked_step(cli, first_weights)
    assert "val/miou@5" in cli.trainer.callback_metrics


@pytest.mark.parametrize("path", TESTING)
def test_experiments_test_an_object(path, data):
    experiment = ("test", "--config", f"configs/{path}")
    cli = finished(*experiment, *MICRO, *QUIET, *SHORT_TEST)
    figures = cli.trainer.callback_metrics
    assert any(name.endswith("/miou@2") for name in figures)
    assert all(torch.isfinite(value) for value in figures.values())


@pytest.mark.parametrize("path", shipped("data"))
def test_data_is_found_and_trained_on(path, first_weights):
    experiment = ("fit", "--config", "configs/experiment/resnet16_csa_cpu.yaml")
    cli = finished(*experiment, "--data", f"configs/{path}", *MICRO, *QUIET, *SMALL, *ONE_STEP)
    checked_step(cli, first_weights)
    assert len(cli.datamodule.train[0]) > 0
    assert len(cli.datamodule.val[0]) > 0


@pytest.mark.parametrize("path", shipped("trainer"))
def test_trainer_settings_name_known_arguments(path, data, capsys):
    fit = folder_fit(data / "objects", "--trainer", f"configs/{path}", "--print_config")
    with pytest.raises(SystemExit, match=r"^0$"):
        command(*fit)
    printed = yaml.safe_load(capsys.readouterr().out)["trainer"]
    wanted = yaml.safe_load((configs_dir() / path).read_text())
    assert printed["max_epochs"] == wanted["max_epochs"]
    names = [callback["class_path"].split(".")[-1] for callback in printed["callbacks"]]
    assert names == ["ModelCheckpoint", "ModelCheckpoint", "LearningRateMonitor", "VisualLog"]
    best, last = (callback["init_args"] for callback in printed["callbacks"][:2])
    assert (best["monitor"], best["mode"]) == ("val/miou@5", "max")
    assert (last["monitor"], last["filename"]) == (None, "last")


@pytest.mark.parametrize("name", list_presets())
def test_models_are_the_same_from_the_command_line_and_from_python(name, data, first_weights):
    fit = folder_fit(data / "objects", "--model.model", f"configs/model/{name}.yaml", *ONE_STEP)
    network = checked_step(finished(*fit), first_weights)
    other = create_model(name)
    assert {key: tensor.shape for key, tensor in network.state_dict().items()} == {
        key: tensor.shape for key, tensor in other.state_dict().items()
    }
    assert network.working_size == other.working_size
    assert repr(network) == repr(other)


@pytest.mark.parametrize("layout", ["axial", "full"])
@pytest.mark.parametrize(
    ("attention", "kind"),
    [("standard", StandardAttention2d), ("probabilistic", ProbabilisticAttention2d)],
)
def test_one_flag_swaps_the_attention(attention, kind, layout, data, first_weights):
    flags = ("--model.model.head.attention", attention, "--model.model.head.layout", layout)
    network = checked_step(
        finished(*folder_fit(data / "objects", *flags, *ONE_STEP)), first_weights
    )
    assert type(network.head.last) is kind
    if layout == "axial":
        assert type(network.head.height) is kind
    else:
        assert network.head.height is None


def test_flags_reach_a_model_that_is_given_by_name(data):
    fit = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root", data / "objects")
    name = ("--model.model.name=micro_csa", "--model.model.pretrained=false")
    changes = ("--model.model.dict_kwargs.head", '{"attention": "standard"}')
    cli = finished(*fit, *name, *changes, *QUIET, *SMALL, *ONE_STEP)
    assert type(cli.model.model.head.last) is StandardAttention2d
