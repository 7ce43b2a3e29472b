"""Sudden changes of a mask."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def size_jump(
    before: npt.NDArray[np.bool_] | None, prediction: npt.NDArray[np.bool_]
) -> float | None:
    """Return 1 if a click changed the area of the mask by more than half, else 0.

    Args:
        before: The mask before the click, bool, shape `(H, W)`; None without one.
        prediction: The mask after it, of the same shape.

    Returns:
        None where there was no mask, or an empty one, before.
    """
    if before is None or not (size := np.count_nonzero(before)):
        return None
    return float(2 * abs(np.count_nonzero(prediction) - size) > size)
