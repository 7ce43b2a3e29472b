"""Pictures of training crops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import cv2
import lightning as L
import numpy as np
import numpy.typing as npt
from PIL import ImageColor

from probseg.callbacks.loggers import log_picture
from probseg.data import TrainBatch
from probseg.errors import log_drawing_errors
from probseg.formats.colours import CLICK_COLOURS
from probseg.types import IGNORE


class CropLog(L.Callback, ABC):
    """Shows training crops in the logger: a sheet of the first batch of an epoch.

    Args:
        every_n_epochs: How often.
        max_images: Number of crops on a sheet.
    """

    def __init__(self, every_n_epochs: int = 1, max_images: int = 8) -> None:
        self.every_n_epochs = every_n_epochs
        self.max_images = max_images

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: object,
        outputs: object,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Draw the first batch of the epoch."""
        due = batch_idx == 0 and trainer.current_epoch % self.every_n_epochs == 0
        if not due or not trainer.is_global_zero:
            return
        count = min(self.max_images, len(batch.images))
        rows = []
        for number in range(count):
            with log_drawing_errors(f"train/crops, {batch.names[number]}"):
                rows.append(self.row(outputs, batch, number))
        if rows:
            log_picture(trainer, "train/crops", np.concatenate(rows, axis=0))

    @abstractmethod
    def row(self, outputs: Any, batch: Any, number: int) -> npt.NDArray[np.uint8]:  # noqa: ANN401
        """Draw one crop of a batch, RGB; `outputs` is the result of `training_step`."""


class VisualLog(CropLog):
    """Shows training crops with their prompts, truth and prediction.

    On the left is the crop with box, clicks (blue positive, orange negative) and the outline of the
    truth, on the right the prediction.

    Args:
        every_n_epochs: How often.
        max_images: Number of crops on a sheet.
    """

    def row(
        self, outputs: Mapping[str, Any], batch: TrainBatch, number: int
    ) -> npt.NDArray[np.uint8]:
        """Draw one crop of a batch and its prediction side by side, `(H, 2 W, 3)`."""
        crop = np.ascontiguousarray(batch.images[number].permute(1, 2, 0).cpu().numpy())
        mask = batch.masks[number].cpu().numpy()
        crop[mask == IGNORE] //= 2
        inside = (mask == 1).astype(np.uint8)
        outline, _ = cv2.findContours(inside, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(crop, outline, -1, (255, 220, 0), 1)
        points, labels, box = (tensor[number].cpu() for tensor in outputs["prompts"][:3])
        if not box.isnan().any():
            x0, y0, x1, y1 = (int(value) for value in box)
            cv2.rectangle(crop, (x0, y0), (x1 - 1, y1 - 1), (255, 160, 0), 1)
        for (x, y), label in zip(points.long().tolist(), labels.tolist(), strict=True):
            colour = ImageColor.getrgb(CLICK_COLOURS[label > 0])
            if label > 0:
                cv2.circle(crop, (x, y), 3, colour, -1)
            elif label == 0:
                cv2.rectangle(crop, (x - 3, y - 3), (x + 3, y + 3), colour, -1)
        probability = outputs["logits"][number, 0].float().sigmoid().cpu().numpy()
        predicted = np.repeat((probability * 255).astype(np.uint8)[..., None], 3, axis=2)
        return np.concatenate([crop, predicted], axis=1)
