"""Confusion matrices, accumulated over photographs."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from probseg.errors import DataError
from probseg.semantic.dataset import SemanticSample
from probseg.semantic.scores import Counts
from probseg.types import IGNORE


class Confusion:
    """Counts confusions of classes, in one process.

    Args:
        num_classes: Number of classes.
        device: Of the predictions.

    Attributes:
        photographs: How many were counted.
    """

    def __init__(self, num_classes: int, device: torch.device | str = "cpu") -> None:
        self.photographs = 0
        self._metric = MulticlassConfusionMatrix(
            num_classes,
            ignore_index=IGNORE,
            validate_args=False,  # it would look for the different numbers in every prediction
            sync_on_compute=False,  # a process may have no photograph of this data set
        ).to(device)

    def add(self, sample: SemanticSample, prediction: Tensor) -> None:
        """Count the pixels of a photograph.

        Args:
            sample: The photograph.
            prediction: Class numbers, int64, shape `(H, W)`.

        Raises:
            DataError: If the truth has more classes than the network.
        """
        labels = torch.tensor(sample.labels)
        most = int(torch.where(labels == IGNORE, 0, labels).max())
        if most >= self._metric.num_classes:
            msg = (
                f"{sample.dataset}, {sample.name}: has a pixel of class {most}, and the network "
                f"tells the classes 0 to {self._metric.num_classes - 1} apart; set `num_classes` "
                "of its head to the number of classes of the data"
            )
            raise DataError(msg)
        self._metric.update(prediction, labels.to(prediction.device))
        self.photographs += 1

    def matrix(self) -> Counts:
        """Return numbers of pixels, int64, shape `(C, C)`, the truth in rows."""
        counts: Counts = self._metric.compute().cpu().numpy()
        return counts
