"""The checkpoint from which an interrupted training goes on."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from probseg.callbacks.run_folder import run_folder

LAST = "last.ckpt"

_Handler = Callable[[int, FrameType | None], Any] | int | None


class LastCheckpoint(Checkpoint):
    """Keeps ``checkpoints/last.ckpt``, from which ``--ckpt_path last`` goes on.

    It is written every few minutes, after each epoch, before each validation, and when the training
    is asked to stop: SIGTERM and Ctrl-C let the batch end first (and those whose gradients are
    accumulated with it). A second one stops at once. A training that goes on ends with the same
    weights as one that was never interrupted, on a processor bit by bit; a validation that was
    interrupted is repeated.

    Args:
        every_minutes: Time between two of them; None for no more than the others named above.
        every_steps: Steps of the optimiser between two of them; None for time alone.

    Raises:
        ValueError: If a number is not positive.
    """

    def __init__(self, every_minutes: float | None = 10.0, every_steps: int | None = None) -> None:
        super().__init__()
        for name, value in (("every_minutes", every_minutes), ("every_steps", every_steps)):
            if value is not None and value <= 0:
                msg = f"{name} must be positive, or None, got {value}"
                raise ValueError(msg)
        self.every_minutes = every_minutes
        self.every_steps = every_steps
        self._asked: int | None = None  # the signal that asks for an end
        self._ends = False  # whether all processes stop before the next batch
        self._saved_at = time.monotonic()
        self._handlers: dict[int, _Handler] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Listen to signals."""
        self._asked = None
        self._ends = False
        self._saved_at = time.monotonic()
        if threading.current_thread() is not threading.main_thread():
            return  # where Python allows none

        def ask(number: int, frame: FrameType | None) -> None:
            if not trainer.is_global_zero:  # which may hear of it twice
                self._asked = number
                return
            if self._asked is not None:
                self._stop()
            self._asked = number
            launcher = trainer.strategy.launcher
            if launcher is not None and number == signal.SIGTERM:
                launcher.kill(number)  # the processes that this one has started
            sys.stderr.write("\nprobseg: stopping after this batch; once more stops at once\n")

        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, ask)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave the signals to those who had them before."""
        self._listen_no_more()

    def on_train_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Stop; after the batch before, there may have been a validation to begin."""
        if self._ends:
            self._stop()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Save if it is time to, or if the training is to stop."""
        between = (batch_idx + 1) % trainer.accumulate_grad_batches != 0
        if between or trainer.is_last_batch:
            return  # in between there is no state to go on from; after the last, the epoch ends
        self._ends = self._is_asked(trainer)
        due = self._ends
        if self.every_steps is not None:
            due = due or trainer.global_step % self.every_steps == 0
        if self.every_minutes is not None:
            elapsed = time.monotonic() - self._saved_at
            due = due or trainer.strategy.broadcast(elapsed >= 60 * self.every_minutes)
        if due:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save."""
        self._save(trainer)
        if self._is_asked(trainer):
            self._stop()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save: a validation may take long, and other weights may be evaluated in it."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self._save(trainer)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stop if that was asked for; what there is to save was saved."""
        if self._asked is not None:
            self._stop()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Let the processes that read training images end: in a validation, Lightning would not."""
        self._listen_no_more()
        if trainer.state.fn == TrainerFn.FITTING and not trainer.training:
            trainer.fit_loop.teardown()

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let a training that goes on from the beginning of a validation validate.

        Lightning takes a checkpoint that was written between the last batch and its validation for
        one that was written after it.
        """
        if trainer.validating:
            begun = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            progress.update(total=dict(begun), current=dict(begun), is_last_batch=False)

    def _listen_no_more(self) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, handler)

    def _save(self, trainer: L.Trainer) -> None:
        if getattr(trainer, "fast_dev_run", False):  # as ModelCheckpoint asks it
            return
        place = run_folder(trainer) / "checkpoints" / LAST
        trainer.save_checkpoint(place, weights_only=False)
        self._saved_at = time.monotonic()

    def _is_asked(self, trainer: L.Trainer) -> bool:
        """Say whether any process was asked to stop, the same in all of them."""
        asked = self._asked is not None
        if trainer.world_size == 1:
            return asked
        return bool(trainer.strategy.reduce_boolean_decision(asked, all=False))

    def _stop(self) -> None:
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt
        raise SIGTERMException
