"""The scores of an answer, one row each.

The columns of `objects.csv`, the summaries, the tables, the comparisons and the help of
`probseg compare` are made from these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from probseg.evaluation.scorer import ScoredPrediction
from probseg.metrics.masks import click_compliance, size_jump


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
