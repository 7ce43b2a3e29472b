"""A task for methods without learnt weights."""

from __future__ import annotations

import lightning as L

from probseg.lab.baselines import ClassicalModel
from probseg.types import Sample


class Baseline(L.LightningModule):
    """Task through which the callback `InteractiveEvaluation` evaluates a baseline.

    `probseg test` and `probseg validate` only: there is nothing to train, and no checkpoint.

    Args:
        model: The baseline.
    """

    def __init__(self, model: ClassicalModel) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = model

    def validation_step(self, batch: list[Sample], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Do nothing: the callback does."""

    def test_step(self, batch: list[Sample], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Do nothing: the callback does."""
