"""A training that is killed goes on with the same command and ``--ckpt_path last``."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from fakes import write_folder
from runs import MICRO, command, folder_fit, started
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probseg.cli.checkpoints import find_last
from probseg.errors import UsageError

pytestmark = pytest.mark.usefixtures("undrawn")

STAGES = ("--model.curriculum.box_epochs=1", "--model.curriculum.random_epochs=1")
PATIENCE = 180


def read(path):
    return torch.load(path, weights_only=True, map_location="cpu")


def wait_for_epoch(process, last, epoch):
    """Wait until the checkpoint of an epoch is written; the next epoch is then under way."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.is_alive(), (last.parents[4] / "told.txt").read_text()
        try:
            if read(last)["epoch"] >= epoch:
                return
        except (FileNotFoundError, EOFError, RuntimeError):
            pass  # not yet there, or being written
        time.sleep(0.02)
    pytest.fail(f"epoch {epoch} did not end within {PATIENCE} s")


def resume(place, *arguments):
    """Run a command line in a process that has nothing in common with others; return its text."""
    code = "from probseg.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *(str(argument) for argument in arguments)],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PROBSEG_DATA": str(place)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory):
    """The killed run's last checkpoint, the resumed run's output, and the folder of all runs."""
    place = tmp_path_factory.mktemp("resume")
    root = write_folder(place / "data", images=9, size=(24, 32))
    fit = (*folder_fit(root, *STAGES), "--evaluation.pictures=0")
    last = place / "runs" / "probseg" / "version_0" / "checkpoints" / "last.ckpt"
    process = started(place, (*fit, "--trainer.max_epochs=1000000"))
    try:
        wait_for_epoch(process, last, 2)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    before = read(last)
    told = resume(place, *fit, f"--trainer.max_epochs={before['epoch'] + 3}", "--ckpt_path", "last")
    return before, told, place / "runs" / "probseg"


def test_epochs_steps_and_curriculum_go_on(killed_and_resumed):
    before, told, runs = killed_and_resumed
    after = read(runs / "version_0" / "checkpoints" / "last.ckpt")
    per_epoch = before["global_step"] // (before["epoch"] + 1)
    assert per_epoch >= 3
    assert after["epoch"] == before["epoch"] + 2
    assert after["global_step"] == before["global_step"] + 2 * per_epoch
    assert before["curriculum_stage"] == after["curriculum_stage"] == "corrective"
    assert after["lr_schedulers"][0]["last_epoch"] == before["lr_schedulers"][0]["last_epoch"] + 2
    assert "Restored all states" in told


def test_the_run_keeps_its_folder(killed_and_resumed):
    _, _, runs = killed_and_resumed
    assert [path.name for path in runs.iterdir()] == ["version_0"]
    files = {path.name for path in (runs / "version_0" / "checkpoints").iterdir()}
    assert len(files) == 2, "the best and the last, of both parts together"
    assert "last.ckpt" in files
    assert "version: version_0" not in (runs / "version_0" / "config.yaml").read_text()


def test_the_curve_goes_on_without_a_restart(killed_and_resumed):
    before, _, runs = killed_and_resumed
    files = sorted((runs / "version_0").glob("events.*"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 2
    events = EventAccumulator(str(files[1])).Reload()
    assert [int(e.value) for e in events.Scalars("train/stage")] == [2, 2]
    assert min(e.step for e in events.Scalars("val/miou@5")) >= before["global_step"] - 1


def test_the_best_score_is_remembered(killed_and_resumed):
    before, _, runs = killed_and_resumed
    after = read(runs / "version_0" / "checkpoints" / "last.ckpt")

    def best(stored):
        (state,) = (s for s in stored["callbacks"].values() if s.get("monitor") == "val/miou@5")
        return float(state["best_model_score"])

    assert best(after) >= best(before)


def test_without_an_earlier_run_nothing_starts(tmp_path, monkeypatch, capsys):
    """Lightning alone would train from scratch."""
    monkeypatch.chdir(tmp_path)
    root = write_folder(tmp_path / "data", images=3, size=(24, 32))
    assert command(*folder_fit(root, *MICRO), "--ckpt_path", "last") == 2
    told = capsys.readouterr().err
    assert "--ckpt_path last: there is no" in told
    assert str(tmp_path / "runs" / "probseg" / "*" / "checkpoints" / "last.ckpt") in told
    assert not (tmp_path / "runs").exists()


def logger(kind, /, **options):
    return {"class_path": f"lightning.pytorch.loggers.{kind}", "init_args": options}


PLACES = [
    ({"logger": logger("TensorBoardLogger", save_dir="logs", name="mine")}, "logs/mine/version_7"),
    ({"logger": logger("CSVLogger", save_dir="logs", name="mine")}, "logs/mine/version_7"),
    ({"logger": logger("TensorBoardLogger", save_dir="logs", name="")}, "logs/version_7"),
    ({"logger": logger("WandbLogger", save_dir="logs", name="a", project="p")}, "logs/p/1a2b"),
    ({"logger": logger("WandbLogger", save_dir="logs")}, "logs/lightning_logs/1a2b"),
    ({"logger": [logger("CSVLogger", save_dir="logs", name="mine")]}, "logs/mine/version_7"),
    ({"logger": True}, "lightning_logs/version_7"),
    ({"default_root_dir": "root"}, "root/lightning_logs/version_7"),
    ({"logger": False, "default_root_dir": "root"}, "root"),
]


@pytest.mark.parametrize(("trainer", "run"), PLACES)
def test_last_is_found_whatever_logger_a_run_has(trainer, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    with pytest.raises(UsageError, match="there is no"):
        find_last(trainer, {})
    path = tmp_path / run / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_last(trainer, {}) == path


def test_last_is_the_newest_one(tmp_path):
    for number, age in ((2, 30), (10, 10), (3, 20)):
        path = tmp_path / "mine" / f"version_{number}" / "checkpoints" / "last.ckpt"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    found = find_last({"logger": logger("CSVLogger", save_dir=str(tmp_path), name="mine")}, {})
    assert found.parts[-3] == "version_10"


def test_runs_on_other_data_are_passed_over(tmp_path):
    trainer = {"logger": logger("CSVLogger", save_dir=str(tmp_path), name="mine")}
    for number, root in enumerate(("cats", "dogs")):
        run = tmp_path / "mine" / f"version_{number}"
        (run / "checkpoints").mkdir(parents=True)
        (run / "checkpoints" / "last.ckpt").touch()
        (run / "config.yaml").write_text(
            f"data:\n  init_args:\n    root: {root}\n    scale: [1, 2]"
        )
    data = {"init_args": {"scale": (1, 2), "root": "cats", "test": None}, "__path__": "a.yaml"}
    assert find_last(trainer, data).parts[-3] == "version_0"
    with pytest.raises(UsageError, match="of a run on these data"):
        find_last(trainer, {"init_args": {"root": "cows", "scale": (1, 2)}})


def test_a_folder_of_the_checkpoint_callback_comes_first(tmp_path):
    callback = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": str(tmp_path / "kept")}}
    trainer = {"logger": logger("CSVLogger", save_dir=str(tmp_path)), "callbacks": [callback]}
    with pytest.raises(UsageError, match=r"kept/last\.ckpt"):
        find_last(trainer, {})
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "last.ckpt").touch()
    assert find_last(trainer, {}) == tmp_path / "kept" / "last.ckpt"
