"""The scores of every click as arrays, one set of arrays per data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from probseg.evaluation.protocols import Protocol
from probseg.evaluation.records import ObjectRecord, unique
from probseg.evaluation.scores import SCORES
from probseg.metrics.interaction import checked_ious

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of all runs of one data set, after each number of clicks.

    All arrays are float64, of shape `(objects, trials, K + 1)`, and NaN where there is nothing:
    before the first answer of the model, before the first click, after the last one (`seconds`).

    Args:
        values: An array for each of `probseg.evaluation.scores.SCORES`, by name, in the range of
            the score; `iou` has no NaN.
        seconds: Time of the model's call, at least 0.
        photos: Name of each object's photograph, which several objects may share.
        first: Number of clicks of the first result: 0 where the annotator begins with a box,
            strokes or a mask, 1 where the first click is what starts the prediction.

    Raises:
        ValueError: If a shape or a value is not as above.
    """

    values: Mapping[str, Floats]
    seconds: Floats
    photos: tuple[str, ...]
    first: int

    def __post_init__(self) -> None:
        checked_ious(self.ious)
        for name, values in {**self.values, "seconds": self.seconds}.items():
            if values.shape != self.ious.shape:
                message = (
                    f"`{name}` must have the shape of iou, {self.ious.shape}, got {values.shape}"
                )
                raise ValueError(message)
            score = SCORES.get(name)  # seconds are no score
            lowest, highest = (score.lowest, score.highest) if score else (0, np.inf)
            fits = (values >= lowest) & (values <= highest) | np.isnan(values)
            if not fits.all():
                message = (
                    f"`{name}` must hold values in [{lowest}, {highest}], got {values[~fits][0]}"
                )
                raise ValueError(message)
        if len(self.photos) != len(self.ious):
            message = (
                f"`photos` must hold one name per object, {len(self.ious)} in all, "
                f"got {len(self.photos)}"
            )
            raise ValueError(message)
        last = self.ious.shape[2] - 1
        if not 0 <= self.first <= last:
            message = f"`first` must be a number of clicks in 0 ... {last}, got {self.first}"
            raise ValueError(message)

    @property
    def ious(self) -> Floats:
        """IoU over the whole image."""
        return self.values["iou"]

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Whether the model was called (has seconds), shape `(objects, trials, K + 1)`."""
        return np.isfinite(self.seconds)


def scores_of(records: Sequence[ObjectRecord], protocol: Protocol) -> dict[str, Scores]:
    """Arrange the scores of runs in arrays; repeated runs count once.

    Args:
        records: All runs, in any order.
        protocol: How they were made.

    Returns:
        By data set. Objects are sorted by name, trials by number.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    return arrange(records, protocol.first_answer)


def arrange(records: Sequence[ObjectRecord], first: int) -> dict[str, Scores]:
    """Do the same as `scores_of` for runs of which only the first result is known.

    Args:
        records: All runs, in any order.
        first: Number of corrective clicks of the first result, see `Scores`.
    """
    if not records:
        message = "`records` must hold at least one, got none; is the data set empty?"
        raise ValueError(message)
    objects: dict[str, dict[str, list[ObjectRecord]]] = {}
    for record in unique(records):
        objects.setdefault(record.dataset, {}).setdefault(record.name, []).append(record)
    return {dataset: _arrays(dataset, by_name, first) for dataset, by_name in objects.items()}


def _arrays(dataset: str, objects: Mapping[str, Sequence[ObjectRecord]], first: int) -> Scores:
    trials = sorted({run.trial for runs in objects.values() for run in runs})
    for name, runs in objects.items():
        ran = [run.trial for run in runs]
        if ran != trials:
            message = (
                f"`records` must hold trials {trials} of every object of {dataset}, got {ran} of "
                f"{name}"
            )
            raise ValueError(message)

    steps = [[run.steps for run in runs] for runs in objects.values()]
    seconds = [[[step.seconds for step in run] for run in runs] for runs in steps]
    values = {
        name: [[[step.scores[name] for step in run] for run in runs] for runs in steps]
        for name in SCORES
    }
    return Scores(
        values={name: np.array(numbers, dtype=np.float64) for name, numbers in values.items()},
        seconds=np.array(seconds, dtype=np.float64),  # turns None into NaN
        photos=tuple(runs[0].photo for runs in objects.values()),
        first=first,
    )
