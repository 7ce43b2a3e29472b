"""Precision, accelerators and processes of a machine, and settings that Lightning offers."""

import pytest
from jsonargparse import Namespace

from probseg.cli import machine
from probseg.cli.machine import (
    check_accelerator,
    check_processes,
    choose_cpu_precision,
)
from probseg.errors import UsageError
from support.fakes import write_folder
from support.rows import each
from support.runs import finished, folder_fit, only_made, usage_error


@pytest.fixture
def cpu(monkeypatch):
    """Sets the gain of bfloat16 on a machine that has no accelerator."""
    for kind in machine.ACCELERATORS.values():
        monkeypatch.setattr(kind, "is_available", lambda: False)
    return lambda gain: monkeypatch.setattr(machine, "bfloat16_gain", lambda: gain)


@each(
    ("asked", "accelerator", "gain", "chosen"),
    [
        ("bf16", "cpu", 0.1, "32-true"),
        ("bf16-mixed", "auto", 0.9, "32-true"),
        ("bf16-true", None, 0.1, "32-true"),
        ("bf16-mixed", "cpu", 2.0, "bf16-mixed"),
        ("bf16-mixed", "gpu", 0.1, "bf16-mixed"),
        ("32-true", "cpu", 2.0, "32-true"),
        ("16-mixed", "cpu", 0.1, "16-mixed"),
        (None, "cpu", 2.0, None),
    ],
)
def test_bfloat16_gives_way_where_it_is_slow(asked, accelerator, gain, chosen, cpu, capsys):
    cpu(gain)
    trainer = Namespace(precision=asked, accelerator=accelerator)
    evaluated = Namespace(precision=asked, accelerator=accelerator)
    choose_cpu_precision(trainer, trains=True)
    assert trainer.precision == chosen
    measured = asked in machine.BFLOAT16 and accelerator != "gpu"
    assert (f"{gain:.2g} times as fast" in capsys.readouterr().err) == measured
    choose_cpu_precision(evaluated, trains=False)
    assert evaluated.precision == ("32-true" if measured else asked)
    assert ("evaluations are in float32" in capsys.readouterr().err) == measured


@pytest.mark.parametrize(("gain", "ran"), [(0.2, "32-true"), (2.0, "bf16-mixed")])
def test_a_run_notes_the_precision_that_it_had(gain, ran, cpu, tmp_path, monkeypatch):
    cpu(gain)
    monkeypatch.chdir(tmp_path)
    root = write_folder(tmp_path / "photos")
    cli = only_made(*folder_fit(root, "--trainer.precision=bf16-mixed"))
    assert cli.trainer.precision == cli.config.fit.trainer.precision == ran


@each("name", ["gpu", "cuda", "mps", "tpu"])
def test_devices_that_are_not_there(name, cpu, monkeypatch):
    with pytest.raises(UsageError, match=rf"--trainer.accelerator {name}: .* choose cpu or auto"):
        check_accelerator(name)
    for other in ("cpu", "auto", "unknown"):  # which Lightning reports
        check_accelerator(other)
    with monkeypatch.context() as patch:
        patch.setattr(machine.MPSAccelerator, "is_available", lambda: True)
        check_accelerator("gpu")


@each(
    ("devices", "forced", "message"),
    [
        ("auto", "", None),
        (2, "", None),
        ("3", "", "at most 2, .* got 3; choose fewer, or set PROBSEG_MANY_PROCESSES=1"),
        (3, "1", None),
        (0, "1", "at least 1 on the CPU, got 0"),
        ("-1", "", "at least 1 on the CPU, got -1"),
        ([0, 1], "", "must be a number of at least 1"),
    ],
)
def test_processes_of_a_machine_with_two_cores(devices, forced, message, monkeypatch):
    monkeypatch.setenv("PROBSEG_MANY_PROCESSES", forced)
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    if message is None:
        check_processes(Namespace(accelerator="cpu", devices=devices))
    else:
        with pytest.raises(UsageError, match=message):
            check_processes(Namespace(accelerator="cpu", devices=devices))


def test_normalisation_over_processes_is_for_gpus():
    check_processes(Namespace(accelerator="cpu", devices=1, sync_batchnorm=True))
    trainer = Namespace(accelerator="cpu", devices=2, sync_batchnorm=True)
    with pytest.raises(UsageError, match=r"--trainer\.sync_batchnorm: .* GPUs alone"):
        check_processes(trainer)


SCHEDULE, PLATEAU = "--model.lr_scheduler", "lightning.pytorch.cli.ReduceLROnPlateau"
ONE_CYCLE = (f"{SCHEDULE}=torch.optim.lr_scheduler.OneCycleLR", f"{SCHEDULE}.max_lr=0.001")
NO_LOGGER = "--trainer.logger=false"


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Arguments of a training of two batches an epoch, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return folder_fit(write_folder(tmp_path / "data", images=5, size=(24, 32)))


def test_without_a_logger_and_with_a_batch_size_that_is_found(fit):
    finder = ("--trainer.callbacks+=BatchSizeFinder", "--trainer.callbacks.max_trials=2")
    few = ("--trainer.callbacks.steps_per_trial=1", "--trainer.max_epochs=1")
    cli = finished(*fit, NO_LOGGER, *finder, *few)
    assert cli.datamodule.batch_size == 4
    assert cli.trainer.global_step == 1


@each(
    ("options", "steps"),
    [
        ((*ONE_CYCLE, f"{SCHEDULE}.total_steps=4", "--model.lr_interval=step"), 4),
        ((f"{SCHEDULE}={PLATEAU}", f"{SCHEDULE}.monitor=train/loss"), 2),
        (
            (
                *(f"{SCHEDULE}={PLATEAU}", f"{SCHEDULE}.monitor=val/miou@5"),
                "--trainer.check_val_every_n_epoch=2",
            ),
            1,
        ),
    ],
)
def test_schedules_take_steps(options, steps, fit):
    cli = finished(*fit, NO_LOGGER, "--trainer.max_epochs=2", *options)
    (stepped,) = cli.trainer.lr_scheduler_configs
    assert stepped.scheduler.last_epoch == steps


@each(
    ("options", "part"),
    [
        ([f"{SCHEDULE}=torch.optim.lr_scheduler.ReduceLROnPlateau"], PLATEAU),
        ([f"{SCHEDULE}={PLATEAU}", f"{SCHEDULE}.monitor=train/los"], "train/loss"),
        (
            [*ONE_CYCLE, f"{SCHEDULE}.total_steps=1"],
            "has 1 step, and the training takes 2, one each",
        ),
        (["--trainer.callbacks+=LearningRateFinder"], "--model.optimizer.lr"),
        (["--model.optimizer.lr=-1"], "model.optimizer: Invalid learning rate: -1.0"),
        (["--trainer.callbacks+=DeviceStatsMonitor"], "DeviceStatsMonitor"),
    ],
)
def test_what_cannot_work_is_refused_in_words(options, part, fit, capsys):
    assert part in usage_error(capsys, *fit, NO_LOGGER, "--trainer.max_epochs=2", *options)
