"""Which checkpoint `--ckpt_path` means, which files are refused; none of them runs code."""

import io
import json
import os
import shlex
import sys
import zipfile
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import EMAWeightAveraging

import probseg
from probseg.callbacks.finite_loss import FiniteLoss
from probseg.cli.checkpoints import (
    check_readable,
    find_last,
    how_finished,
    initial_weights,
    next_commands,
    take_paths_of_run,
)
from probseg.errors import UsageError, WeightsError
from probseg.models import read_preset
from probseg.zoo import create_model
from support.runs import command, finished, folder_fit, train_two_epochs, usage_error

pytestmark = pytest.mark.usefixtures("undrawn")

EVIL = "evil_module.Loss"


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Data folder, folder of the run, and what was written on stderr."""
    place = tmp_path_factory.mktemp("trained")
    with redirect_stderr(io.StringIO()) as text:
        root, run = train_two_epochs(place)
    return root, run, text.getvalue()


@pytest.fixture
def trained(training):
    """Data folder and folder of the run."""
    return training[:2]


@pytest.fixture
def stored(trained, tmp_path, monkeypatch):
    """The content of a checkpoint; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    return torch.load(trained[1] / "checkpoints" / "last.ckpt", weights_only=True)


def saved(content, path):
    torch.save(content, path)
    return path


def refused(path, kind=WeightsError):
    with pytest.raises(kind) as raised:
        check_readable(path)
    assert str(path) in str(raised.value)
    return str(raised.value)


class Exploding:
    """An object whose pickle runs a command."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_files_that_are_no_checkpoints(stored, tmp_path):
    stored["state_dict"] = {"x": torch.zeros(10_000)}
    path = saved(stored, tmp_path / "a.ckpt")
    assert check_readable(path).keys() == stored.keys()
    whole = path.read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "damaged" in refused(path)
    flipped = bytearray(whole)
    flipped[whole.index(bytes(5000)) + 2502] ^= 64
    path.write_bytes(flipped)
    assert torch.load(path, weights_only=True)["state_dict"]["x"].any(), "torch takes it"
    assert "checksum" in refused(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")
    refused(path)
    assert "no training state" in refused(saved([1], path))
    assert "could run code" in refused(saved({"state_dict": Exploding()}, path))
    assert not (tmp_path / "ran").exists()
    refused(tmp_path / "none.ckpt", UsageError)


def test_the_newest_that_can_be_read_is_named(stored, trained, tmp_path, capsys):
    for age, name in enumerate(("last", "epoch002", "epoch001")):
        path = saved(stored, tmp_path / f"{name}.ckpt")
        os.utime(path, (1e9 - age, 1e9 - age))
    fit = (*folder_fit(trained[0]), "--ckpt_path", tmp_path / "last.ckpt")
    (tmp_path / "last.ckpt").write_bytes(b"")
    assert f"--ckpt_path {tmp_path / 'epoch002.ckpt'} can" in usage_error(capsys, *fit)
    (tmp_path / "epoch002.ckpt").write_bytes(b"PK")
    assert f"--ckpt_path {tmp_path / 'epoch001.ckpt'} can" in usage_error(capsys, *fit)


@pytest.mark.usefixtures("stored")
def test_a_checkpoint_of_another_network(trained, capsys):
    root, run = trained
    fit = (*folder_fit(root), "--model.model", "configs/model/micro_conv.yaml")
    message = usage_error(capsys, *fit, "--ckpt_path", run / "checkpoints" / "last.ckpt")
    assert "another architecture" in message


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("option", "part"),
    [
        ("--model.model.head.attention=standard", "now it is `(height): Standard"),
        ("--model.model.head.options.key_iterations=3", "key_iterations=3"),
        ("--model.optimizer=torch.optim.SGD", "--model.optimizer must be that of the checkpoint"),
        ("--model.backbone_rate=0.3", "--model.backbone_rate must be that of the checkpoint"),
        ("--model.frozen=[backbone.*]", "--model.frozen must be that of the checkpoint"),
    ],
)
def test_a_checkpoint_of_another_training_changes_nothing(trained, option, part, capsys):
    root, run = trained
    before = {path: path.read_bytes() for path in run.glob("*.*") if path.is_file()}
    fit = (*folder_fit(root), "--trainer.max_epochs=3", option)
    message = usage_error(capsys, *fit, "--ckpt_path", run / "checkpoints" / "last.ckpt")
    assert part in message
    assert {path: path.read_bytes() for path in run.glob("*.*") if path.is_file()} == before


def test_the_end_of_a_training_names_what_to_do_with_it(training, monkeypatch):
    root, run, text = training
    monkeypatch.chdir(root.parent)
    lines = text.splitlines()
    (named,) = (line.split()[-1] for line in lines if "the run is in" in line)
    assert Path(named).resolve() == run
    (best,) = (line for line in lines if "best checkpoint" in line)
    assert Path(best.split()[2]).is_file()
    (test,) = (line.partition("probseg ")[2] for line in lines if "test it" in line)
    assert test.split() == ["test", "--config", f"{named}/config.yaml"], "which is tested below"
    assert probseg.Predictor.from_pretrained(named).model.working_size is None


def test_printed_commands_are_those_of_a_shell(tmp_path):
    run = tmp_path / "my runs" / "it's"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "last.ckpt").touch()
    hparams = {"model": read_preset("micro_conv")}
    module = SimpleNamespace(model=create_model("micro_conv"), hparams=hparams)
    trainer = SimpleNamespace(
        logger=None, default_root_dir=run, checkpoint_callbacks=[], lightning_module=module
    )
    words = [
        shlex.split(line) for line in next_commands(trainer).splitlines() if "probseg " in line
    ]
    named = [word for line in words for word in line if word.startswith(str(run))]
    assert named == [f"{run}/config.yaml", *[str(run)] * 3]


@pytest.mark.parametrize("updates", [0, 3])
def test_an_average_without_an_update_is_said(updates, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    state = {"state_dict": {}, "averaging_state": {"n_averaged": torch.tensor(updates)}}
    torch.save(state, tmp_path / "checkpoints" / "last.ckpt")
    trainer = SimpleNamespace(
        logger=None,
        default_root_dir=tmp_path,
        checkpoint_callbacks=[],
        callbacks=[EMAWeightAveraging()],
        lightning_module=SimpleNamespace(hparams={}, model=None),
    )
    assert ("not averaged" in next_commands(trainer)) == (updates == 0)


def test_a_finished_training_is_not_begun_again(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained[0].parent)
    last = trained[1] / "checkpoints" / "last.ckpt"
    begins = "probseg.cli.trainer.ProbsegCLI.instantiate_classes"
    monkeypatch.setattr(begins, lambda self: pytest.fail("begun again"))
    for unit, limit, given in (("epochs", 2, "last"), ("steps", 4, last)):
        with pytest.raises(SystemExit, match=r"^0$"):
            command(*folder_fit(trained[0], f"--trainer.max_{unit}={limit}", "--ckpt_path", given))
        text = capsys.readouterr().err
        done = f"{limit} of {limit} {unit}"
        assert f"{last}: this training has already finished ({done}); raise " in text
        assert "going on" not in text
    content = torch.load(last, weights_only=True)
    for goes_on in ({"max_epochs": 3}, {"max_epochs": -1}, {"max_epochs": None, "max_steps": -1}):
        assert how_finished(content, goes_on) is None
    timed = {"max_epochs": 1, "callbacks": [{"class_path": "probseg.callbacks.Budget"}]}
    for planned, over in ((2, True), (3, False)):  # as the minutes had room for
        content["callbacks"]["Budget"] = {"epochs": planned, "every": 1}
        assert (how_finished(content, timed) is not None) == over
    assert "1 epochs" in (how_finished(content, {"max_epochs": 1}) or ""), "without --minutes"
    del content["optimizer_states"]
    with pytest.raises(UsageError, match=r"weights alone.*probseg\.zoo\.warm_start"):
        how_finished(content, {"max_epochs": 1})


@pytest.mark.usefixtures("stored")
def test_the_configuration_of_a_run_tests_its_best_checkpoint(trained, capsys, caplog, recwarn):
    caplog.set_level("INFO", "probseg")
    best = next(path for path in trained[1].glob("checkpoints/*.ckpt") if path.stem != "last")
    finished("test", "--config", trained[1] / "config.yaml", "--evaluation.pictures=0")
    captured = capsys.readouterr()
    assert f"best checkpoint of the run: {best}" in captured.err
    assert "Test metric" not in captured.out, "a second table"
    assert "dirpath has changed" not in " ".join(str(one.message) for one in recwarn)
    (tested,) = (message for message in caplog.messages if "testing" in message)
    assert str(best) in tested


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a file behind when it is imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_module.py").write_text(
        "import pathlib\n"
        "from probseg.losses import BinaryCrossEntropy\n"
        f"pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "class Loss(BinaryCrossEntropy):\n"
        "    pass\n",
    )
    yield tmp_path / "ran"
    sys.modules.pop("evil_module", None)


def test_a_checkpoint_brings_weights_and_no_settings(stored, trained, evil):
    stored["hyper_parameters"]["loss"] = {"class_path": EVIL, "init_args": {}}
    config = ("--config", trained[1] / "config.yaml")
    config += ("--ckpt_path", saved(stored, evil.parent / "a.ckpt"))
    cli = finished("validate", *config, "--evaluation.pictures=0", "--model.corner_noise=0.25")
    assert cli.model.corner_noise == 0.25
    assert not any(isinstance(callback, FiniteLoss) for callback in cli.trainer.callbacks)
    assert stored["hyper_parameters"]["corner_noise"] == 0.1
    assert not evil.exists()


def logger(kind, /, **options):
    return {"class_path": f"lightning.pytorch.loggers.{kind}", "init_args": options}


PLACES = [
    ({"logger": logger("TensorBoardLogger", save_dir="logs", name="mine")}, "logs/mine/version_7"),
    ({"logger": logger("TensorBoardLogger", save_dir="logs", name="")}, "logs/version_7"),
    ({"logger": logger("WandbLogger", save_dir="logs", name="a", project="p")}, "logs/p/1a2b"),
    ({"logger": logger("WandbLogger", save_dir="logs")}, "logs/lightning_logs/1a2b"),
    ({"logger": [logger("CSVLogger", save_dir="logs", name="mine")]}, "logs/mine/version_7"),
    ({"logger": logger("CSVLogger", save_dir="a [b]*", name="[c]")}, "a [b]*/[c]/version_7"),
    (
        {
            "logger": logger("CSVLogger", save_dir="logs", name="mine"),
            "callbacks": [{"class_path": "OnExceptionCheckpoint", "init_args": {"dirpath": "exc"}}],
        },
        "logs/mine/version_7",
    ),
    ({"logger": True}, "lightning_logs/version_7"),
    ({"default_root_dir": "root"}, "root/lightning_logs/version_7"),
    ({"logger": False, "default_root_dir": "root"}, "root"),
]


@pytest.mark.parametrize(("trainer", "run"), PLACES)
def test_last_is_found_whatever_logger_a_run_has(trainer, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    with pytest.raises(UsageError, match="--ckpt_path last"):
        find_last(trainer, {})
    path = tmp_path / run / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_last(trainer, {}) == path


CSV = {"logger": logger("CSVLogger", save_dir="logs", name="mine")}


def test_last_is_the_newest_of_the_runs_on_these_data(tmp_path, monkeypatch):
    """How the data are read, batches and processes, does not make them others."""
    monkeypatch.chdir(tmp_path)
    arguments = {"scale": [1, 2], "batch_size": 16, "crop_size": 256, "num_workers": 4}
    runs = (("cats", 2, 30), ("cats", 10, 10), ("cats", 3, 20), ("dogs", 1, 0))
    for root, number, age in runs:
        last = Path("logs", "mine", f"version_{number}", "checkpoints", "last.ckpt")
        last.parent.mkdir(parents=True)
        last.touch()
        os.utime(last, (1e9 - age, 1e9 - age))
        data = {"class_path": "F", "init_args": {"root": root, **arguments}}
        (last.parents[1] / "config.yaml").write_text(yaml.safe_dump({"data": data}))
    changed = {"scale": (1, 2), "batch_size": 8, "crop_size": 192, "num_workers": 0, "test": None}
    for root, number in (("cats", 10), ("dogs", 1)):
        data = {"class_path": "F", "init_args": {"root": root, **changed}, "__path__": "a.yaml"}
        assert find_last(CSV, data).parts[-3] == f"version_{number}"
    with pytest.raises(UsageError, match="on these data"):
        find_last(CSV, {"class_path": "F", "init_args": {"root": "cows", **changed}})


def test_a_folder_of_the_checkpoint_callback_is_searched_too(tmp_path):
    callback = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": str(tmp_path / "kept")}}
    trainer = {"logger": logger("CSVLogger", save_dir=str(tmp_path)), "callbacks": [callback]}
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "last.ckpt").touch()
    assert find_last(trainer, {}) == tmp_path / "kept" / "last.ckpt"


@pytest.mark.parametrize(
    ("place", "verb", "options", "save_dir"),
    [
        ("here", "test", {}, "runs"),
        ("there", "test", {}, "{run}/../.."),  # beside the run
        ("there", "fit", {}, "runs"),
        ("there", "test", {"save_dir": "mine"}, "mine"),
    ],
)
def test_paths_of_a_run_mean_the_same_in_any_folder(
    place, verb, options, save_dir, tmp_path, monkeypatch
):
    here, run = tmp_path / "here", tmp_path / "here" / "runs" / "mine" / "version_0"
    for folder in (here / "own" / "images", run, tmp_path / "there"):
        folder.mkdir(parents=True)
    (run / "starts.jsonl").write_text(json.dumps({"folder": str(here)}) + "\n")
    trainer = {"logger": logger("CSVLogger", save_dir="runs", name="mine")}
    (run / "config.yaml").write_text(yaml.safe_dump({"trainer": trainer}))
    monkeypatch.chdir(tmp_path / place)
    data = {"init_args": {"root": "own", "train": [{"root": Path("own/images"), "split": "own"}]}}
    used = Namespace(logger=logger("CSVLogger", **{"save_dir": "runs", "name": "mine", **options}))
    config = Namespace(config=[run / "config.yaml"], trainer=used, data=data, model={"of": "own"})
    take_paths_of_run(config, verb)
    there = f"{here}/" if place == "there" else ""
    assert data["init_args"]["root"] == f"{there}own"
    assert data["init_args"]["train"] == [{"root": Path(f"{there}own/images"), "split": "own"}]
    assert config.model == {"of": "own"}
    found = used.logger["init_args"]["save_dir"]
    assert os.path.realpath(found) == os.path.realpath(save_dir.format(run=run))


@pytest.mark.parametrize(
    ("kind", "arguments", "weights"),
    [
        ("zoo.create_interactive", {"name": "micro_csa", "pretrained": True}, "those of micro_csa"),
        ("zoo.create_interactive", {"name": "micro_csa", "pretrained": False}, "random"),
        ("models.variant", {"of": "micro_csa"}, "random"),
        (
            "models.variant",
            {"of": "micro_csa", "changes": {"backbone": {"pretrained": True}}},
            "random, of the backbone pretrained",
        ),
        ("zoo.warm_start", {"weights": "micro_csa"}, "those of micro_csa where they fit"),
    ],
)
def test_a_new_training_names_its_first_weights(kind, arguments, weights):
    model = {"class_path": f"probseg.{kind}", "init_args": arguments}
    task = {"class_path": "probseg.tasks.InteractiveSegmentation", "init_args": {"model": model}}
    assert initial_weights(task) == weights
