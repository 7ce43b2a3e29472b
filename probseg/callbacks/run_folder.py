"""Where a run writes its files, whatever logger it has."""

from __future__ import annotations

from pathlib import Path

import lightning as L


def run_folder(trainer: L.Trainer) -> Path:
    """Return the folder of the present run, the one in which checkpoints are kept too.

    Args:
        trainer: With any logger: TensorBoard, CSV, Weights & Biases, or none.

    Returns:
        ``<save_dir>/<name>/<version>``, or the trainer's root folder without a logger.
    """
    logger = trainer.logger
    if logger is None or logger.save_dir is None:
        return Path(trainer.default_root_dir)
    version = logger.version
    name = version if isinstance(version, str) else f"version_{version}"
    return Path(logger.save_dir) / str(logger.name) / name
