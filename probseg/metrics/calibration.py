"""Calibration of the probability of the object.

Both scores treat every pixel as one statement about two classes: "object, with probability `p`".
`y` is 1 on the object and 0 on the background; ignored pixels do not count.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from probseg.types import IGNORE

BINS = 15
"""Number of bins of the calibration error (Guo et al., 2017)."""

Floats = npt.NDArray[np.floating]


def brier_score(probability: Floats, mask: npt.NDArray[np.uint8]) -> float | None:
    """Return the mean squared error of the probabilities, mean of `(p - y)^2` (Brier, 1950).

    It is a proper score: the true probability of each pixel has the least expected value. The
    range is [0, 1], and 0.25 is what `p = 0.5` everywhere gets.

    Args:
        probability: Of the object, float in [0, 1], shape `(H, W)`.
        mask: uint8, shape `(H, W)`: 1 object, 0 background, 255 ignored.

    Returns:
        The score, or None where all pixels are ignored.

    Raises:
        ValueError: If the shapes differ, or a probability is NaN or outside [0, 1].
    """
    check_probability(probability, mask)
    counted = mask != IGNORE
    if not counted.any():
        return None
    errors = probability[counted].astype(np.float64) - (mask[counted] == 1)
    return float(np.mean(errors**2))


def expected_calibration_error(
    probability: Floats, mask: npt.NDArray[np.uint8], bins: int = BINS
) -> float | None:
    """Return the mean difference between probabilities and observed shares of object pixels.

    The expected calibration error of Guo et al. (2017, Eq. 3 and 5), here of the probability of
    the object rather than of the likelier class::

        sum over bins b of  n_b / n * |mean of p in b - share of object pixels in b|

    Bin `b` of `B` holds `b / B <= p < (b + 1) / B`, the last one `p = 1` too; `p * B` is
    computed in float32. The range is [0, 1].

    Args:
        probability: Of the object, float in [0, 1], shape `(H, W)`.
        mask: uint8, shape `(H, W)`: 1 object, 0 background, 255 ignored.
        bins: Number of bins of equal width, at least 1.

    Returns:
        The error, or None where all pixels are ignored.

    Raises:
        ValueError: If the shapes differ, a probability is NaN or outside [0, 1], or `bins` is
            not positive.
    """
    check_probability(probability, mask)
    if bins < 1:
        message = f"`bins` must be at least 1, got {bins}"
        raise ValueError(message)
    counted = mask != IGNORE
    if not counted.any():
        return None
    values, truth = probability[counted], mask[counted] == 1
    index = np.minimum((values.astype(np.float32) * np.float32(bins)).astype(np.intp), bins - 1)
    # n_b * (mean of p - share of object) is the sum of p - y in the bin.
    gaps = np.bincount(index, weights=values.astype(np.float64) - truth, minlength=bins)
    return float(np.abs(gaps).sum() / truth.size)


def check_probability(probability: Floats, mask: npt.NDArray[np.uint8]) -> None:
    """Raise a ValueError if these are no probabilities in the mask's shape."""
    if probability.shape != mask.shape or not np.issubdtype(probability.dtype, np.floating):
        message = (
            f"`probability` must be floats of the mask's shape {mask.shape}, "
            f"got {probability.dtype} of shape {probability.shape}"
        )
        raise ValueError(message)
    if not probability.size:
        return
    low, high = float(probability.min()), float(probability.max())  # both are NaN if any value is
    if np.isnan(low):
        message = (
            f"`probability` must be in [0, 1], got NaN at "
            f"{np.count_nonzero(np.isnan(probability))} of {probability.size} pixels; "
            "the network diverged, or divided by zero"
        )
        raise ValueError(message)
    if low < 0 or high > 1:
        message = (
            f"`probability` must be in [0, 1], got {low:g} to {high:g}; "
            "are these logits? Take their sigmoid"
        )
        raise ValueError(message)
