"""The checkpoint from which an interrupted training resumes, and how it is written."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from probseg.callbacks.run_folder import is_dry, run_folder
from probseg.errors import CheckpointError, require
from probseg.lightning_internals import (
    end_readers,
    launched_processes,
    mark_validation_as_begun,
    uncount_open_validation,
)
from probseg.paths import replacing
from probseg.zoo.trained import LAST

_logger = logging.getLogger(__name__)


class Wish(IntEnum):
    """What a process asks for after a batch; of several processes, the greatest counts."""

    NOTHING, SAVE, STOP = range(3)


# seconds within which a second signal is the first one, which the parent process forwards
FORWARDED_WITHIN = 2.0
# seconds for which a training that is asked to stop still waits for its next batch
BATCH_PATIENCE = 5.0
CHILD_GRACE = 10.0  # seconds that child processes may outlive the training of the first process
# error numbers of a full disk, a used up quota, and a file over its limit
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_Handler = Callable[[int, FrameType | None], Any] | int | None


class LastCheckpoint(Checkpoint):
    """Keeps `checkpoints/last.ckpt`, from which `--ckpt_path last` resumes.

    It is written every few minutes, after each epoch, before each validation, and when the training
    is asked to stop: after SIGTERM and Ctrl-C, the batch ends first (and those whose gradients are
    accumulated with it). A second signal, two seconds later or more, stops at once; so does a batch
    that does not come for five seconds. A training that continues ends with the same weights as one
    that was never interrupted, on a CPU bit by bit; an interrupted validation is repeated.

    If one of several processes is asked to stop, all stop after the same batch.

    Args:
        every_minutes: Time between two checkpoints; None saves at the other occasions only.
        every_steps: Steps of the optimiser between two checkpoints; None goes by time alone.

    Raises:
        ValueError: If a number is not positive.
    """

    def __init__(self, every_minutes: float | None = 10.0, every_steps: int | None = None) -> None:
        super().__init__()
        for name, value in (("every_minutes", every_minutes), ("every_steps", every_steps)):
            require(value is None or value > 0, name, "positive, or None", value)
        self.every_minutes = every_minutes
        self.every_steps = every_steps
        self._asked: int | None = None  # the signal that asks for an end
        self._asked_at = 0.0
        self._ends = False  # whether all processes stop before the next batch
        self._between = False  # whether gradients are accumulated, which no checkpoint holds
        self._waits = False  # whether it has no batch to work on
        self._validates = False  # whether a validation is about to begin
        self._saved_at = time.monotonic()
        self._handlers: dict[int, _Handler] = {}

    def on_fit_start(self, *_: object, **__: object) -> None:
        """Forget signals to an earlier training."""
        self._asked = None
        self._ends = False

    def on_sanity_check_start(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Handle signals: Lightning's handler may wait for a process that waits for this one."""
        self._listen(trainer)

    def on_train_start(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Handle signals."""
        self._saved_at = time.monotonic()
        self._listen(trainer)
        self._waits = True

    def on_train_end(self, *_: object, **__: object) -> None:
        """Restore the earlier handlers of signals."""
        self._listen_no_more()

    def on_train_batch_start(self, *_: object, **__: object) -> None:
        """Stop if that was decided after the last batch, and no validation has stopped since."""
        self._waits = False
        if self._ends:
            self._stop()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Save if that is due, or if the training is to stop."""
        accumulated = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        self._between = not (accumulated or trainer.is_last_batch)
        self._waits = not trainer.is_last_batch
        if self._between or trainer.is_last_batch:
            return  # after the last batch, the epoch ends
        step, minutes, steps = trainer.global_step, self.every_minutes, self.every_steps
        due = trainer.should_stop or step == trainer.max_steps
        due = due or (steps is not None and step % steps == 0)
        due = due or (minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes)
        wish = Wish.SAVE if due else Wish.NOTHING
        wish = wish if self._asked is None else Wish.STOP
        agreed = _greatest(trainer, wish)
        self._ends = agreed == Wish.STOP
        if agreed != Wish.NOTHING:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Save, unless the epoch is incomplete: Lightning would take it for a whole one."""
        if trainer.is_last_batch:
            self._save(trainer)
        if self._is_asked(trainer):
            self._stop()

    def on_validation_start(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Save: a validation may take long, and other weights may be evaluated in it."""
        self._waits = False
        if not _is_within_training(trainer):
            return
        uncount_open_validation(trainer)
        if not self._between:
            self._validates = True
            self._save(trainer)
            self._validates = False

    def on_validation_batch_end(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Stop if asked to; the checkpoint was saved before, or no step has been made yet.

        Several processes, which may have different numbers of batches, end the validation first.
        """
        alone = trainer.world_size == 1 and trainer.state.fn == TrainerFn.FITTING
        if alone and not self._between and self._asked is not None:
            self._stop()

    def on_validation_end(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Stop if any process was asked to."""
        if _is_within_training(trainer) and not self._between and self._is_asked(trainer):
            self._stop()

    def on_exception(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """End child processes: those that read images, and those that share the training.

        In a validation, Lightning leaves the first running; the second may wait for this one.
        """
        self._listen_no_more()
        if trainer.state.fn == TrainerFn.FITTING and not trainer.training:
            end_readers(trainer)
        _end(launched_processes(trainer))

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Mark a validation as begun, so that a resumed training repeats it."""
        if self._validates:
            mark_validation_as_begun(checkpoint)

    def _listen(self, trainer: L.Trainer) -> None:
        if self._handlers or threading.current_thread() is not threading.main_thread():
            return  # in other threads, Python allows no handlers

        def ask(number: int, frame: FrameType | None) -> None:
            if self._asked is not None and trainer.is_global_zero:
                if time.monotonic() - self._asked_at > FORWARDED_WITHIN:
                    self._stop()
                return
            self._asked, self._asked_at = number, time.monotonic()
            if trainer.is_global_zero:
                text = "stopping after this batch; a second signal, later, stops at once"
                _logger.warning(text)
                patience = threading.Timer(BATCH_PATIENCE, self._end_waiting)
                patience.daemon = True
                patience.start()

        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, ask)

    def _end_waiting(self) -> None:
        """Repeat the signal, which then stops at once, if there is no batch that could end."""
        if self._waits and self._handlers and self._asked is not None:
            _logger.warning("no batch has come for %.0f s: stopping without it", BATCH_PATIENCE)
            signal.pthread_kill(threading.main_thread().ident or 0, self._asked)

    def _listen_no_more(self) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            # None stands for a handler that Python did not install and cannot restore.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _save(self, trainer: L.Trainer) -> None:
        if is_dry(trainer):
            return
        place = run_folder(trainer) / "checkpoints" / LAST
        trainer.save_checkpoint(place, weights_only=False)
        self._saved_at = time.monotonic()

    def _is_asked(self, trainer: L.Trainer) -> bool:
        """Return whether any process was asked to stop, the same in all of them."""
        wish = Wish.NOTHING if self._asked is None else Wish.STOP
        return _greatest(trainer, wish) == Wish.STOP

    def _stop(self) -> None:
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt
        raise SIGTERMException


def _is_within_training(trainer: L.Trainer) -> bool:
    """Return whether a validation is part of a training under way."""
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking


def _greatest(trainer: L.Trainer, wish: int) -> int:
    """Return the greatest request of all processes, all of which must call this."""
    if trainer.world_size == 1:
        return wish
    wishes = torch.tensor(wish, device=trainer.strategy.root_device)
    return int(trainer.strategy.reduce(wishes, reduce_op="max"))


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for processes, kill those that do not end, and empty the list.

    Lightning watches the list: it would kill this process, too, for the status of a stopped one.
    """
    ending = list(processes)
    processes.clear()
    deadline = time.monotonic() + CHILD_GRACE
    for process in ending:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file, flushes it to disk, and renames it.

    Whatever happens, the file is the old one or the new one. Lightning writes into the system's
    temporary folder, which may be another disk, and copies.
    """

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Any | None = None,  # noqa: ANN401
    ) -> None:
        """Write a file; addresses with `://` are left to Lightning."""
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        content = io.BytesIO()
        torch.save(checkpoint, content)
        place = Path(path)
        try:
            with replacing(place) as unfinished, unfinished.open("wb") as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            if sys.platform != "win32":  # which opens no folders
                folder = os.open(place.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)  # so that the renaming is on the disk, too
                finally:
                    os.close(folder)
        except OSError as error:
            raise CheckpointError(_unwritable(place, content.tell(), error)) from error


def _unwritable(place: Path, size: int, error: OSError) -> str:
    stands = "the file that was there still stands" if place.exists() else "nothing was written"
    cause = str(error.strerror)
    if error.errno in FULL:
        free = shutil.disk_usage(place.parent).free
        cause = f"{cause}: it needs {size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free"
    last = place.with_name(LAST)
    elsewhere = "choose another place with --trainer.logger.save_dir DIR"
    hint = (
        f"Make room and continue with --ckpt_path last, or {elsewhere} --ckpt_path {last}"
        if last.is_file()
        else f"There is no {LAST} to continue from: make room, or {elsewhere}, and start again"
    )
    return f"{place}: the checkpoint cannot be written ({cause}); {stands}. {hint}"
