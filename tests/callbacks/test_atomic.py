"""Checkpoints are whole or not there, whatever happens while they are written."""

import errno
import os
import resource
import signal
import time

import pytest
import torch

from probseg.callbacks.last_checkpoint import AtomicCheckpointIO
from probseg.errors import CheckpointError

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
        unfinished = path.with_name(f".last.ckpt.{child}.part")
        end = time.monotonic() + 60
        while not unfinished.exists():
            assert time.monotonic() < end
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if unfinished.exists():
            break
    assert unfinished.exists()
    stored = torch.load(path, weights_only=True)
    assert stored == OLD or len(stored["more"]) == 40_000_000
    os.utime(unfinished, (0, 0))  # one of the last minute could be of another machine
    writes = forked(lambda: AtomicCheckpointIO().save_checkpoint(NEW, path))
    os.waitpid(writes, 0)  # the next process
    assert list(path.parent.iterdir()) == [path]
