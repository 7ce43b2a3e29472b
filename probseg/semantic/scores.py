"""Scores of semantic segmentation, from confusion matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class SemanticScores(NamedTuple):
    """Scores in [0, 1] of a whole data set, not means over its photographs.

    What has no pixel to go by is NaN; means leave it out, and are NaN where nothing is left.

    Args:
        iou: Intersection over union of each class, shape `(C,)`; NaN for a class that is neither
            in the truth nor predicted.
        accuracy: Part of the pixels of each class that is found, shape `(C,)`; NaN for a class
            that is not in the truth.
        share: Part of all pixels that each class has, shape `(C,)`.
        miou: Mean of `iou` (Everingham et al. 2015, Sec. 4.2).
        pixel_accuracy: Part of all pixels that is right.
        mean_accuracy: Mean of `accuracy`.
    """

    iou: Floats
    accuracy: Floats
    share: Floats
    miou: float
    pixel_accuracy: float
    mean_accuracy: float


def semantic_scores(confusion: Counts) -> SemanticScores:
    """Compute the scores of a confusion matrix.

    Args:
        confusion: Numbers of pixels, shape `(C, C)`: of class i (row) taken for class j (column).

    Raises:
        ValueError: If the matrix is not square.
    """
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        msg = f"`confusion` must have shape (C, C), got {confusion.shape}"
        raise ValueError(msg)
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


def _ratio(part: Floats, whole: Floats) -> Floats:
    """Divide; NaN where the whole is 0."""
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def _mean(values: Floats) -> float:
    """Return the mean of the values that are not NaN."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
