"""A training that is killed goes on with `--ckpt_path last` as one that nothing interrupted."""

import os
import random
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import probseg.cli.trainer as trainer_module
from support.fakes import write_folder
from support.runs import assert_identical, folder_fit, separately, started

pytestmark = [pytest.mark.usefixtures("undrawn"), pytest.mark.process]

PATIENCE = 600
EPOCHS = 6
STEPS = EPOCHS * 4
KILLED_AT = 11
"""Steps before the kill, in the middle of an epoch."""

CALLBACKS = """\
trainer:
  callbacks:
  - class_path: lightning.pytorch.callbacks.EMAWeightAveraging
    init_args: {decay: 0.9}
  - class_path: lightning.pytorch.callbacks.ModelCheckpoint
    init_args: {monitor: val/miou@5, mode: max, filename: best}
  - class_path: probseg.callbacks.LastCheckpoint
    init_args: {every_steps: 3}
  log_every_n_steps: 1
  check_val_every_n_epoch: 2
"""


def arguments(place, *more):
    return folder_fit(
        place.parent / "data",
        f"--trainer.max_epochs={EPOCHS}",
        "--model.curriculum.box_epochs=1",
        "--model.curriculum.random_epochs=1",
        "--model.curriculum.box_dropout=0.3",
        "--evaluation.pictures=0",
        "--data.num_workers=1",
        f"--config={place.parent / 'callbacks.yaml'}",
        *more,
    )


class Kill(Callback):
    """Kills the process in the middle of a step."""

    def on_before_backward(self, trainer, pl_module, loss):
        if trainer.global_step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


class Killed(trainer_module.ProbsegCLI):
    def instantiate_trainer(self, **options):
        trainer = super().instantiate_trainer(**options)
        trainer.callbacks.insert(0, Kill())
        return trainer


def to_be_killed():
    trainer_module.ProbsegCLI = Killed


def start(place, *more, prepare=None):
    place.mkdir(exist_ok=True)
    return started(place, arguments(place, *more), prepare)


def finish(process, place, status):
    process.join(PATIENCE)
    process.kill()
    assert process.exitcode == status, (place / "output.txt").read_text()


def run_of(place):
    return place / "runs" / "probseg" / "version_0"


def last(place):
    path = run_of(place) / "checkpoints" / "last.ckpt"
    return torch.load(path, weights_only=True) if path.exists() else None


def assert_as_uninterrupted(place, whole):
    for name, value in whole.items():
        if name != "callbacks":
            assert_identical(last(place)[name], value)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("resume")
    write_folder(place / "data", images=9, size=(24, 32))
    (place / "callbacks.yaml").write_text(CALLBACKS)
    return place


@pytest.fixture(scope="module")
def whole(place):
    """The last checkpoint of a training that nothing interrupts."""
    finish(start(place / "whole"), place / "whole", 0)
    return last(place / "whole")


@pytest.fixture(scope="module")
def resumed(place):
    """A killed training that went on in a process that has nothing in common with the first."""
    part = place / "killed"
    finish(start(part, prepare=to_be_killed), part, -signal.SIGKILL)
    before = last(part)
    output = separately(part, *arguments(part, "--ckpt_path", "last"))
    return SimpleNamespace(place=part, before=before, after=last(part), output=output)


def test_it_ends_with_the_same_bits(resumed, whole):
    assert KILLED_AT - 3 < resumed.before["global_step"] < KILLED_AT
    assert resumed.before["global_step"] % 4 > 0, "in the middle of an epoch"
    assert whole["global_step"] == STEPS
    assert whole["curriculum_stage"] == "corrective"
    assert_as_uninterrupted(resumed.place, whole)


def test_it_keeps_folder_curve_and_best_score(resumed):
    assert "probseg: continuing from" in resumed.output
    run = run_of(resumed.place)
    assert [path.name for path in run.parent.iterdir()] == ["version_0"]
    files = {path.name for path in (run / "checkpoints").iterdir()}
    assert files == {"best.ckpt", "last.ckpt"}, "of both parts together"
    config = (run / "config.yaml").read_text()
    assert "version: version_0" not in config
    paths = sorted(run.glob("events.*"), key=lambda path: path.stat().st_mtime)
    first, second = (EventAccumulator(str(path)).Reload() for path in paths)
    steps = [event.step for event in second.Scalars("train/loss")]
    assert steps == list(range(resumed.before["global_step"], STEPS))
    scores = [e.value for events in (first, second) for e in events.Scalars("val/miou@5")]
    states = resumed.after["callbacks"].values()
    (best,) = (s["best_model_score"] for s in states if s.get("monitor") == "val/miou@5")
    assert len(scores) == EPOCHS // 2
    assert float(best) == pytest.approx(max(scores))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_kills_at_any_moment(number, place, whole):
    """From outside, while it computes, reads, validates or writes."""
    part = place / f"part{number}"
    process = start(part)
    while not (run_of(part) / "checkpoints" / "last.ckpt").exists():
        assert process.is_alive()
        time.sleep(0.01)
    time.sleep(random.Random(number).uniform(0, 3))
    process.kill()
    process.join()
    finish(start(part, "--ckpt_path", "last"), part, 0)
    assert_as_uninterrupted(part, whole)
