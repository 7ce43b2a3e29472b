"""What ends a run from outside is explained, and the status says what it was."""

import errno
import functools
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sqlite3
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonargparse import Namespace
from lightning import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader, Dataset

import probseg
from probseg import cli
from probseg.callbacks.finite_loss import FiniteLoss
from probseg.callbacks.last_checkpoint import AtomicCheckpointIO
from probseg.cli.faults import (
    explain,
    how_to_continue,
    interruption,
    silence_notices,
    silence_notices_about_checkpoints,
)
from probseg.cli.trainer import ProbsegCLI
from probseg.errors import (
    CheckpointError,
    DataError,
    DatasetNotFoundError,
    UnknownNameError,
    UsageError,
    disk_fault,
    history,
    user_error,
)
from probseg.losses import BinaryCrossEntropy
from probseg.tasks import InteractiveSegmentation
from support.fakes import write_folder
from support.rows import each
from support.runs import command, finished, folder_fit, started, usage_error

pytestmark = pytest.mark.usefixtures("undrawn")

PATIENCE = 120
RUN = Path("runs/probseg/version_0")
LAST = RUN / "checkpoints" / "last.ckpt"
CUDA = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8 GiB."
KILLED = "DataLoader worker (pid 7) is killed by signal: Killed. "
UNFINISHED = "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"


def config(data=(), **trainer):
    """Those arguments of a data module and a trainer that matter here."""
    options = {"devices": 1, "precision": None, "accumulate_grad_batches": 1, **trainer}
    sizes = {"batch_size": 16, "crop_size": 256, "eval_batch_size": 12, "num_workers": 4}
    arguments = Namespace(**{**sizes, **dict(data)})
    return Namespace(trainer=Namespace(**options), data=Namespace(init_args=arguments))


def explained(error, verb="fit", last=LAST, data=(), **trainer):
    """The explanation: its first line, and what is proposed in its order."""
    found = explain(error, verb, config(data, **trainer), last)
    assert isinstance(found, UsageError)
    assert user_error(found) is found
    assert "Traceback" not in str(found)
    first, *proposed = str(found).splitlines()
    return first, [line.strip() for line in proposed]


def real_error(action):
    with pytest.raises((RuntimeError, MemoryError)) as raised:
        action()
    return raised.value


SMALLEST = {"batch_size": 1, "crop_size": 64, "eval_batch_size": 1}
HALF = "--trainer.precision bf16-mixed"


def proposed(error, verb="fit", first="", data=SMALLEST, **trainer):
    """Options that are proposed, without their reasons, after an explanation of the error."""
    said, (*options, network) = explained(error, verb, data=data, **trainer)
    assert first in said
    assert "a smaller network" in network
    return [option.split(" (")[0].split(" if ")[0] for option in options]


def test_without_memory_what_takes_less_is_proposed():
    error = torch.OutOfMemoryError(CUDA)
    first = "GPU lacks memory for batches of 16 crops of 256 x 256 pixels per device (dev"
    accumulated = "--data.batch_size {} --trainer.accumulate_grad_batches {}"
    smaller = ["--data.crop_size 192", "--data.eval_batch_size 6"]
    expected = [accumulated.format(8, 2), HALF, *smaller]
    assert proposed(error, "fit", first, {}, devices=2) == expected
    for batch, steps, now in ((16, 4, (8, 8)), (15, 1, (5, 3)), (7, None, (1, 7)), (2, 3, (1, 6))):
        options = proposed(error, data={"batch_size": batch}, accumulate_grad_batches=steps)
        assert options == [accumulated.format(*now), HALF, *smaller]
    assert proposed(error, precision="bf16-mixed") == []
    oblong = {**SMALLEST, "crop_size": (360, 480)}
    sides = proposed(error, "fit", "crops of 360 x 480", oblong, precision="16-mixed")
    assert sides == ["--data.crop_size [256, 352]"]
    assert proposed(error, "test", "12 objects at a time", {}) == [HALF, smaller[1]]
    for text in ("out of memory\nCUDA kernel errors might", "CUBLAS_STATUS_ALLOC_FAILED when"):
        assert proposed(RuntimeError(f"CUDA error: {text}"), first="the GPU lacks") == [HALF]
    for action in (lambda: torch.empty(2**60), lambda: np.empty(2**59)):
        options = proposed(real_error(action), first="the machine lacks memory")
        assert options == ["--data.num_workers 0"]
    bare = Namespace(trainer=config().trainer, data=Namespace())  # other data modules
    assert "--data" not in str(explain(error, "fit", bare, None))


@pytest.mark.parametrize(
    "text",
    [
        KILLED,
        "DataLoader worker (pid(s) 7, 8) exited unexpectedly",
        "Pin memory thread exited unexpectedly",
        "unable to open shared memory object </torch_7_1> in read-write mode: No space left (28)",
        "unable to write to file </torch_7_1>: No space left on device (28)",
    ],
)
def test_a_dead_worker(text):
    first, _ = explained(RuntimeError(text))
    for part in (text.strip(" ."), "--data.num_workers 4; try 2", "--shm-size", str(LAST)):
        assert part in first
    assert "no last.ckpt" in explained(RuntimeError(text), last=None)[0]


def raised_in_turn(*errors):
    """The last of some errors, each of which was raised while the one before was handled."""
    before = None
    for error in errors:
        error.__context__ = before
        before = error
    return before


@pytest.mark.parametrize(
    "later",
    [
        RuntimeError("DataLoader worker (pid(s) 7) exited"),
        RuntimeError(UNFINISHED),
        CheckpointError("x"),
        SystemError("returned a result"),
    ],
)
def test_a_worker_that_dies_wherever_the_main_thread_is(later):
    error = raised_in_turn(ValueError("x"), RuntimeError(KILLED), later)
    assert "killed by signal: Killed" in explained(error)[0]
    assert interruption(error, True) == (143, "SIGTERM")
    assert interruption(error, False) is None


def test_a_worker_that_is_known_by_its_connection_alone():
    """It closes its sockets before the system calls it dead."""
    here, there = multiprocessing.Pipe()
    there.close()
    with pytest.raises(EOFError) as ended:
        here.recv()
    with pytest.raises(ConnectionRefusedError) as refused:
        multiprocessing.connection.Client(("localhost", 1))
    for error in (ended.value, refused.value):
        assert f"({type(error).__name__} on its connection)" in explained(error)[0]
        assert interruption(error, True) == (143, "SIGTERM")
        assert explain(type(error)(), "fit", config(), LAST) is None, "of something else"


@each(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("out of memory"),
        DataError("photo.jpg: broken"),
        RuntimeError("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most"),
        raised_in_turn(MemoryError("x"), KeyError("without that much")),
    ],
)
def test_what_is_not_known_passes(error):
    assert explain(error, "fit", config(), LAST) is None


def test_a_monitor_that_is_not_there():
    scores = {"val/miou@5": torch.tensor(0.5)}
    with pytest.raises(RuntimeError) as raised:
        EarlyStopping("val/iou")._validate_condition_metric(scores)
    message = str(explain(raised.value, "fit", config(), LAST))
    assert message.startswith("--trainer.callbacks: ")
    assert "`val/miou@5`" in message


MENDED = [
    DataError("2 samples cannot be used:\n  a.jpg: broken\n  b.jpg: broken\nReplace the files"),
    UnknownNameError("part", "x", ["y"]),
    DatasetNotFoundError("SBD", "/nowhere", "img/", "Fetch it."),
]
RAISED = [*MENDED, MemoryError("Unable to allocate 9.3 GiB"), ZeroDivisionError("oh")]


class Broken(Dataset):
    """Raises in the worker process."""

    def __len__(self):
        return len(RAISED)

    def __getitem__(self, index):
        try:
            raise OSError
        except OSError as error:
            raise RAISED[index] from error


def test_errors_of_worker_processes():
    batches = iter(DataLoader(Broken(), num_workers=1))
    arrived = []
    for _ in RAISED:
        with pytest.raises(Exception, match="Original Traceback") as raised:
            next(batches)
        arrived.append(raised.value)
    assert list(batches) == []  # which ends the worker
    *mended, memory, mistake = arrived
    for error, sent in zip(mended, MENDED, strict=True):
        assert str(explain(error, "fit", config(), LAST)) == str(sent)
    assert "9.3 GiB" in explained(memory)[0]
    assert "--data.num_workers 4; try 2" in explained(memory)[0]
    assert explain(mistake, "fit", config(), LAST) is None


def exit_after(interrupt):
    try:
        try:
            raise interrupt
        except KeyboardInterrupt:
            sys.exit(1)  # as Lightning does
    except SystemExit as stop:
        return stop


def test_a_circle_of_errors_has_an_end():
    first, second = OSError(28, "No space left"), RuntimeError("of the same writer")
    first.__context__, second.__context__ = second, first
    assert [*history(second)] == [second, first]
    assert interruption(first, False) is None


def test_statuses_of_signals():
    interrupted = (130, "Ctrl-C")
    assert interruption(SIGTERMException(), True) == (143, "SIGTERM")
    assert interruption(exit_after(KeyboardInterrupt()), False) == interrupted
    assert interruption(KeyboardInterrupt(), False) == interrupted
    late = raised_in_turn(KeyboardInterrupt(), RuntimeError(UNFINISHED))
    assert interruption(late, False) == interrupted
    assert interruption(SystemExit(1), False) is None
    assert "takes over" in how_to_continue("test", None)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    write_folder(tmp_path / "data", images=9, size=(24, 32))
    return tmp_path


def fit(*more):
    quiet = ("--evaluation.pictures=0", "--trainer.num_sanity_val_steps=0")
    return [*folder_fit("data"), *quiet, "--trainer.check_val_every_n_epoch=1000000", *more]


def ended(place, disturb, *more):
    """Disturb an endless training after its first checkpoint; return status, text, checkpoint."""
    log, last = place / "output.txt", place / LAST
    process = started(place, fit("--trainer.max_epochs=1000000", *more))
    end = time.monotonic() + PATIENCE
    try:
        while not last.exists():
            assert process.is_alive(), log.read_text()
            assert time.monotonic() < end, f"no checkpoint within {PATIENCE} s"
            time.sleep(0.02)
        disturb(process.pid)
        process.join(PATIENCE)
        assert process.exitcode is not None, f"still running after {PATIENCE} s"
    finally:
        process.kill()
        process.join()
    return process.exitcode, log.read_text(), torch.load(last, weights_only=True)


def kill_a_worker(pid):
    (first, *_) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.kill(int(first), signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are looked up in /proc")
def test_a_worker_that_is_killed(place):
    status, text, before = ended(place, kill_a_worker, "--data.num_workers=2")
    assert status == 2, text
    assert "a process that reads data has died (" in text
    assert f"--ckpt_path last` continues from {LAST}" in text
    epochs = before["epoch"] + 2
    assert command(*fit(f"--trainer.max_epochs={epochs}", "--ckpt_path", "last")) == 0
    assert torch.load(LAST, weights_only=True)["global_step"] > before["global_step"]


@pytest.mark.parametrize(
    ("number", "wanted", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGHUP, 143, "SIGTERM")]
)
def test_a_training_that_is_asked_to_stop(number, wanted, name, place):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` ignores SIGHUP
    try:
        status, text, stored = ended(place, lambda pid: os.kill(pid, number))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert status == wanted
    assert "Traceback" not in text
    assert f"probseg: stopped by {name}; the same command with `--ckpt_path last`" in text
    assert str(LAST) in text
    assert stored["probseg_version"] == probseg.__version__


def failing_step(error):
    def step(*given):
        raise error

    return step


@pytest.mark.usefixtures("place")
def test_errors_of_a_training_step(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ProbsegCLI, "_run_subcommand", lambda *given: None)
        cli = finished(*fit("--trainer.max_epochs=1"))
    step = failing_step(torch.OutOfMemoryError(CUDA))
    monkeypatch.setattr(InteractiveSegmentation, "training_step", step)
    with pytest.raises(UsageError, match="batches of 2 crops of 32 x 32") as raised:
        cli._run_subcommand("fit")
    assert "--data.batch_size 1 --trainer.accumulate_grad_batches 2" in str(raised.value)
    monkeypatch.setattr(InteractiveSegmentation, "training_step", failing_step(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli._run_subcommand("fit")


OTHER = "lightning.pytorch.plugins.io.TorchCheckpointIO"


def test_a_loss_that_is_not_finite(place, monkeypatch, capsys):
    right = BinaryCrossEntropy.forward
    monkeypatch.setattr(BinaryCrossEntropy, "forward", lambda *given: right(*given) * torch.nan)
    message = usage_error(capsys, *fit("--trainer.max_epochs=1"))
    assert "step 0" in message
    assert str(RUN / "nonfinite_step0.pt") in message
    assert (RUN / "nonfinite_step0.pt").is_file()


@each(
    ("asked", "expected"),
    [((), True), (("--weights_only=false",), False), ((f"--trainer.plugins={OTHER}",), True)],
)
def test_trainings_are_guarded_and_unpickle_nothing_from_an_address(
    asked, expected, place, monkeypatch
):
    given = {}

    @functools.wraps(Trainer.fit)  # from whose signature the parser has its arguments
    def fitted(self, *rest, **options):
        given.update(options)

    monkeypatch.setattr(Trainer, "fit", fitted)
    trainer = finished(*fit("--ckpt_path", "https://example.org/last.ckpt", *asked)).trainer
    assert sum(isinstance(callback, FiniteLoss) for callback in trainer.callbacks) == 1
    writer = TorchCheckpointIO if OTHER in str(asked) else AtomicCheckpointIO
    assert type(trainer.strategy.checkpoint_io) is writer
    assert given["ckpt_path"] == "https://example.org/last.ckpt"
    assert given["weights_only"] is expected


def test_a_file_that_cannot_be_read_is_not_called_unwritable(tmp_path, monkeypatch):
    path = tmp_path / "weights.bin"
    path.touch()
    error = PermissionError(13, "Permission denied", str(path))
    monkeypatch.setattr("os.access", lambda *_: False)  # permissions do not stop a superuser
    message = str(disk_fault(error))
    assert message == f"cannot read {path}: Permission denied; change its permissions"


@each("name", ["ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES"])
@each("named", [True, False])
def test_what_cannot_be_written_is_one_sentence(name, named, tmp_path, monkeypatch, capsys):
    """As any verb raises it; a failed write, unlike a failed open, does not name the file."""

    def fail(options):
        number = getattr(errno, name)
        path = [str(tmp_path / "new" / "mask.png")] if named else []
        raise OSError(number, os.strerror(number), *path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "VERBS", {"predict": fail})
    message = usage_error(capsys, "predict")
    assert message.startswith(f"cannot write {tmp_path}")
    assert os.strerror(getattr(errno, name)) in message
    assert "MB are free); make room" in message


def test_a_database_without_room_is_one_sentence(tmp_path, monkeypatch, capsys):
    def fail(options):
        with sqlite3.connect(tmp_path / "a.sqlite") as database:
            database.execute("PRAGMA max_page_count = 1")
            database.execute("CREATE TABLE objects (number)")

    monkeypatch.setattr(cli, "VERBS", {"annotate": fail})
    message = usage_error(capsys, "annotate")
    assert "database or disk is full (" in message
    assert "MB are free); make room" in message


@pytest.mark.process
def test_a_training_whose_logger_meets_a_full_disk(place, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("lightning.pytorch.loggers.TensorBoardLogger.log_metrics", full)
    message = usage_error(capsys, *fit("--trainer.max_epochs=1"))
    assert message.startswith(f"cannot write {place / RUN}: No space left on device (")


ALWAYS = [
    ("`isinstance(treespec, LeafSpec)` is deprecated, use ...", FutureWarning),
    ("LightningCLI's args parameter is intended to run from within Python ...", UserWarning),
    ("It is recommended to use `self.log('train/stage', ..., sync_dist=True)` when", UserWarning),
    ("The 'val_dataloader' does not have many workers which may be a bottleneck.", UserWarning),
]
GOING_ON = [
    ("Checkpoint directory runs/a/checkpoints exists and is not empty.", UserWarning),
    ("The dirpath has changed from 'a' to 'b', therefore `best_model_score` ...", UserWarning),
]
USEFUL = [
    ("The 'train_dataloader' does not have many workers which may be a bottleneck.", UserWarning),
    ("left out of the training: a.jpg: broken", UserWarning),
    ("isinstance() is deprecated", FutureWarning),
]


@each("goes_on", [False, True])
def test_only_notices_are_silent(goes_on, caplog):
    caplog.set_level(logging.INFO)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        silence_notices()
        if goes_on:
            silence_notices_about_checkpoints()
        for text, category in [*ALWAYS, *GOING_ON, *USEFUL]:
            warnings.warn(text, category, stacklevel=1)
        logging.getLogger("lightning.pytorch.utilities.rank_zero").info("Tip: try a cloud")
    assert "Tip" not in caplog.text
    expected = USEFUL if goes_on else [*GOING_ON, *USEFUL]
    assert [str(warning.message) for warning in heard] == [text for text, _ in expected]
