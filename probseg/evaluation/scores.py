"""A prediction and its scores: computed fast enough for every click, one row each.

The columns of `objects.csv`, the summaries, the tables, the comparisons and the help of
`probseg compare` are made from these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import cv2
import numpy as np
import numpy.typing as npt

from probseg.metrics.masks import (
    BINS,
    boundary_region,
    boundary_width,
    check_prediction,
    check_probability,
    click_compliance,
    region_iou,
    size_jump,
)
from probseg.types import IGNORE, Click

_LEVELS = 1024  # of a bin: a power of 2, so that p * BINS * _LEVELS rounds as p * BINS does
_TOP = BINS * _LEVELS  # the level of p = 1
_CODES = _TOP + _LEVELS  # levels of the background, then as many of the object and of ignored
_ONE = 2 * _TOP
_P = 2 * np.arange(_CODES, dtype=np.int64) + 1  # the p that stands for each level, in _ONE-ths
_P[_TOP] = _ONE


class MaskScorer:
    """Scores the predictions of one object; terms of the ground truth are computed once.

    The overlaps are those of the plain functions. `brier` and `ece` are read off one histogram
    of the probabilities in steps of `1 / 15360`, whose middles stand for all of a step: they are
    within `1 / 15360` and `1 / 30720` of the plain functions' values, in practice nearer. The
    loops over pixels are in OpenCV and numpy, which let other threads run meanwhile; calls change
    nothing that they share, so several threads may score at once.

    Args:
        mask: uint8, shape `(H, W)`: 1 object, 0 background, 255 ignored.
        crop: The part `(x0, y0, x1, y1)` of the image that the model sees, half-open, in pixels;
            None is all of it. `brier` and `ece` count only pixels inside: elsewhere there
            is no answer. The overlaps are over the whole image.

    Raises:
        ValueError: If `mask` is not uint8 of rank 2, or `crop` is empty or not inside it.
    """

    def __init__(
        self, mask: npt.NDArray[np.uint8], crop: tuple[int, int, int, int] | None = None
    ) -> None:
        if mask.ndim != 2 or mask.dtype != np.uint8:
            raise ValueError(
                f"`mask` must be uint8 of shape (H, W), got {mask.dtype} of {mask.shape}"
            )
        height, width = mask.shape
        x0, y0, x1, y1 = crop or (0, 0, width, height)
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            raise ValueError(f"`crop` must be a box in an image of {width} x {height}, got {crop}")
        self.mask = mask
        self.truth = (mask == 1).view(np.uint8)
        counted = (mask != IGNORE).view(np.uint8)
        self.counted = None if counted.all() else counted  # None: every pixel counts
        self.area = cv2.countNonZero(self.truth)
        self.width = boundary_width(mask.shape)
        self.boundary = boundary_region(self.truth, self.width)
        self.crop = slice(y0, y1), slice(x0, x1)
        cropped, counted = mask[self.crop], counted[self.crop]
        self.crop_count = cv2.countNonZero(counted)
        codes = np.where(cropped == IGNORE, 2, cropped == 1) * _CODES
        self.crop_codes = codes.astype(np.uint16)  # (h, w)

    def __call__(
        self,
        prediction: npt.NDArray[np.bool_],
        probability: npt.NDArray[np.float32] | None,
        clicks: Sequence[Click] = (),
        before: npt.NDArray[np.bool_] | None = None,
    ) -> ScoredPrediction:
        """Check one prediction; its scores are computed on access.

        Args:
            prediction: bool, shape `(H, W)`.
            probability: Of the object, float32 in [0, 1], shape `(H, W)`; None where the model
                has not been asked yet.
            clicks: The clicks so far, in pixels of the whole image.
            before: The prediction before the last click, bool, shape `(H, W)`; None without one.

        Raises:
            ValueError: If a shape or dtype is not as above, a probability is NaN or outside
                [0, 1], or a click is outside the image.
        """
        check_prediction(prediction, self.mask)
        if probability is not None:
            check_probability(probability, self.mask)
        return ScoredPrediction(self, prediction, probability, clicks, before)


class ScoredPrediction:
    """One prediction, to be scored against the truth; made by `MaskScorer`.

    Attributes:
        prediction: bool, shape `(H, W)`.
        probability: Of the object, float32 in [0, 1], shape `(H, W)`, or None.
        clicks: The clicks so far.
        before: The prediction before the last click, bool, shape `(H, W)`, or None.
    """

    def __init__(
        self,
        scorer: MaskScorer,
        prediction: npt.NDArray[np.bool_],
        probability: npt.NDArray[np.float32] | None,
        clicks: Sequence[Click],
        before: npt.NDArray[np.bool_] | None,
    ) -> None:
        self.prediction, self.probability = prediction, probability
        self.clicks, self.before = clicks, before
        self._scorer = scorer
        self._found = prediction.view(np.uint8)
        if scorer.counted is not None:
            self._found = cv2.bitwise_and(self._found, scorer.counted)

    @property
    def iou(self) -> float:
        """See `probseg.metrics.iou`."""
        common = cv2.countNonZero(cv2.bitwise_and(self._found, self._scorer.truth))
        union = cv2.countNonZero(self._found) + self._scorer.area - common
        return common / union if union else 1.0

    @property
    def boundary_iou(self) -> float:
        """See `probseg.metrics.boundary_iou`."""
        region = boundary_region(self._found, self._scorer.width)
        return region_iou(region, self._scorer.boundary)

    @property
    def brier(self) -> float | None:
        """See `probseg.metrics.brier_score`.

        None without a probability, or where the model sees ignored pixels only.
        """
        return self._calibration[0]

    @property
    def ece(self) -> float | None:
        """See `probseg.metrics.expected_calibration_error`; None as for `brier`."""
        return self._calibration[1]

    @cached_property
    def _calibration(self) -> tuple[float, float] | tuple[None, None]:
        """Brier score and calibration error inside the crop."""
        count = self._scorer.crop_count
        if self.probability is None or not count:
            return None, None
        cropped = np.ascontiguousarray(self.probability[self._scorer.crop], dtype=np.float32)
        levels = (cropped * np.float32(_TOP)).astype(np.uint16)  # (h, w), rounded down
        levels += self._scorer.crop_codes
        counts = cv2.calcHist([levels], [0], None, [3 * _CODES], [0, 3 * _CODES])
        # In whole numbers, whose sums do not depend on the order, nor on where in memory they lie.
        background, there, _ = counts.reshape(3, _CODES).astype(np.int64)
        squares = background @ _P**2 + there @ (_ONE - _P) ** 2
        gaps = ((background + there) * _P - there * _ONE).reshape(BINS + 1, _LEVELS).sum(axis=1)
        gaps[-2] += gaps[-1]  # sums of p - y by bin; the level of p = 1 belongs to the last one
        return int(squares) / _ONE**2 / count, int(np.abs(gaps[:-1]).sum()) / _ONE / count


@dataclass(frozen=True)
class Score:
    """A score of the answer after each click.

    Args:
        name: Column of `objects.csv`, key of `results.json`, metric of `probseg compare`.
        title: Heading of tables.
        help: Definition in one sentence, with range and source.
        measure: Returns the score of an answer; None where it has none.
        scale: Factor of the tables: 100 for percent.
        digits: Decimal places of the tables.
        unit: Of differences; "" for plain numbers.
        higher_is_better: The better direction.
        lowest: Smallest possible value.
        highest: Largest possible value; infinity for one without a limit, such as a distance.
        compared: Whether `probseg compare` tests it, after the last click.
        of_click: Whether it is a score of the click rather than of the answer: tables show the
            mean over all clicks, and a run that ended has none.
        needs_clicks: Whether it is undefined under a protocol without clicks.
    """

    name: str
    title: str
    help: str
    measure: Callable[[ScoredPrediction], float | None]
    scale: float = 1
    digits: int = 4
    unit: str = ""
    higher_is_better: bool = False
    lowest: float = 0
    highest: float = 1
    compared: bool = True
    of_click: bool = False
    needs_clicks: bool = False


_percent = partial(Score, scale=100, digits=1, unit="points")

_ROWS = (
    _percent(
        "iou",
        "IoU",
        "IoU over the whole image, in [0, 1].",
        lambda answer: answer.iou,
        higher_is_better=True,
    ),
    _percent(
        "boundary_iou",
        "boundary IoU",
        "Boundary IoU: IoU of the boundary regions, in percent (Cheng et al., 2021).",
        lambda answer: answer.boundary_iou,
        higher_is_better=True,
    ),
    Score(
        "brier",
        "Brier score",
        "Brier score: mean squared error of the probabilities, in [0, 1].",
        lambda answer: answer.brier,
    ),
    Score(
        "ece",
        "ECE",
        "ECE: expected calibration error of the probabilities, in [0, 1].",
        lambda answer: answer.ece,
    ),
    _percent(
        "compliance",
        "kept",
        "Kept: percent of the clicks whose pixel the prediction labels as they say.",
        lambda answer: click_compliance(answer.prediction, answer.clicks),
        higher_is_better=True,
        compared=False,
        needs_clicks=True,
    ),
    _percent(
        "jump",
        "jumps",
        "Jumps: percent of the clicks that change the size of the mask by more than half of it.",
        lambda answer: size_jump(answer.before, answer.prediction),
        compared=False,
        of_click=True,
        needs_clicks=True,
    ),
)

SCORES: dict[str, Score] = {row.name: row for row in _ROWS}
"""All scores by name, in the order of the columns."""
