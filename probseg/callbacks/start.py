"""The score of the network that a training begins with."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from probseg.callbacks.run_folder import run_folder
from probseg.paths import write_text

_logger = logging.getLogger(__name__)

START = "start.json"
"""File in a run's folder with the score before the first step, by its name."""


class StartScore(L.Callback):
    """Compares each validation with the network that the training began with.

    That network is validated in Lightning's sanity check, which must then cover all validation
    data (`num_sanity_val_steps=-1`). Its score, the one that checkpoints are chosen by, is logged
    at step 0 and kept in `start.json`, from which a training that goes on has it.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the score of an earlier training, where the folder is not new."""
        if trainer.is_global_zero and trainer.ckpt_path is None:
            (run_folder(trainer) / START).unlink(missing_ok=True)

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep and log the score."""
        name = monitored(trainer)
        whole = trainer.num_sanity_val_steps == float("inf")
        if not whole or name is None or name not in trainer.callback_metrics:
            return
        score = float(trainer.callback_metrics[name])
        for logger in trainer.loggers:
            logger.log_metrics({name: score}, step=0)
        if trainer.is_global_zero:
            write_text(run_folder(trainer) / START, json.dumps({name: score}) + "\n")
            _logger.info("before the training: %s %.4f", name, score)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log a score and its difference."""
        name = monitored(trainer)
        if trainer.sanity_checking or not trainer.is_global_zero or name is None:
            return
        start = start_score(run_folder(trainer), name)
        if start is None or name not in trainer.callback_metrics:
            return
        score = float(trainer.callback_metrics[name])
        text = "epoch %d: %s %.4f (%+.4f against the start)"
        _logger.info(text, trainer.current_epoch, name, score, score - start)


def monitored(trainer: L.Trainer) -> str | None:
    """Return the name of the score that checkpoints are chosen by, or None."""
    chosen = (c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint))
    return next((callback.monitor for callback in chosen if callback.monitor is not None), None)


def start_score(run: Path, name: str) -> float | None:
    """Return the score of the network that a run began with, or None if it is not known.

    Args:
        run: Folder of the run.
        name: Of the score.
    """
    path = run / START
    if not path.is_file():
        return None
    score: float | None = json.loads(path.read_text(encoding="utf-8")).get(name)
    return score
