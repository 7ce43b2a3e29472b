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
from runs import folder_fit

EPOCHS = 12
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

CHILD = """\
import os, signal, sys
from lightning.pytorch.callbacks import Callback
from probseg.cli import main
from probseg.cli.trainer import ProbsegCLI

step, arguments = int(sys.argv[1]), sys.argv[2:]

class Kill(Callback):
    def on_before_backward(self, trainer, pl_module, loss):
        if trainer.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)

trainer = ProbsegCLI._instantiate_trainer
ProbsegCLI._instantiate_trainer = lambda self, config, more: trainer(self, config, [*more, Kill()])
raise SystemExit(main(arguments))
"""


def start(place, step, *more):
    """Start a training that kills itself in the middle of a step, -1 for never."""
    fit = folder_fit(
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
    place.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(step), *fit],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, status):
    told = process.communicate(timeout=300)[0]
    assert process.returncode == status, told


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
    """A folder with data, and a training that nothing interrupts in ``whole``."""
    place = tmp_path_factory.mktemp("exact")
    write_folder(place / "data", images=9, size=(24, 32))
    (place / "callbacks.yaml").write_text(CALLBACKS)
    finish(start(place / "whole", -1), 0)
    assert last(place / "whole")["global_step"] == STEPS
    return place


def test_a_killed_training_ends_with_the_same_bits(place):
    part = place / "killed"
    finish(start(part, 3 * STEPS // 5), -signal.SIGKILL)
    finish(start(part, -1, "--ckpt_path", "last"), 0)
    assert [path.name for path in (part / "runs" / "probseg").iterdir()] == ["version_0"]
    assert same(last(part), last(place / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_kills_at_any_moment(number, place):
    """From outside, while it computes, reads, validates or writes."""
    part = place / f"part{number}"
    process = start(part, -1)
    while not checkpoint(part).exists():
        assert process.poll() is None
        time.sleep(0.01)
    waited = random.Random(number).uniform(0, 4)
    time.sleep(waited)
    process.kill()
    process.communicate()
    finish(start(part, -1, "--ckpt_path", "last"), 0)
    assert same(last(part), last(place / "whole")), f"killed {waited:.3f} s after its first save"
