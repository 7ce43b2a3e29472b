"""Base class of the evaluations: one method for a batch of a validation or a test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal

import lightning as L

from probseg.callbacks.run_folder import keeps_files
from probseg.evaluation import environment

Stage = Literal["val", "test"]


class Evaluation(L.Callback, ABC):
    """Base of the callbacks that evaluate the network of a task during validation and testing.

    Attributes:
        network_changes: Hold during an evaluation; closing it undoes them.
    """

    def __init__(self) -> None:
        self.network_changes = ExitStack()

    @abstractmethod
    def evaluate(
        self,
        trainer: L.Trainer,
        batch: Sequence[Any],
        batch_idx: int,
        stage: Stage,
    ) -> None:
        """Evaluate the samples of a batch, in the precision of the trainer.

        Args:
            trainer: Of the run.
            batch: The samples.
            batch_idx: Number of the batch in its data loader, counted from 0.
            stage: `"val"` in a validation, `"test"` in a test.
        """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Record commit and versions now: the files may change while a training runs."""
        environment()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Sequence[Any],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Evaluate a batch of a validation."""
        self._evaluate(trainer, batch, batch_idx, "val")

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Sequence[Any],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Evaluate a batch of a test."""
        self._evaluate(trainer, batch, batch_idx, "test")

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Leave the network as it was."""
        self.network_changes.close()

    def _evaluate(
        self, trainer: L.Trainer, batch: Sequence[Any], batch_idx: int, stage: Stage
    ) -> None:
        # Lightning has left this context when it calls the hooks after a batch.
        with trainer.precision_plugin.forward_context():
            self.evaluate(trainer, batch, batch_idx, stage)


def writes_reports(trainer: L.Trainer) -> bool:
    """Return whether this process writes the reports of an evaluation: the first one.

    There are none of a sanity check, and of a run that keeps no files.
    """
    return trainer.is_global_zero and not trainer.sanity_checking and keeps_files(trainer)
