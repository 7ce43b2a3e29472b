"""The configuration and the code version of a run, stored in its folder."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger

from probseg.callbacks.artifacts import ArtifactLogger, use_checkpoint
from probseg.callbacks.run_folder import STARTS, run_folder, version_name
from probseg.evaluation import environment
from probseg.paths import write_text


class SaveConfig(SaveConfigCallback):
    """Writes `config.yaml` and `starts.jsonl` into the run's folder.

    Each start of a run adds a line to `starts.jsonl`: time, verb, checkpoint, the names of the
    run in its loggers, and `probseg.evaluation.environment` (versions, commit, uncommitted changes,
    machine). Weights & Biases gets configuration, environment, and the artifact of the checkpoint.

    Lightning's own callback writes into the logger's root with Weights & Biases, where the second
    run meets the first one's file.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **{**kwargs, "save_to_log_dir": False})

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write the files; called by Lightning once per start, on the first process."""
        folder = run_folder(trainer)
        folder.mkdir(parents=True, exist_ok=True)
        # A resumed run keeps its folder; its configuration is replaced. A training's names no
        # checkpoint: with it, a test takes the best one of the run, and a training starts again.
        kept = self.config.clone()
        if stage == "fit" and "ckpt_path" in kept:
            kept.ckpt_path = None
        self.parser.save(
            kept,
            folder / "config.yaml",
            skip_validation=True,
            overwrite=True,
            multifile=False,
        )
        code = environment(trainer.strategy.root_device)
        checkpoint = self.config.get("ckpt_path")  # a trainer that fits has none
        start = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "verb": stage,
            "checkpoint": str(checkpoint) if checkpoint else None,
            "versions": [version_name(logger) for logger in trainer.loggers],
            "environment": code,
        }
        starts = folder / STARTS
        earlier = starts.read_text(encoding="utf-8") if starts.is_file() else ""
        write_text(starts, earlier + json.dumps(start) + "\n")
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                known = {"config": self.config.as_dict(), "stage": stage, "environment": code}
                logger.log_hyperparams(known)
                if checkpoint:
                    use_checkpoint(logger, Path(checkpoint))
            if isinstance(logger, ArtifactLogger) and stage == "fit":
                for callback in trainer.checkpoint_callbacks:
                    if isinstance(callback, ModelCheckpoint):
                        logger.adopt(callback)
