"""The configuration of a run, kept beside its checkpoints."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger

from probseg.callbacks.run_folder import run_folder


class SaveConfig(SaveConfigCallback):
    """Writes ``config.yaml`` into the run's own folder, and sends it to Weights & Biases.

    Lightning's own callback writes into the logger's root with Weights & Biases, where the second
    run meets the first one's file.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **{**kwargs, "save_to_log_dir": False})

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write the file; called by Lightning once per run, on the first process."""
        folder = run_folder(trainer)
        folder.mkdir(parents=True, exist_ok=True)
        # A resumed run keeps its folder and gets its configuration anew.
        self.parser.save(
            self.config,
            folder / "config.yaml",
            skip_validation=True,
            overwrite=True,
            multifile=False,
        )
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_hyperparams({"config": self.config.as_dict(), "stage": stage})
