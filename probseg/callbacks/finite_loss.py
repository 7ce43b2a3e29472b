"""A training whose loss is not finite stops, and leaves behind what it takes to repeat the step."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from probseg.callbacks.replay_file import Batch, Replay, with_tensors, write_replay
from probseg.callbacks.run_folder import run_folder
from probseg.errors import NonFiniteLossError
from probseg.tasks.base import NetworkTask

NAMED = 8
"""Most images that the error names."""


class FiniteLoss(L.Callback):
    """Stops a training before a loss that is infinite or not a number reaches the weights.

    The step is written to ``replay_step<N>.pt`` in the run's folder, by the process that found it
    (``replay_step<N>_rank<R>.pt`` where there are several), for ``probseg debug replay``.

    Each step costs one look at the loss, for which a GPU is waited for, and a copy of the buffers:
    the averages of normalisation layers, which the forward pass has changed when the loss is known.

    With a GradScaler, Lightning hands over the loss times the scaler's factor. Where that alone
    overflowed, the training goes on, as the scaler leaves out the step and lowers the factor.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take the first process's folder: the loggers of the others may count anew."""
        if stage == "fit":
            self._folder = trainer.strategy.broadcast(run_folder(trainer))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Make room for the copy of the buffers."""
        self._buffers = list(pl_module.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]

    def on_train_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Remember the batch, and the buffers before it."""
        self._batch: Batch = batch
        self._batch_idx = batch_idx
        if self._buffers:
            torch._foreach_copy_(self._before, self._buffers)  # at once, as there may be a thousand

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        """Look at the loss.

        Args:
            trainer: Of the training.
            pl_module: The task; its buffers are set back where the training stops, so that what is
                saved afterwards is what it was before the step.
            loss: A scalar, perhaps scaled.

        Raises:
            NonFiniteLossError: If it is not finite.
        """
        if loss.isfinite() or _overflowed_by_scaling(trainer, loss):
            return
        assert isinstance(pl_module, NetworkTask), "other tasks are not trained"
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._before)
        replay = self._replay(trainer, pl_module, float(loss.detach()))
        rank = f"_rank{replay.rank}" if replay.world_size > 1 else ""
        path = self._folder / f"replay_step{replay.global_step}{rank}.pt"
        try:
            write_replay(replay, path)
        except OSError as error:
            kept = f"The step could not be kept in {path}: {error}"
        else:
            kept = f"To see where it comes from: probseg debug replay {path}"
        msg = f"{_told(replay)}. The weights are those before the step. {kept}"
        raise NonFiniteLossError(msg)

    def _replay(self, trainer: L.Trainer, task: NetworkTask, loss: float) -> Replay:
        return Replay(
            weights={name: tensor.cpu() for name, tensor in task.state_dict().items()},
            batch=with_tensors(self._batch, Tensor.cpu),
            loss=loss,
            epoch=trainer.current_epoch,
            batch_idx=self._batch_idx,
            global_step=trainer.global_step,
            batch_seed=task.batch_seed,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            precision=str(trainer.precision),
            device=task.device.type,
        )


def _overflowed_by_scaling(trainer: L.Trainer, loss: Tensor) -> bool:
    """Say whether a loss is infinite only because it was scaled.

    Its factor is finite, so that it makes no NaN. The loss itself is not handed over, but the task
    has logged its parts.
    """
    if getattr(trainer.precision_plugin, "scaler", None) is None or loss.isnan():
        return False
    parts = [value for name, value in trainer.callback_metrics.items() if name.startswith("train/")]
    return bool(parts) and all(bool(value.isfinite()) for value in parts)


def _told(replay: Replay) -> str:
    names = replay.batch.names
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    process = f" of process {replay.rank}" if replay.world_size > 1 else ""
    return (
        f"the loss of step {replay.global_step} (epoch {replay.epoch}, batch {replay.batch_idx})"
        f"{process} is {replay.loss}, on the images {', '.join(names[:NAMED])}{more}"
    )
