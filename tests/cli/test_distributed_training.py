"""Two processes train as one does on the batches of both, and end together whatever happens."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from uuid import uuid4

import pytest
import torch
import torch.distributed.run

from probseg.callbacks import last_checkpoint
from probseg.losses import BinaryCrossEntropy, NormalizedFocalLoss, SoftIoULoss, WeightedSum
from support.fakes import write_folder
from support.runs import assert_identical, command, figures, folder_fit, started

pytestmark = pytest.mark.process

PATIENCE = 240
STEPS = 6
ROUNDING = 1e-6
"""Most by which losses may differ: gradients are summed in another order. 6e-8 were measured."""

CHILD = """\
import os, signal, time

import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

import probseg.cli.trainer
from probseg.cli import main
from probseg.cli.trainer import ProbsegCLI

STEP, RANK, FAULT = os.environ["FAULT"].split(maxsplit=2)

class Spy(Callback):
    def setup(self, trainer, task, stage):
        self.norms = [layer for layer in task.modules() if isinstance(layer, nn.BatchNorm2d)]
        self.steps, self.evaluated = [], {}

    def on_train_batch_start(self, trainer, task, batch, batch_idx):
        for layer in self.norms:
            layer.eval()  # two crops have another mean than four
        if (trainer.global_step, trainer.global_rank) == (int(STEP), int(RANK)):
            exec(FAULT)

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
        prompts = outputs["prompts"]
        seen = {"points": prompts.points, "labels": prompts.labels, "boxes": prompts.boxes}
        step = {"stage": task.stage, "loss": float(outputs["loss"])}
        self.steps.append({**step, **seen, **batch._asdict()})
        for layer in self.norms:  # as if the averages had followed the process's own crops
            layer.running_mean += 0.1 * trainer.global_rank

    def on_validation_batch_start(self, trainer, task, batch, batch_idx, *arguments):
        fits = trainer.state.fn == "fit"
        if not fits and (batch_idx, trainer.global_rank) == (int(STEP), int(RANK)):
            exec(FAULT)
        self.evaluated = {name: value.clone() for name, value in task.state_dict().items()}

    def on_fit_end(self, trainer, task):
        torch.save((self.steps, self.evaluated), f"seen{trainer.global_rank}.pt")

class Spied(ProbsegCLI):
    def instantiate_trainer(self, **options):
        trainer = super().instantiate_trainer(**options)
        trainer.callbacks.insert(0, Spy())
        return trainer

probseg.cli.trainer.ProbsegCLI = Spied
raise SystemExit(main())
"""

TERM = "os.kill(os.getpid(), signal.SIGTERM)"
AGENT = "os.kill(os.getppid(), signal.SIGTERM)"


class Run:
    """A training that was started; `fault` is what a process does: `"<step> <rank> <code>"`."""

    def __init__(self, place, *more, fault="-1 -1 pass", processes=2, torchrun=False, verb="fit"):
        place.mkdir(exist_ok=True)
        self.place = place
        several = ("--trainer.strategy=ddp", f"--trainer.devices={processes}")
        arguments = arguments_of(place, *more, *(several if processes > 1 else ()))
        arguments = [verb, *arguments, f"--data.batch_size={4 // processes}"]
        script = place.parent / "train.py"
        if torchrun:
            arguments = [f"--nproc_per_node={processes}", script, *arguments]
            script = Path(torch.distributed.run.__file__)
        self.mark = uuid4().hex
        found = {"FAULT": fault, "MARK": self.mark, "PYTHONFAULTHANDLER": "1"}
        self.process = started(place, arguments, os.setsid, script, **found)

    def end(self):
        """Wait for it; return its status and its output. No process may be left."""
        try:
            self.process.join(PATIENCE)
            in_time = self.process.exitcode is not None
            if not in_time:  # print where each of its threads is
                for number in self.processes():
                    os.kill(number, signal.SIGABRT)
                self.process.join(PATIENCE)
            text = (self.place / "output.txt").read_text()
            assert in_time, f"it did not end within {PATIENCE} seconds:\n{text}"
            deadline = time.monotonic() + 30
            while (left := self.processes()) and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            for number in self.processes():
                with suppress(OSError):
                    os.kill(number, 9)
        assert not left, text
        return self.process.exitcode, text

    def processes(self):
        """Numbers of all processes of this run: the first, those of its session, or of its mark."""
        found = [self.process.pid] if self.process.is_alive() else []
        for path in Path("/proc").glob("[0-9]*/environ"):
            number = int(path.parent.name)
            with suppress(OSError):
                ours = os.getsid(number) == self.process.pid
                if number not in found and (
                    ours or f"MARK={self.mark}".encode() in path.read_bytes()
                ):
                    found.append(number)
        return found

    @property
    def last(self):
        return self.place / "runs" / "probseg" / "version_0" / "checkpoints" / "last.ckpt"

    def stored(self):
        return torch.load(self.last, weights_only=True)

    def seen(self, rank=0):
        return torch.load(self.place / f"seen{rank}.pt", weights_only=True)


def arguments_of(place, *more):
    return folder_fit(
        place.parent / "data",
        *more,  # first: the callbacks of a configuration replace earlier ones
        "--trainer.enable_progress_bar=true",  # the first process alone draws it
        "--trainer.max_epochs=3",
        "--trainer.check_val_every_n_epoch=3",
        "--trainer.log_every_n_steps=1",
        "--data.val_fraction=0.25",
        "--data.eval_batch_size=1",
        "--evaluation.pictures=0",
        "--model.optimizer=torch.optim.SGD",
        "--model.optimizer.lr=0.1",
        "--model.curriculum.box_epochs=1",
        "--model.curriculum.random_epochs=1",
        "--model.curriculum.rounds=[1, 2]",
        "--trainer.callbacks+=lightning.pytorch.callbacks.EMAWeightAveraging",
        "--trainer.callbacks.decay=0.5",
    )[1:]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("distributed")
    write_folder(place / "data", images=12, size=(24, 32))
    (place / "train.py").write_text(CHILD)
    return place


@pytest.fixture(scope="module")
def trained(place):
    """A training by one process and the same by two, on the same global batches."""
    runs = Run(place / "alone", processes=1), Run(place / "shared")
    for run in runs:
        status, text = run.end()
        assert status == 0, text
    assert "GLOBAL_RANK: 1, MEMBER: 2/2" in text
    return runs


def test_crops_clicks_curves_and_weights_are_those_of_one_process(trained):
    """Clicks on errors are the same unless rounding moves a logit over zero."""
    alone, shared = trained
    steps, shares = alone.seen()[0], (shared.seen(0)[0], shared.seen(1)[0])
    assert [step["stage"] for step in steps] == sorted(["box", "random", "corrective"] * 2, key=len)
    assert all((step["labels"] >= 0).any() for step in steps[2:]), "there are clicks"
    for step, *parts in zip(steps, *shares, strict=True):
        assert {part["stage"] for part in parts} == {step["stage"]}
        assert list(chain(*(part["names"] for part in parts))) == step["names"]
        for kind in ("images", "masks", "seeds", "points", "labels", "boxes"):
            joined = torch.cat([part[kind] for part in parts])
            assert torch.equal(joined.nan_to_num(-1), step[kind].nan_to_num(-1)), kind
    expected, *parts = (torch.tensor([step["loss"] for step in own]) for own in (steps, *shares))
    assert len(expected) == STEPS
    assert (parts[0] - parts[1]).abs().max() > 1e3 * ROUNDING, "each has crops of its own"
    torch.testing.assert_close((parts[0] + parts[1]) / 2, expected, rtol=0, atol=ROUNDING)
    before, after = alone.stored(), shared.stored()
    for state in ("state_dict", "current_model_state"):  # averaged and learnt
        assert after[state].keys() == before[state].keys()
        for name in before[state]:
            torch.testing.assert_close(
                after[state][name], before[state][name], rtol=1e-5, atol=ROUNDING
            )
    learnt = after["current_model_state"]
    assert any(not torch.equal(after["state_dict"][name], learnt[name]) for name in learnt)


def test_all_processes_evaluate_the_network_that_is_saved(trained, monkeypatch):
    _, shared = trained
    for rank in (0, 1):
        assert_identical(shared.seen(rank)[1], shared.stored()["state_dict"])
    again = shared.place.parent / "again"
    again.mkdir()
    monkeypatch.chdir(again)
    assert command("validate", *arguments_of(again), "--ckpt_path", shared.last) == 0
    during = figures(shared.last.parents[1] / "val")
    assert during["folder"]["n_objects"] == 2
    assert figures(again / "runs" / "probseg" / "version_0" / "val") == during


def assert_as_uninterrupted(run, trained):
    one, other = run.stored(), trained[1].stored()
    assert one["global_step"] == STEPS
    for part in ("state_dict", "current_model_state", "optimizer_states", "lr_schedulers"):
        assert_identical(one[part], other[part])


@pytest.mark.slow
def test_a_killed_run_goes_on_exactly(trained, place):
    every = place / "every.yaml"
    every.write_text(
        "trainer: {callbacks: [{class_path: probseg.callbacks.LastCheckpoint, "
        "init_args: {every_steps: 1}}]}\n"
    )
    kill = "5 1 os.killpg(0, signal.SIGKILL)"
    status, text = (run := Run(place / "killed", f"--config={every}", fault=kill)).end()
    assert status == -9, text
    assert run.stored()["global_step"] == 5, "in the middle of the third epoch"
    status, text = Run(place / "killed", f"--config={every}", "--ckpt_path=last").end()
    assert status == 0, text
    assert_as_uninterrupted(run, trained)


def stopped(part, fault, torchrun=False, status=143):
    """Start a training whose processes stop after the same batch, in the third epoch."""
    got, text = (run := Run(part, fault=fault, torchrun=torchrun)).end()
    assert got == status, text
    assert "probseg: stopped by SIGTERM; the same command with `--ckpt_path last`" in text
    assert run.stored()["global_step"] == 5
    return run


def test_sigterm_stops_all_after_the_same_batch(place):
    stopped(place / "first", f"4 0 {TERM}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "torchrun", "expected"),
    [
        (f"4 0 {TERM}", False, 143),
        ("4 0 os.killpg(0, signal.SIGTERM)", False, 143),
        (f"4 1 {TERM}", False, 143),
        (f"4 0 {AGENT}; time.sleep(3)", True, 1),
        (f"4 0 {AGENT}; {TERM}; time.sleep(3)", True, 1),
    ],
    ids=["first", "group", "second_process", "torchrun", "torchrun_and_its_processes"],
)
def test_a_stopped_run_goes_on_exactly(fault, torchrun, expected, trained, place, request):
    part = place / request.node.callspec.id
    run = stopped(part, fault, torchrun, expected)
    status, text = Run(part, "--ckpt_path=last", torchrun=torchrun).end()
    assert status == 0, text
    assert [path.name for path in (part / "runs" / "probseg").iterdir()] == ["version_0"]
    assert_as_uninterrupted(run, trained)


@pytest.mark.parametrize(
    ("rank", "expected", "part"),
    [
        (1, 2, "another process of this run has ended"),
        pytest.param(0, 143, "probseg: stopped by SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_sigterm_to_one_process_ends_a_validation_of_two(rank, expected, part, trained, place):
    last = f"--ckpt_path={trained[1].last}"
    run = Run(place / f"validated{rank}", last, fault=f"0 {rank} {TERM}", verb="validate")
    status, text = run.end()
    assert (status, text.count(part)) == (expected, 1), text


NAN = "task.loss.forward = lambda logits, masks: logits.sum() * float('nan')"
UNREADABLE = "trainer.datamodule.skips.add([f'{n}.jpg: broken' for n in range(11)])"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (f"4 1 {NAN}", "the loss of step 4 (epoch 2"),
        (f"4 0 {NAN}", "the loss of step 4 (epoch 2"),
        (f"4 1 {UNREADABLE}", "11 samples cannot be used, more than `max_skipped` (10)"),
        ("4 1 os._exit(9)", "by peer"),
    ],
    ids=["nan", "nan_in_the_first", "unreadable", "gone"],
)
def test_a_fault_of_one_process_ends_all(fault, part, place, request):
    status, text = (run := Run(place / request.node.callspec.id, fault=fault)).end()
    assert status not in (0, 143), text
    assert part in text
    assert run.stored()["global_step"] == 4, "as the epoch before left it"


def test_processes_that_hang_are_ended(monkeypatch):
    monkeypatch.setattr(last_checkpoint, "CHILD_GRACE", 0.2)
    code = ("import time; time.sleep(60)", "raise SystemExit(143)")
    started = [subprocess.Popen([sys.executable, "-c", c]) for c in code]
    started[1].wait()
    watched = list(started)
    last_checkpoint._end(watched)
    assert watched == []
    assert [process.returncode for process in started] == [-9, 143]


LOSSES = (
    BinaryCrossEntropy(),
    NormalizedFocalLoss(),
    SoftIoULoss(),
    WeightedSum([SoftIoULoss(), BinaryCrossEntropy()], [0.5, 2.0]),
)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_the_mean_over_processes_is_the_loss_of_the_global_batch(loss):
    logits, masks = torch.randn(4, 1, 8, 8), torch.randint(0, 2, (4, 8, 8), dtype=torch.uint8)
    masks[2:, 1:] = 255  # the second half counts hardly anywhere
    shares = [loss(logits[part], masks[part]) for part in (slice(2), slice(2, 4))]
    torch.testing.assert_close((shares[0] + shares[1]) / 2, loss(logits, masks))
