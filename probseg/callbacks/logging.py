"""Pictures and curves for the loggers of a run; numbers go through Lightning itself.

What a logger does not take is logged as a warning, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lightning as L
import numpy as np
import numpy.typing as npt
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from probseg.drawing import drawing
from probseg.images import read_image
from probseg.lightning_internals import logged_step


def log_picture(trainer: L.Trainer, key: str, picture: Path | npt.NDArray[np.uint8]) -> None:
    """Send a picture to TensorBoard and Weights & Biases, where the run has them.

    Args:
        trainer: Its loggers are used.
        key: Name of the panel.
        picture: Image file, or RGB array of shape `(H, W, 3)`.
    """
    for logger in trainer.loggers:
        with drawing(f"{key} in {type(logger).__name__}"):
            if isinstance(picture, Path):
                picture = read_image(picture)
            if isinstance(logger, WandbLogger):
                logger.log_image(key, [picture], step=logged_step(trainer))
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image(key, picture, logged_step(trainer), dataformats="HWC")


def log_curve(trainer: L.Trainer, key: str, miou: Sequence[float]) -> None:
    """Send mean IoU against clicks to Weights & Biases as a table, from which it plots curves.

    The numbers themselves are logged as `miou@k`, which all loggers get.
    """
    for logger in trainer.loggers:
        with drawing(f"{key} in {type(logger).__name__}"):
            if isinstance(logger, WandbLogger):
                rows = [[k, value] for k, value in enumerate(miou)]
                logger.log_table(
                    key, columns=["clicks", "mIoU"], data=rows, step=logged_step(trainer)
                )
