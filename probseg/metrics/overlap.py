"""Overlap of a predicted mask with the truth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from probseg.types import IGNORE


def iou(prediction: npt.NDArray[np.bool_], mask: npt.NDArray[np.uint8]) -> float:
    """Return intersection over union of the object, over the pixels that are not ignored.

    Where neither the prediction nor the truth has an object pixel there is nothing to get wrong:
    the value is 1.

    Args:
        prediction: bool, shape `(H, W)`.
        mask: uint8, shape `(H, W)`: 1 object, 0 background, 255 ignored.

    Raises:
        ValueError: If the shapes differ, or `prediction` is not bool.
    """
    check_prediction(prediction, mask)
    truth = mask == 1
    union = int(np.count_nonzero((truth | prediction) & (mask != IGNORE)))
    intersection = int(np.count_nonzero(truth & prediction))
    return intersection / union if union else 1.0


def check_prediction(prediction: npt.NDArray[np.bool_], mask: npt.NDArray[np.uint8]) -> None:
    """Raise a ValueError if `prediction` is not bool, or not of the mask's shape."""
    if prediction.shape != mask.shape or prediction.dtype != np.bool_:
        message = (
            f"`prediction` must be bool of the mask's shape {mask.shape}, "
            f"got {prediction.dtype} of shape {prediction.shape}"
        )
        raise ValueError(message)
