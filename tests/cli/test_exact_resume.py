"""`probseg fit` killed at any moment and resumed ends with the weights of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from fakes import write_folder
from lightning.pytorch.callbacks import Callback
from runs import folder_fit, started

from probseg.cli.trainer import ProbsegCLI

pytestmark = pytest.mark.usefixtures("undrawn")

PATIENCE = 300
EPOCHS = 6
STEPS = EPOCHS * 4

CALLBACKS = """\
trainer:
  callbacks:
  - class_path: lightning.pytorch.callbacks.EMAWeightAveraging
    init_args: {decay: 0.9}
  - class_path: probseg.callbacks.LastCheckpoint
    init_args: {every_steps: 3}
  log_every_n_steps: 1
  check_val_every_n_epoch: 2
"""

KILLED_AT = 11
"""Steps before the kill, in the middle of an epoch and behind a checkpoint that is there, too."""


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


def to_be_killed():
    make = ProbsegCLI._instantiate_trainer
    ProbsegCLI._instantiate_trainer = lambda self, config, more: make(self, config, [*more, Kill()])


def start(place, *more, prepare=None):
    place.mkdir(exist_ok=True)
    return started(place, arguments(place, *more), prepare)


def finish(process, place, status):
    process.join(PATIENCE)
    process.kill()
    assert process.exitcode == status, (place / "told.txt").read_text()


def checkpoint(place):
    return place / "runs" / "probseg" / "version_0" / "checkpoints" / "last.ckpt"


def last(place):
    stored = torch.load(checkpoint(place), weights_only=True)
    return {name: value for name, value in stored.items() if name != "callbacks"}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("exact")
    write_folder(place / "data", images=9, size=(24, 32))
    (place / "callbacks.yaml").write_text(CALLBACKS)
    return place


@pytest.fixture(scope="module")
def whole(place):
    """Waits for a training that nothing interrupts, and returns what it has stored.

    It is a process that has nothing in common with the others, and runs beside them.
    """
    code = "from probseg.cli import main; raise SystemExit(main())"
    (place / "whole").mkdir()
    with (place / "whole" / "told.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments(place / "whole")],
            cwd=place / "whole",
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )

    def stored():
        assert process.wait(PATIENCE) == 0, (place / "whole" / "told.txt").read_text()
        return last(place / "whole")

    yield stored
    process.kill()
    process.wait()


def test_a_killed_training_ends_with_the_same_bits(place, whole):
    part = place / "killed"
    finish(start(part, prepare=to_be_killed), part, -signal.SIGKILL)
    before = last(part)["global_step"]
    assert KILLED_AT - 3 < before < KILLED_AT
    assert before % 4 > 0, "in the middle of an epoch"
    finish(start(part, "--ckpt_path", "last"), part, 0)
    assert [path.name for path in (part / "runs" / "probseg").iterdir()] == ["version_0"]
    assert whole()["global_step"] == STEPS
    assert same(last(part), whole())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_kills_at_any_moment(number, place, whole):
    """From outside, while it computes, reads, validates or writes."""
    part = place / f"part{number}"
    process = start(part)
    while not checkpoint(part).exists():
        assert process.is_alive()
        time.sleep(0.01)
    waited = random.Random(number).uniform(0, 3)
    time.sleep(waited)
    process.kill()
    process.join()
    finish(start(part, "--ckpt_path", "last"), part, 0)
    assert same(last(part), whole()), f"killed {waited:.3f} s after its first save"
