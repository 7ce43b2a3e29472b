"""Pictures of training crops with the classes of their pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from probseg.callbacks.visual import CropLog
from probseg.semantic.datamodule import SemanticBatch
from probseg.semantic.pictures import class_colours, coloured
from probseg.types import IGNORE


class SemanticVisualLog(CropLog):
    """Shows training crops with the classes of their pixels: crop, truth and prediction.

    Args:
        every_n_epochs: How often.
        max_images: Number of crops on a sheet.
    """

    def row(
        self, outputs: Mapping[str, Any], batch: SemanticBatch, number: int
    ) -> npt.NDArray[np.uint8]:
        """Draw one crop of a batch."""
        classes = outputs["classes"]
        assert isinstance(classes, Tensor), "training_step returns the predicted classes"
        image = batch.images[number].permute(1, 2, 0).cpu().numpy()
        colours = class_colours([""] * IGNORE)
        truth = coloured(batch.labels[number].cpu().numpy(), colours)
        predicted = coloured(classes[number].cpu().numpy(), colours)
        return np.concatenate([image, truth, predicted], axis=1)
