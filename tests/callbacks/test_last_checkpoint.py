"""A training that is interrupted anywhere ends as if it had not been; its checkpoints are whole."""

import errno
import functools
import os
import resource
import signal
import threading
import time

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader

from probseg.callbacks import LastCheckpoint, last_checkpoint
from probseg.callbacks.last_checkpoint import AtomicCheckpointIO
from probseg.data import InteractiveDataset
from probseg.errors import CheckpointError
from probseg.zoo.trained import read_trained
from support.fakes import FakeObjects
from support.runs import assert_identical
from support.trainings import Killed, quiet_trainer, train

STEPS = 4
"""Batches of an epoch."""


class Interrupt(Callback):
    """Interrupts a training at a place and after so many batches."""

    def __init__(self, place, batches, by):
        self.place = place
        self.batches = batches
        self.by = by

    def _at(self, place, trainer):
        done = trainer.fit_loop.epoch_loop.batch_progress.total.completed
        if (place, done) == (self.place, self.batches) and not trainer.sanity_checking:
            if self.by is Killed:
                raise Killed
            os.kill(os.getpid(), self.by)

    def on_before_backward(self, trainer, pl_module, loss):
        self._at("backward", trainer)

    def on_train_batch_end(self, trainer, *arguments):
        self._at("batch", trainer)

    def on_validation_batch_start(self, trainer, *arguments):
        self._at("validation", trainer)

    def on_train_epoch_end(self, trainer, pl_module):
        self._at("epoch", trainer)


class Validations(Callback):
    """Remembers after which step a validation was complete, and what the weights were."""

    def __init__(self):
        self.seen = {}

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.seen[trainer.global_step] = trainer.current_epoch


def fit(place, *callbacks, **options):
    """Train with validations and averaged weights."""
    average, val = EMAWeightAveraging(decay=0.8), FakeObjects(2, size=(32, 32))
    return train(place, average, *callbacks, objects=2 * STEPS + 1, val=val, **options)


def content(place):
    """The last checkpoint without what is of a run alone."""
    stored = torch.load(place / "checkpoints" / "last.ckpt", weights_only=True)
    return {name: value for name, value in stored.items() if name != "callbacks"}


OPTIONS = {
    "plain": {},
    "accumulating": {"accumulate_grad_batches": 2, "val_check_interval": 2},
    "validating in between": {"accumulate_grad_batches": 2, "val_check_interval": 3},
}
ENDS = {Killed: Killed, signal.SIGTERM: SIGTERMException, signal.SIGINT: SystemExit}
CASES = [  # each place, interruption and configuration; nightly, more of their pairs
    ("plain", "batch", STEPS - 1, Killed),
    ("plain", "epoch", STEPS, Killed),
    ("plain", "backward", 5, signal.SIGINT),
    ("plain", "validation", 3 * STEPS, signal.SIGTERM),
    ("accumulating", "backward", 5, signal.SIGTERM),
    ("validating in between", "validation", 3, Killed),
    ("validating in between", "validation", 3, signal.SIGTERM),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("plain", "backward", 5, Killed),
            ("plain", "validation", 2 * STEPS, Killed),
            ("accumulating", "backward", 5, Killed),
        )
    ),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The last checkpoint and the validations of a training that nothing interrupts."""

    @functools.cache
    def run(name):
        place = tmp_path_factory.mktemp("whole")
        validations = Validations()
        fit(place, validations, LastCheckpoint(), **OPTIONS[name])
        return content(place), validations.seen

    return run


@pytest.mark.parametrize(("name", "where", "batches", "by"), CASES)
def test_an_interrupted_training_ends_as_if_uninterrupted(
    name, where, batches, by, uninterrupted, tmp_path
):
    options = OPTIONS[name]
    expected, validations = uninterrupted(name)
    before, after = Validations(), Validations()
    halt = before, LastCheckpoint(every_minutes=None, every_steps=1), Interrupt(where, batches, by)
    with pytest.raises(ENDS[by]):
        fit(tmp_path, *halt, **options)
    last = tmp_path / "checkpoints" / "last.ckpt"
    trainer = fit(tmp_path, after, LastCheckpoint(), resume=last, seed=1, **options)
    assert trainer.current_epoch == 3
    assert_identical(content(tmp_path), expected)
    assert before.seen | after.seen == validations
    if by is not Killed:
        assert not set(before.seen) & set(after.seen), "no validation is done twice"


class Weights(Callback):
    """Remembers the trained weights after each batch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, *arguments):
        state = pl_module.model.state_dict()
        self.seen.append({name: tensor.detach().clone() for name, tensor in state.items()})


def test_what_is_read_of_an_averaged_training_is_its_average(tmp_path):
    raw, last = Weights(), tmp_path / "checkpoints" / "last.ckpt"
    halt = LastCheckpoint(every_minutes=None, every_steps=1), Interrupt("batch", 6, Killed)
    with pytest.raises(Killed):
        fit(tmp_path, raw, *halt)
    stored = torch.load(last, weights_only=True)
    del raw.seen[stored["global_step"] :]
    fit(tmp_path, raw, LastCheckpoint(), resume=last, seed=1)
    assert len(raw.seen) == 3 * STEPS
    average = raw.seen[0]
    for state in raw.seen[1:]:
        average = {name: 0.8 * average[name] + 0.2 * state[name] for name in average}
    stored = torch.load(last, weights_only=True)
    # A command line notes how the network is described.
    described = {"class_path": "probseg.models.variant", "init_args": {"of": "micro_csa"}}
    torch.save({**stored, "hyper_parameters": {"model": described}}, last)
    for which, expected in ((None, average), ("ema", average), ("last", raw.seen[-1])):
        read = read_trained(last, which).weights
        assert read.keys() == expected.keys()
        for name, tensor in read.items():
            if tensor.is_floating_point():
                torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-4)
    pairs = [(average[name], tensor) for name, tensor in raw.seen[-1].items()]
    assert not all(torch.allclose(*pair, atol=1e-5, rtol=1e-4) for pair in pairs), "they differ"


@pytest.mark.parametrize("early", [{"max_steps": 8}, {"limit": 6}])
def test_a_training_that_ended_early_can_be_made_longer(early, uninterrupted, tmp_path):
    class Enough(Callback):
        def on_train_batch_end(self, trainer, *arguments):
            trainer.should_stop = trainer.global_step == early.get("limit")

    steps = {"max_steps": early["max_steps"]} if "max_steps" in early else {}
    fit(tmp_path, Enough(), LastCheckpoint(), **steps)
    fit(tmp_path, LastCheckpoint(), resume=tmp_path / "checkpoints" / "last.ckpt")
    state, expected = content(tmp_path)["state_dict"], uninterrupted("plain")[0]["state_dict"]
    assert_identical(state, expected)


class Linear(L.LightningModule):
    """As little as can be trained and validated."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def validation_step(self, batch, batch_idx):
        return None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        return DataLoader(torch.ones(4, 1))

    def val_dataloader(self):
        items = torch.ones(3, 1)
        world = self.trainer.world_size, self.trainer.global_rank
        share = UnrepeatedDistributedSampler(items, *world, shuffle=False)
        return DataLoader(items, sampler=share)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are quick to start")
def test_processes_may_have_different_numbers_of_validation_batches(tmp_path):
    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use, so this process cannot be forked")
    two = {"devices": 2, "strategy": "ddp_fork", "max_epochs": 2}
    quiet_trainer(tmp_path, LastCheckpoint(), **two).fit(Linear())  # it would wait for ever
    assert content(tmp_path)["global_step"] == 4


class Twice(Callback):
    """Sends two signals, one right after the other."""

    def on_before_backward(self, trainer, pl_module, loss):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("later", [True, False])
def test_a_second_signal_stops_at_once_unless_it_is_the_first_one_forwarded(
    later, tmp_path, monkeypatch
):
    before = signal.getsignal(signal.SIGTERM)
    if later:
        monkeypatch.setattr(last_checkpoint, "FORWARDED_WITHIN", -1.0)
    with pytest.raises(SIGTERMException):
        fit(tmp_path, LastCheckpoint(), Twice())
    assert (tmp_path / "checkpoints").exists() != later
    if not later:
        assert content(tmp_path)["global_step"] == 1, "the batch came to its end"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_training_in_a_thread_saves_too(tmp_path):
    thread = threading.Thread(target=fit, args=(tmp_path, LastCheckpoint()))
    thread.start()
    thread.join(60)
    assert content(tmp_path)["global_step"] == 3 * STEPS


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"every_minutes": None, "every_steps": 3}, {3, 6, 9}),
        ({"every_minutes": 1e-9}, {*range(1, 12)} - {4, 8}),
    ],
)
def test_it_is_written_when_asked(options, steps, tmp_path):
    written = []

    class Noting(LastCheckpoint):
        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            if trainer.training and not trainer.is_last_batch:
                written.append(trainer.global_step)

    fit(tmp_path, Noting(**options))
    assert set(written) == steps
    with pytest.raises(ValueError, match=next(iter(options))):
        LastCheckpoint(**dict.fromkeys(options, 0))


# --- a training that goes on from a checkpoint with something changed ---

OBJECTS = 16


class Watch(Callback):
    """Remembers epoch, number and objects of each batch; kills a training before a step."""

    def __init__(self, killed_at=None):
        self.killed_at = killed_at
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.killed_at:
            raise Killed
        self.seen.append((trainer.current_epoch, batch_idx, batch.names))

    def batches(self, epoch):
        """Numbers of the batches of an epoch, and all their objects."""
        own = [(number, names) for of, number, names in self.seen if of == epoch]
        return [number for number, _ in own], [name for _, names in own for name in names]


def fit_watched(place, killed_at=None, objects=OBJECTS, **options):
    """Train; return what was seen and the weights."""
    watch = Watch(killed_at)
    trainer = train(place, watch, LastCheckpoint(every_steps=1), objects=objects, **options)
    return watch, trainer.lightning_module.state_dict()


def killed(place, step, **options):
    """A checkpoint from the middle of a training."""
    with pytest.raises(Killed):
        fit_watched(place, killed_at=step, **options)
    return place / "checkpoints" / "last.ckpt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed training with batches of two: what was seen and the weights."""
    return fit_watched(tmp_path_factory.mktemp("whole"))


def test_another_number_of_workers_changes_nothing(whole, tmp_path):
    watch, weights = whole
    rest, again = fit_watched(tmp_path, workers=2, resume=killed(tmp_path, 11))
    assert rest.seen == watch.seen[11:]
    assert all(torch.equal(again[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize(("before", "done", "rest"), [(4, 1, range(2, 8)), (3, 3, range(4, 8))])
def test_another_batch_size_goes_on_with_the_same_crops(before, done, rest, whole, tmp_path):
    """A batch that was seen in part is seen again."""
    last = killed(tmp_path, OBJECTS // before + done, batch_size=before)
    resumed, _ = fit_watched(tmp_path, resume=last)
    assert resumed.batches(0) == ([], [])
    assert resumed.batches(1) == (list(rest), whole[0].batches(1)[1][2 * rest[0] :])
    assert resumed.batches(2) == whole[0].batches(2), "the epoch after it is whole again"


@pytest.mark.parametrize(("objects", "rest"), [(10, []), (20, list(range(5, 10)))])
def test_other_data_are_trained_on_from_the_same_place(objects, rest, tmp_path):
    last = killed(tmp_path, OBJECTS // 2 + 5)
    resumed, _ = fit_watched(tmp_path, objects=objects, resume=last)
    assert resumed.batches(1)[0] == rest
    numbers, names = resumed.batches(2)
    assert numbers == list(range(objects // 2))
    assert sorted(names) == sorted(f"object{number}" for number in range(objects))


def test_a_signal_ends_the_waiting_for_a_batch(tmp_path, monkeypatch):
    """A batch that never comes does not keep the training; the one that is computed may end."""
    monkeypatch.setattr(last_checkpoint, "BATCH_PATIENCE", 0.3)
    monkeypatch.setattr(last_checkpoint, "FORWARDED_WITHIN", 0.1)
    objects, began = FakeObjects(4), []

    def never(self, index):
        if not began:
            began.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)

    monkeypatch.setattr(InteractiveDataset, "check", lambda self: None)  # it reads the first object
    monkeypatch.setattr(FakeObjects, "__getitem__", never)
    with pytest.raises(SIGTERMException):
        train(tmp_path, LastCheckpoint(), objects=len(objects.samples))
    assert time.monotonic() - began[0] < 15


OLD, NEW = {"step": 1}, {"step": 2, "weights": torch.arange(1000)}


@pytest.fixture
def path(tmp_path):
    """A file with an old checkpoint."""
    path = tmp_path / "checkpoints" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, path)
    return path


def assert_only_the_old(path):
    assert torch.load(path, weights_only=True) == OLD
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("call", ["pathlib.Path.open", "os.fsync", "pathlib.Path.replace"])
def test_the_old_file_stands_when_the_new_one_fails(call, path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(call, fail)
    with pytest.raises(CheckpointError, match=r"No space left.* MB are free"):
        AtomicCheckpointIO().save_checkpoint(NEW, path)
    new = path.parent.with_name("new") / "epoch000.ckpt"
    with pytest.raises(CheckpointError, match=r"nothing was written\. There is no") as caught:
        AtomicCheckpointIO().save_checkpoint(NEW, new)
    assert "--ckpt_path" not in str(caught.value)
    monkeypatch.undo()
    assert_only_the_old(path)
    AtomicCheckpointIO().save_checkpoint(NEW, path)
    assert torch.equal(AtomicCheckpointIO().load_checkpoint(path)["weights"], NEW["weights"])


def forked(work):
    """Run a function in a process of its own; return its number."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


def test_a_full_disk(path, tmp_path):
    """The system's limit of the size of files stands for it: writing fails half way."""

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            AtomicCheckpointIO().save_checkpoint({"weights": bytes(400_000)}, path)
        except CheckpointError as error:
            (tmp_path / "message").write_text(str(error))
            os._exit(0)

    assert os.waitpid(forked(work), 0)[1] == 0
    message = (tmp_path / "message").read_text()
    for part in (path, "0.4 MB", "continue with --ckpt_path last", f"--ckpt_path {path}"):
        assert str(part) in message
    assert_only_the_old(path)


def test_killed_while_writing(path):
    def work():
        for step in range(2, 1000):
            AtomicCheckpointIO().save_checkpoint({"step": step, "more": bytes(40_000_000)}, path)

    for _ in range(20):  # until a kill falls into the writing
        child = forked(work)
        end = time.monotonic() + 60
        while not (parts := list(path.parent.glob(f".last.ckpt.*-{child}.part"))):
            assert time.monotonic() < end
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if parts[0].exists():
            break
    stored = torch.load(path, weights_only=True)
    assert stored == OLD or len(stored["more"]) == 40_000_000
    elsewhere = [path.with_name(f".{age}.ckpt.another-{child}.part") for age in ("old", "new")]
    for place in elsewhere:  # of another machine, where a process of this number may be alive
        place.touch()
    os.utime(elsewhere[0], (0, 0))
    assert parts[0].exists()
    writes = forked(lambda: AtomicCheckpointIO().save_checkpoint(NEW, path))
    os.waitpid(writes, 0)  # the next process
    assert set(path.parent.iterdir()) == {path, elsewhere[1]}
