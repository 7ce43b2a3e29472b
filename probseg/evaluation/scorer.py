"""All scores of a prediction at once, fast enough to follow every click of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from probseg.metrics.boundary import boundary_region, boundary_width, region_iou
from probseg.metrics.calibration import BINS, check_probability
from probseg.metrics.compliance import click_compliance
from probseg.metrics.overlap import check_prediction
from probseg.types import IGNORE, Click

_LEVELS = 1024  # of a bin: a power of 2, so that p * BINS * _LEVELS rounds as p * BINS does
_TOP = BINS * _LEVELS  # the level of p = 1
_CODES = _TOP + _LEVELS  # levels of the background, then as many of the object and of ignored
_ONE = 2 * _TOP
_P = 2 * np.arange(_CODES, dtype=np.int64) + 1  # the p that stands for each level, in _ONE-ths
_P[_TOP] = _ONE


class PixelScores(NamedTuple):
    """Scores of one prediction.

    Args:
        iou: See `probseg.metrics.iou`.
        boundary_iou: See `probseg.metrics.boundary_iou`.
        brier: See `probseg.metrics.brier_score`; None without a probability, or where the model
            sees ignored pixels only.
        ece: See `probseg.metrics.expected_calibration_error`; None as for ``brier``.
        compliance: See `probseg.metrics.click_compliance`; None without clicks.
    """

    iou: float
    boundary_iou: float
    brier: float | None
    ece: float | None
    compliance: float | None


class MaskScorer:
    """Scores the predictions of one object; what depends on the truth alone is computed once.

    The overlaps are those of the plain functions. ``brier`` and ``ece`` are read off one histogram
    of the probabilities in steps of ``1 / 15360``, whose middles stand for all of a step: they are
    within ``1 / 15360`` and ``1 / 30720`` of the plain functions' values, in practice nearer. The
    loops over pixels are in OpenCV and numpy, which let other threads run meanwhile; calls change
    nothing that they share, so several threads may score at once.

    Args:
        mask: uint8, shape ``(H, W)``: 1 object, 0 background, 255 ignored.
        view: The part ``(x0, y0, x1, y1)`` of the image that the model sees, half-open, in pixels;
            None is all of it. ``brier`` and ``ece`` count only pixels inside: elsewhere the model
            said nothing. The overlaps are over the whole image.

    Raises:
        ValueError: If ``mask`` is not uint8 of rank 2, or ``view`` is empty or not inside it.
    """

    def __init__(
        self, mask: npt.NDArray[np.uint8], view: tuple[int, int, int, int] | None = None
    ) -> None:
        if mask.ndim != 2 or mask.dtype != np.uint8:
            message = f"mask: expected uint8 of shape (H, W), got {mask.dtype} of {mask.shape}"
            raise ValueError(message)
        height, width = mask.shape
        x0, y0, x1, y1 = view or (0, 0, width, height)
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            message = f"view: expected a box in an image of {width} x {height}, got {view}"
            raise ValueError(message)
        self._mask = mask
        self._truth = (mask == 1).view(np.uint8)
        counted = (mask != IGNORE).view(np.uint8)
        self._counted = None if counted.all() else counted  # None: every pixel counts
        self._area = cv2.countNonZero(self._truth)
        self._width = boundary_width(mask.shape)
        self._boundary = boundary_region(self._truth, self._width)
        self._view = slice(y0, y1), slice(x0, x1)
        seen, counted = mask[self._view], counted[self._view]
        self._seen_count = cv2.countNonZero(counted)
        codes = np.where(seen == IGNORE, 2, seen == 1) * _CODES
        self._seen_codes = codes.astype(np.uint16)  # (h, w)

    def __call__(
        self,
        prediction: npt.NDArray[np.bool_],
        probability: npt.NDArray[np.float32] | None,
        clicks: Sequence[Click] = (),
    ) -> PixelScores:
        """Score one prediction.

        Args:
            prediction: bool, shape ``(H, W)``.
            probability: Of the object, float32 in [0, 1], shape ``(H, W)``; None where the model
                has not been asked yet.
            clicks: The clicks so far, in pixels of the whole image.

        Raises:
            ValueError: If a shape or dtype is not as above, a probability is NaN or outside
                [0, 1], or a click is outside the image.
        """
        check_prediction(prediction, self._mask)
        found = prediction.view(np.uint8)
        if self._counted is not None:
            found = cv2.bitwise_and(found, self._counted)
        common = cv2.countNonZero(cv2.bitwise_and(found, self._truth))
        union = cv2.countNonZero(found) + self._area - common
        brier, ece = (None, None) if probability is None else self._calibration(probability)
        return PixelScores(
            iou=common / union if union else 1.0,
            boundary_iou=region_iou(boundary_region(found, self._width), self._boundary),
            brier=brier,
            ece=ece,
            compliance=click_compliance(prediction, clicks),
        )

    def _calibration(
        self, probability: npt.NDArray[np.float32]
    ) -> tuple[float, float] | tuple[None, None]:
        """Return the Brier score and the calibration error inside the view."""
        check_probability(probability, self._mask)
        if not self._seen_count:
            return None, None
        seen = np.ascontiguousarray(probability[self._view], dtype=np.float32)  # (h, w)
        levels = (seen * np.float32(_TOP)).astype(np.uint16)  # rounded down
        levels += self._seen_codes
        counts = cv2.calcHist([levels], [0], None, [3 * _CODES], [0, 3 * _CODES])
        # In whole numbers, whose sums do not depend on the order, nor on where in memory they lie.
        background, there, _ = counts.reshape(3, _CODES).astype(np.int64)
        squares = background @ _P**2 + there @ (_ONE - _P) ** 2
        gaps = _by_bin((background + there) * _P - there * _ONE)  # sums of p - y
        count = self._seen_count
        return int(squares) / _ONE**2 / count, int(np.abs(gaps).sum()) / _ONE / count


def _by_bin(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Add up the values of each bin's levels; the one of p = 1 belongs to the last bin."""
    sums = values.reshape(BINS + 1, _LEVELS).sum(axis=1)
    sums[-2] += sums[-1]
    return np.asarray(sums[:-1])
