"""The folder of a run, for any logger."""

from __future__ import annotations

import json
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import Logger

STARTS = "starts.jsonl"
"""File in a run's folder with a line for each start of the run, see `SaveConfig`."""


def run_folder(trainer: L.Trainer) -> Path:
    """Return the folder of the current run, which also holds its checkpoints.

    Args:
        trainer: With any logger: TensorBoard, CSV, Weights & Biases, or none.

    Returns:
        `<save_dir>/<name>/<version>`, or the trainer's root folder without a logger.
    """
    logger = trainer.logger
    if logger is None or logger.save_dir is None:
        return Path(trainer.default_root_dir)
    return Path(logger.save_dir) / str(logger.name) / version_name(logger)


def keeps_files(trainer: L.Trainer) -> bool:
    """Return whether a run has a folder: one with `fast_dev_run` leaves no files."""
    return not getattr(trainer, "fast_dev_run", False)  # an attribute without a declared type


def version_name(logger: Logger) -> str:
    """Return the name that a logger gives to the run: `version_3`, or Weights & Biases' id."""
    version = logger.version
    return version if isinstance(version, str) else f"version_{version}"


def versions_of(run: Path) -> list[str]:
    """Return the names that the loggers of a run gave to it, in their order.

    Args:
        run: Folder of the run. Where it has no `starts.jsonl`, there was one logger, whose name
            for the run is that of the folder.
    """
    path = run / STARTS
    if not path.is_file():
        return [run.name]
    last = path.read_text(encoding="utf-8").splitlines()[-1]
    return list(json.loads(last)["versions"])
