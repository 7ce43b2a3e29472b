"""What ends a run from outside is explained, and the status says what it was."""

import functools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from fakes import write_folder
from jsonargparse import Namespace
from lightning import Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from runs import command, finished, folder_fit, started
from torch.utils.data import DataLoader, Dataset

import probseg.cli.trainer as trainer_module
from probseg.callbacks.atomic import AtomicCheckpointIO
from probseg.callbacks.finite_loss import FiniteLoss
from probseg.cli.faults import explain, interruption, way_on
from probseg.cli.trainer import with_atomic_checkpoints
from probseg.errors import (
    CheckpointError,
    DataError,
    DatasetNotFoundError,
    UnknownNameError,
    UsageError,
    user_error,
)
from probseg.losses import BinaryCrossEntropy
from probseg.tasks import InteractiveSegmentation

pytestmark = pytest.mark.usefixtures("undrawn")

PATIENCE = 120
RUN = Path("runs/probseg/version_0")
LAST = Path("runs/probseg/version_3/checkpoints/last.ckpt")
CUDA = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8 GiB."
ON_CPU = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4194304000 bytes. Error code 12 (Cannot allocate memory)"
)
KILLED = "DataLoader worker (pid 7) is killed by signal: Killed. "


def config(data=(), **trainer):
    """A run of the data module's arguments and the trainer's that matter here."""
    options = {"devices": 1, "precision": None, "accumulate_grad_batches": 1, **trainer}
    sizes = {"batch_size": 16, "crop_size": 256, "eval_batch_size": 12, "num_workers": 4}
    arguments = Namespace(**{**sizes, **dict(data)})
    return Namespace(trainer=Namespace(**options), data=Namespace(init_args=arguments))


def told(error, verb="fit", last=LAST, data=(), **trainer):
    explained = explain(error, verb, config(data, **trainer), last)
    assert isinstance(explained, UsageError)
    assert user_error(explained) is explained
    assert "Traceback" not in str(explained)
    return str(explained)


def lines(error, verb="fit", data=(), **trainer):
    """What is proposed, in its order."""
    return [line.strip() for line in told(error, verb, LAST, data, **trainer).splitlines()[1:]]


def test_a_gpu_without_memory():
    text = told(torch.OutOfMemoryError(CUDA), devices=2)
    assert "the GPU has not enough memory" in text
    assert "batches of 16 crops of 256 x 256 pixels per device" in text
    assert "devices: 2, precision: 32-true" in text
    assert "Tried to allocate 2.50 GiB" in text


def test_the_way_out_keeps_the_global_batch():
    first, precision, crop, evaluation, network = lines(torch.OutOfMemoryError(CUDA))
    assert first.startswith("--data.batch_size 8 --trainer.accumulate_grad_batches 2 (")
    assert "batch normalisation sees 8 crops" in first
    assert precision == "--trainer.precision bf16-mixed"
    assert crop == "--data.crop_size 192"
    assert evaluation == "--data.eval_batch_size 6 if it happened in a validation"
    assert network == "a smaller network, or a larger GPU"


@pytest.mark.parametrize(
    ("batch", "steps", "proposed"),
    [(16, 4, (8, 8)), (15, 1, (5, 3)), (7, None, (1, 7)), (2, 3, (1, 6))],
)
def test_batch_times_steps_stays_the_same(batch, steps, proposed):
    first = lines(
        torch.OutOfMemoryError(CUDA), data={"batch_size": batch}, accumulate_grad_batches=steps
    )[0]
    smaller, more = proposed
    assert smaller * more == batch * (steps or 1)
    assert f"--data.batch_size {smaller} --trainer.accumulate_grad_batches {more} " in first


def test_what_cannot_get_smaller_is_not_proposed():
    data = {"batch_size": 1, "crop_size": 64, "eval_batch_size": 1}
    proposed = lines(torch.OutOfMemoryError(CUDA), data=data, precision="bf16-mixed")
    assert proposed == ["a smaller network, or a larger GPU"]


def test_crops_that_are_no_squares():
    data = {"crop_size": (360, 480), "eval_batch_size": None}
    assert "crops of 360 x 480 pixels" in told(torch.OutOfMemoryError(CUDA), data=data)
    assert "--data.crop_size [256, 352]" in lines(torch.OutOfMemoryError(CUDA), data=data)


def test_without_memory_in_a_test():
    text = told(torch.OutOfMemoryError(CUDA), "test")
    assert "for 12 objects at a time" in text
    assert "--data.eval_batch_size 6\n" in text
    assert "--data.batch_size" not in text
    assert "crop_size" not in text


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_other_words_for_a_gpu_without_memory(error):
    assert "the GPU has not enough memory" in told(error)


def test_a_machine_without_memory():
    for error in (RuntimeError(ON_CPU), MemoryError("Unable to allocate 9.3 GiB for an array")):
        text = told(error)
        assert "the machine has not enough memory" in text
        assert "bf16" not in text
        assert "--data.num_workers 0" in text
    assert "tried to allocate 4194304000 bytes" in told(RuntimeError(ON_CPU))


def test_real_errors_of_the_allocators_are_known():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert "the machine has not enough memory" in told(raised.value)
    with pytest.raises(MemoryError) as raised:
        np.empty(2**59)
    assert "the machine has not enough memory" in told(raised.value)


def test_data_modules_of_other_kinds():
    bare = Namespace(trainer=config().trainer, data=Namespace())
    for verb in ("fit", "test"):
        text = str(explain(torch.OutOfMemoryError(CUDA), verb, bare, None))
        assert "not enough memory for devices: 1" in text
        assert "--data" not in text


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
    explained = told(RuntimeError(text))
    assert text.strip(" .") in explained
    assert "--data.num_workers 4; try 2" in explained
    assert "--shm-size" in explained
    assert f"the same command with `--ckpt_path last` goes on from {LAST}" in explained


def test_the_signal_is_told_of():
    """torch raises one error from the other."""
    error = RuntimeError("DataLoader worker (pid(s) 7) exited")
    error.__cause__ = RuntimeError(KILLED)
    assert "killed by signal: Killed" in told(error)


def raised_in_turn(*errors):
    """The last of some errors, each of which was raised while the one before was handled."""
    before = None
    for error in errors:
        error.__context__ = before
        before = error
    return before


UNFINISHED = "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"


def test_a_worker_that_dies_while_others_clean_up():
    """The signal's handler raises wherever the main thread is."""
    for later in (RuntimeError(UNFINISHED), CheckpointError("x"), SystemError("returned a result")):
        error = raised_in_turn(ValueError("x"), RuntimeError(KILLED), later)
        assert "killed by signal: Killed" in told(error)
        assert interruption(error, True) == (143, "SIGTERM")
        assert interruption(error, False) is None


def test_ctrl_c_while_others_clean_up():
    error = raised_in_turn(KeyboardInterrupt(), RuntimeError(UNFINISHED))
    assert interruption(error, False) == (130, "Ctrl-C")


def test_a_worker_that_is_known_by_its_connection_alone():
    """It closes its sockets before the system calls it dead."""
    here, there = multiprocessing.Pipe()
    there.close()
    with pytest.raises(EOFError) as ended:
        here.recv()
    with pytest.raises(ConnectionRefusedError) as refused:
        multiprocessing.connection.Client(("localhost", 1))
    for error in (ended.value, refused.value):
        text = told(error)
        assert f"has died ({type(error).__name__} on its connection)" in text
        assert "--data.num_workers 4; try 2" in text
        assert interruption(error, True) == (143, "SIGTERM")
        assert explain(type(error)(), "fit", config(), LAST) is None, "of something else"


def test_before_the_first_checkpoint():
    assert "no last.ckpt has been written yet" in told(RuntimeError(KILLED), last=None)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("out of memory"),
        KeyError("x"),
        DataError("photo.jpg: broken"),
        RuntimeError("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most"),
        raised_in_turn(MemoryError("x"), KeyError("without that much")),
    ],
)
def test_what_is_not_known_passes(error):
    assert explain(error, "fit", config(), LAST) is None


SAID = [
    DataError("photo.jpg: cannot be read; replace it"),
    DataError("2 samples cannot be used:\n  a.jpg: broken\n  b.jpg: broken\nReplace the files"),
    UnknownNameError("part", "x", ["y"]),
    DatasetNotFoundError("SBD", "/nowhere", "img/", "Fetch it."),
    MemoryError("Unable to allocate 9.3 GiB"),
    ZeroDivisionError("oh"),
]


class Broken(Dataset):
    """Raises in the worker process."""

    def __len__(self):
        return len(SAID)

    def __getitem__(self, index):
        try:
            msg = "what the decoder said"
            raise OSError(msg)
        except OSError as error:
            raise SAID[index] from error


@pytest.fixture(scope="module")
def arrived():
    """What the main process gets of it."""
    batches = iter(DataLoader(Broken(), num_workers=1))
    errors = []
    for _ in SAID:
        with pytest.raises(Exception, match="Original Traceback") as raised:
            next(batches)
        errors.append(raised.value)
    assert list(batches) == []  # which ends the worker
    return errors


def test_what_a_worker_says_arrives_as_it_was_said(arrived):
    for said, error in zip(SAID[:4], arrived, strict=False):
        assert str(error) != str(said)
        assert told(error) == str(said)


def test_a_worker_without_memory(arrived):
    text = told(arrived[4])
    assert "Unable to allocate 9.3 GiB" in text
    assert "--data.num_workers 4; try 2" in text


def test_what_a_worker_raises_by_mistake_keeps_its_traceback(arrived):
    assert explain(arrived[5], "fit", config(), LAST) is None


def exit_after(interrupt):
    try:
        try:
            raise interrupt
        except KeyboardInterrupt:
            sys.exit(1)  # as Lightning does
    except SystemExit as stop:
        return stop


def test_statuses_of_signals():
    assert interruption(SIGTERMException(), True) == (143, "SIGTERM")
    assert interruption(exit_after(KeyboardInterrupt()), False) == (130, "Ctrl-C")
    assert interruption(KeyboardInterrupt(), False) == (130, "Ctrl-C")
    assert interruption(SystemExit(1), False) is None
    assert interruption(RuntimeError(KILLED), False) is None
    assert interruption(RuntimeError(KILLED), True) == (143, "SIGTERM")


def test_ways_on():
    assert way_on("fit", LAST).endswith(str(LAST))
    assert "the same command starts again, and takes over" in way_on("test", None)
    assert way_on("validate", None) == "the same command starts again"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    write_folder(tmp_path / "data", images=9, size=(24, 32))
    return tmp_path


def fit(*more):
    quiet = ("--evaluation.pictures=0", "--trainer.num_sanity_val_steps=0")
    return [*folder_fit("data"), *quiet, "--trainer.check_val_every_n_epoch=1000000", *more]


ENDLESS = "--trainer.max_epochs=1000000"


def ended(place, disturb, *more):
    """Disturb an endless training after its first checkpoint; return status, text, checkpoint."""
    log = place / "told.txt"
    last = place / RUN / "checkpoints" / "last.ckpt"
    process = started(place, fit(ENDLESS, *more))
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
def test_a_worker_that_is_killed(place, capsys):
    status, text, before = ended(place, kill_a_worker, "--data.num_workers=2")
    assert status == 2, text
    text = text[text.index("probseg: error: ") :]  # after what Python may tell of destructors
    assert "Traceback" not in text
    assert "probseg: error: a process that reads data has died (" in text
    assert f"the same command with `--ckpt_path last` goes on from {RUN}" in text
    epochs = before["epoch"] + 2
    assert command(*fit(f"--trainer.max_epochs={epochs}", "--ckpt_path", "last")) == 0
    after = torch.load(place / RUN / "checkpoints" / "last.ckpt", weights_only=True)
    assert after["global_step"] > before["global_step"]


@pytest.mark.parametrize(
    ("number", "status", "name"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")]
)
def test_a_training_that_is_asked_to_stop(number, status, name, place):
    got, text, stored = ended(place, lambda pid: os.kill(pid, number))
    assert got == status
    assert "Traceback" not in text
    told = f"probseg: stopped by {name}; the same command with `--ckpt_path last` goes on from"
    assert f"{told} {RUN}/checkpoints/last.ckpt\n" in text
    assert stored["probseg"]["format"] == 2


def test_a_training_without_memory(place, monkeypatch, capsys):
    def too_much(*given):
        raise torch.OutOfMemoryError(CUDA)

    monkeypatch.setattr(InteractiveSegmentation, "training_step", too_much)
    assert command(*fit("--trainer.max_epochs=1")) == 2
    text = capsys.readouterr().err
    assert "probseg: error: the GPU has not enough memory for batches of 2 crops of 32 x 32" in text
    assert "--data.batch_size 1 --trainer.accumulate_grad_batches 2" in text


def test_a_loss_that_is_not_finite(place, monkeypatch, capsys):
    right = BinaryCrossEntropy.forward
    monkeypatch.setattr(BinaryCrossEntropy, "forward", lambda *given: right(*given) * torch.nan)
    assert command(*fit("--trainer.max_epochs=1")) == 2
    text = capsys.readouterr().err
    assert "probseg: error: the loss of step 0 (epoch 0, batch seed" in text
    assert str(RUN / "nonfinite_step0.pt") in text
    assert (RUN / "nonfinite_step0.pt").is_file()


def guards(trainer):
    """What guards a training, by the classes of its parts."""
    finite = [callback for callback in trainer.callbacks if isinstance(callback, FiniteLoss)]
    return len(finite), type(trainer.strategy.checkpoint_io)


def test_every_training_is_guarded(place):
    done = finished(*fit("--trainer.max_epochs=1"))
    assert guards(done.trainer) == (1, AtomicCheckpointIO)
    text = (place / RUN / "config.yaml").read_text()
    assert "FiniteLoss" not in text
    assert "Atomic" not in text
    assert yaml.safe_load(text)["trainer"].get("plugins") is None
    again = ("--config", RUN / "config.yaml", "--trainer.max_epochs=2", "--ckpt_path", "last")
    assert guards(finished("fit", *again).trainer) == (1, AtomicCheckpointIO)
    assert guards(finished("validate", *again[:2]).trainer)[0] == 0


def test_other_writers_of_checkpoints_stay():
    other, cluster = TorchCheckpointIO(), LightningEnvironment()
    assert with_atomic_checkpoints(other) == [other]
    assert with_atomic_checkpoints([cluster, other]) == [cluster, other]
    for given in (cluster, [cluster]):
        first, second = with_atomic_checkpoints(given)
        assert first is cluster
        assert isinstance(second, AtomicCheckpointIO)
    assert len(with_atomic_checkpoints(None)) == 1


@pytest.mark.parametrize(("asked", "expected"), [((), True), (("--weights_only=false",), False)])
def test_checkpoints_from_an_address_are_not_unpickled(asked, expected, place, monkeypatch):
    given = {}

    @functools.wraps(Trainer.fit)  # from whose signature the parser has its arguments
    def fitted(self, *rest, **options):
        given.update(options)

    monkeypatch.setattr(Trainer, "fit", fitted)
    finished(*fit("--ckpt_path", "https://example.org/last.ckpt", *asked))
    assert given["ckpt_path"] == "https://example.org/last.ckpt"
    assert given["weights_only"] is expected


def test_mistakes_keep_their_traceback(place, monkeypatch):
    def broken(*given):
        msg = "oh"
        raise ZeroDivisionError(msg)

    monkeypatch.setattr(InteractiveSegmentation, "training_step", broken)
    with pytest.raises(ZeroDivisionError, match="oh"):
        command(*fit("--trainer.max_epochs=1"))


def test_ctrl_c_while_the_command_line_is_read(monkeypatch, capsys):
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module, "ProbsegCLI", interrupted)
    assert command("fit") == 130
    assert capsys.readouterr().err.endswith("probseg: stopped by Ctrl-C\n")
