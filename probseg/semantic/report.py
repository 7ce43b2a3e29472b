"""Files and tables of an evaluation of semantic segmentation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from probseg.evaluation.journal import RESULTS
from probseg.paths import write_text
from probseg.semantic.scores import Counts, SemanticScores
from probseg.texts import write_rows


def write_scores(
    folder: Path,
    name: str,
    classes: Sequence[str],
    confusion: Counts,
    scores: SemanticScores,
    about: Mapping[str, Any],
) -> None:
    """Write `results.json`, `classes.csv` and `confusion.csv`.

    Args:
        folder: Where to; made if need be.
        name: Of the data set.
        classes: Names in the order of the numbers.
        confusion: Numbers of pixels `(C, C)`, the truth in rows.
        scores: Of this matrix.
        about: How they came about, JSON values.
    """
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
        with (folder / file_name).open("w", newline="", encoding="utf-8") as file:
            write_rows(file, rows)


def print_scores(
    console: Console, name: str, classes: Sequence[str], scores: SemanticScores
) -> None:
    """Print a table of the classes and, in the last row, the means.

    Args:
        console: Where to.
        name: Of the data set.
        classes: Names in the order of the numbers.
        scores: Of the whole data set.
    """
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
