"""Stops a training whose loss is not finite, and saves the step for inspection."""

from __future__ import annotations

from typing import Any, Protocol

import lightning as L
import torch
from torch import Tensor

from probseg.callbacks.run_folder import run_folder
from probseg.errors import NonFiniteLossError
from probseg.paths import replacing
from probseg.tasks.base import NetworkTask

NAMED = 8  # maximum number of images that the error names


class Batch(Protocol):
    """Training batch of any task, a named tuple."""

    @property
    def names(self) -> list[str]:
        """Names of the images."""

    def _asdict(self) -> dict[str, Any]: ...


class FiniteLoss(L.Callback):
    """Stops a training before an infinite or NaN loss changes the weights.

    The error names step, batch seed, learning rates and images. The step is saved in the run's
    folder as `nonfinite_step<N>.pt`, or `nonfinite_step<N>_rank<R>.pt` by one of several
    processes. `torch.load(path, weights_only=True)` returns a dictionary: `batch`, the fields
    of the batch by name, from whose `seeds` the prompts are drawn; `weights`, the task's
    `state_dict` before the step; `loss`, `batch_seed`, `global_step` and `epoch`.

    Each step costs one read of the loss, for which a GPU is waited for, and a copy of the buffers:
    the forward pass updates the averages of normalisation layers before the loss is known.

    With a GradScaler, Lightning passes the loss times the scale. Where only that product overflows,
    the training continues, as the scaler skips the step and lowers the scale.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take the folder of the first process, since others may number runs otherwise."""
        if stage == "fit":
            self._folder = trainer.strategy.broadcast(run_folder(trainer))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Allocate the copy of the buffers."""
        self._buffers = list(pl_module.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Keep the batch, and the buffers before it."""
        self._batch = batch
        if self._buffers:
            torch._foreach_copy_(self._before, self._buffers)  # at once, as there may be a thousand

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        """Check the loss, a scalar; where it is not finite, the buffers are those before the step.

        Of a loss that is infinite only because of the loss scale, which makes no NaN, the logged
        parts are finite.
        """
        if loss.isfinite():
            return
        if getattr(trainer.precision_plugin, "scaler", None) is not None and not loss.isnan():
            metrics = trainer.callback_metrics.items()
            parts = [value.isfinite() for name, value in metrics if name.startswith("train/")]
            if parts and all(parts):
                return
        assert isinstance(pl_module, NetworkTask), "other tasks are not trained"
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._before)
        step, seed, names = trainer.global_step, pl_module.batch_seed, self._batch.names
        content = {
            "batch": _on_cpu(self._batch._asdict()),
            "weights": _on_cpu(pl_module.state_dict()),
            "loss": loss.item(),
            "batch_seed": seed,
            "global_step": step,
            "epoch": trainer.current_epoch,
        }
        rank = f"_rank{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = self._folder / f"nonfinite_step{step}{rank}.pt"
        saved = f"Batch and weights for torch.load(..., weights_only=True): {path}"
        try:
            with replacing(path) as draft:
                torch.save(content, draft)
        except (OSError, RuntimeError) as error:  # torch raises the latter for a full disk
            saved = f"Batch and weights could not be saved in {path}: {error}"
        rates = {f"{group['lr']:g}": 0 for o in trainer.optimizers for group in o.param_groups}
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise NonFiniteLossError(
            f"the loss of step {step} (epoch {trainer.current_epoch}, batch seed {seed}, learning "
            f"rate {', '.join(rates)}) is {loss.item()} on the images {', '.join(names[:NAMED])}"
            f"{more}; the weights are those before the step. {saved}"
        )


def _on_cpu(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().cpu() if isinstance(v, Tensor) else v for k, v in values.items()}
