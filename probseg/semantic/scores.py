"""Scores of semantic segmentation, from confusion matrices: numbers, files and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from probseg.errors import DataError
from probseg.evaluation.journal import RESULTS
from probseg.paths import rewriting, write_text
from probseg.semantic.dataset import SemanticSample
from probseg.texts import write_rows
from probseg.types import IGNORE

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class SemanticScores(NamedTuple):
    """Scores in [0, 1] of a whole data set, not means over its photographs.

    What has no pixel to go by is NaN; means leave it out, and are NaN where nothing is left.
    """

    iou: Floats  # (C,), NaN for a class that is neither in the truth nor predicted
    accuracy: Floats  # (C,), NaN for a class that is not in the truth
    share: Floats  # (C,), of all pixels
    miou: float  # Everingham et al. 2015, Sec. 4.2
    pixel_accuracy: float
    mean_accuracy: float


def semantic_scores(confusion: Counts) -> SemanticScores:
    """Compute the scores of a matrix `(C, C)`: pixels of class i (row) taken for class j."""
    right = confusion.diagonal().astype(np.float64)
    truth = confusion.sum(axis=1).astype(np.float64)
    predicted = confusion.sum(axis=0).astype(np.float64)
    total = np.full_like(right, truth.sum())
    iou = _ratio(right, truth + predicted - right)
    accuracy = _ratio(right, truth)
    return SemanticScores(
        iou=iou,
        accuracy=accuracy,
        share=_ratio(truth, total),
        miou=_mean(iou),
        pixel_accuracy=float(_ratio(right.sum(keepdims=True), total[:1])[0]),
        mean_accuracy=_mean(accuracy),
    )


class Confusion:
    """Counts confusions of classes, and photographs, in one process."""

    def __init__(self, num_classes: int, device: torch.device | str = "cpu") -> None:
        self.photographs = 0
        self._metric = MulticlassConfusionMatrix(
            num_classes,
            ignore_index=IGNORE,
            validate_args=False,  # it would look for the different numbers in every prediction
            sync_on_compute=False,  # a process may have no photograph of this data set
        ).to(device)

    def add(self, sample: SemanticSample, prediction: Tensor) -> None:
        """Count the pixels of a photograph by the predicted class numbers `(H, W)`, int64."""
        labels = torch.tensor(sample.labels)
        most = int(torch.where(labels == IGNORE, 0, labels).max())
        if most >= self._metric.num_classes:
            raise DataError(
                f"{sample.dataset}, {sample.name}: has a pixel of class {most}, and the network "
                f"tells the classes 0 to {self._metric.num_classes - 1} apart; set `num_classes` "
                "of its head to the number of classes of the data"
            )
        self._metric.update(prediction, labels.to(prediction.device))
        self.photographs += 1

    def matrix(self) -> Counts:
        """Return numbers of pixels, int64, shape `(C, C)`, the truth in rows."""
        counts: Counts = self._metric.compute().cpu().numpy()
        return counts


def write_scores(
    folder: Path,
    name: str,
    classes: Sequence[str],
    confusion: Counts,
    scores: SemanticScores,
    about: Mapping[str, Any],
) -> None:
    """Write `results.json`, with JSON values on its origin, `classes.csv` and `confusion.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {
        "dataset": name,
        "miou": _number(scores.miou),
        "pixel_accuracy": _number(scores.pixel_accuracy),
        "mean_accuracy": _number(scores.mean_accuracy),
        "iou": dict(zip(classes, map(_number, scores.iou.tolist()), strict=True)),
        "pixels": int(confusion.sum()),
        "metadata": about,
    }
    text = json.dumps(results, indent=2, allow_nan=False)
    write_text(folder / RESULTS, text + "\n")
    of_classes = [["class", "iou", "share", "accuracy"]]
    for row in zip(classes, scores.iou, scores.share, scores.accuracy, strict=True):
        of_classes.append(
            [row[0], *("" if np.isnan(value) else f"{value:.6f}" for value in row[1:])]
        )
    counts = zip(classes, confusion.tolist(), strict=True)
    of_pixels = [["truth", *classes], *([name, *row] for name, row in counts)]
    for file_name, rows in (("classes.csv", of_classes), ("confusion.csv", of_pixels)):
        with rewriting(folder / file_name) as file:
            write_rows(file, rows)


def print_scores(
    console: Console, name: str, classes: Sequence[str], scores: SemanticScores
) -> None:
    """Print a table of the classes and, in the last row, the means."""
    table = Table(title=f"{name}, in percent", title_justify="left", show_footer=True)
    table.add_column("class", footer="mean")
    table.add_column("IoU", footer=_percent(scores.miou), justify="right")
    table.add_column("pixels", footer="", justify="right")
    table.add_column("accuracy", footer=_percent(scores.mean_accuracy), justify="right")
    for row in zip(classes, scores.iou, scores.share, scores.accuracy, strict=True):
        table.add_row(row[0], *(_percent(value) for value in row[1:]))
    console.print(table)
    console.print(
        f"  mIoU {_percent(scores.miou)}, pixel accuracy {_percent(scores.pixel_accuracy)}, mean "
        f"class accuracy {_percent(scores.mean_accuracy)}",
        highlight=False,
    )


def _percent(value: float | npt.NDArray[np.float64]) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.2f}"


def _number(value: float) -> float | None:
    """Return a number as a JSON value."""
    return None if math.isnan(value) else value


def _ratio(part: Floats, whole: Floats) -> Floats:
    """Divide; NaN where the whole is 0."""
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def _mean(values: Floats) -> float:
    """Return the mean of the values that are not NaN."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
