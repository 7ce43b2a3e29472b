"""Agreement of a prediction with the clicks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from probseg.types import Click


def click_compliance(prediction: npt.NDArray[np.bool_], clicks: Sequence[Click]) -> float | None:
    """Return the share of clicks that agree with the prediction at their pixel.

    Clicks between pixels belong to the nearest one. An annotator expects 1: what was clicked on
    once should not have to be clicked on again.

    Args:
        prediction: bool, shape `(H, W)`.
        clicks: In pixels of the prediction.

    Returns:
        Share in [0, 1], or None without clicks.

    Raises:
        ValueError: If a click is outside the prediction.
    """
    if not clicks:
        return None
    height, width = prediction.shape
    obeyed = 0
    for click in clicks:
        x, y = round(click.x), round(click.y)
        if not (0 <= x < width and 0 <= y < height):
            message = (
                f"`clicks` must satisfy 0 <= x < {width} and 0 <= y < {height}, "
                f"got ({click.x}, {click.y}); are they in pixels of this prediction?"
            )
            raise ValueError(message)
        obeyed += prediction[y, x] == click.positive
    return float(obeyed) / len(clicks)
