"""What Lightning offers works with the shipped recipes, or is refused in words."""

import pytest

from support.fakes import write_folder
from support.rows import each
from support.runs import finished, folder_fit, usage_error

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
