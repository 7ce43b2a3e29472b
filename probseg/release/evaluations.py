"""Tests of a model: the figures, and everything that is needed to repeat them.

A model folder keeps it in `evaluations.json`. The figures are in the zoo's index, too, each under
the key of its evaluation: `GrabCut/ritm/noc@90`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from probseg.errors import DataError
from probseg.models.build import Description
from probseg.paths import write_text
from probseg.zoo.index import Metric, is_clicks

EVALUATIONS = "evaluations.json"

# figures by name: `miou@5`, `noc@90`; `miou`, `pixel_accuracy`, `mean_accuracy`
Figures = dict[str, Metric]


class Tolerance(NamedTuple):
    """Largest accepted difference of two measurements."""

    share: float  # of IoUs and accuracies, in [0, 1]
    clicks: float

    def of(self, figure: str) -> float:
        """Return the tolerance of a figure by its name."""
        return self.clicks if is_clicks(figure) else self.share

    def exceeded(self, moves: Mapping[str, float]) -> dict[str, float]:
        """Return the differences that are too large, by the name of the figure."""
        return {name: move for name, move in moves.items() if abs(move) > self.of(name)}


@dataclass(frozen=True)
class Evaluation:
    """One test of a model on one data set.

    The key is data set and protocol, and in what the test was not the standard one:
    `GrabCut/gabbur2021+key_iterations=1`, `CamVid+flip`.
    """

    key: str
    dataset: str
    protocol: dict[str, Any] | None  # all options; None for semantic segmentation
    options: dict[str, Any]  # `seed`, `adaptation`; `scales`, `flip`, `iterations`, `output_stride`
    data: Description | None  # module with this test set alone; None where it cannot be built again
    count: dict[str, int]  # `objects` and `trials`, or `photographs`
    figures: Figures
    made_with: dict[str, Any] = field(default_factory=dict)
    parity: dict[str, float] | None = None  # gains of the weights in half precision, if measured

    def moves(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return how much larger the figures of another measurement are, by name."""
        missing = sorted(self.figures.keys() - measured.keys())
        if missing:
            raise DataError(f"{self.key}: {', '.join(missing)} cannot be measured again")
        return {name: measured[name] - figure.value for name, figure in self.figures.items()}


def all_figures(evaluations: Iterable[Evaluation]) -> Figures:
    """Return the figures of several evaluations under full names, as `GrabCut/ritm/miou@5`."""
    figures: Figures = {}
    for evaluation in evaluations:
        for name, figure in evaluation.figures.items():
            full = f"{evaluation.key}/{name}"
            if full in figures:
                raise DataError(
                    f"two results for {evaluation.key}; give the one that is to be published"
                )
            figures[full] = figure
    return figures


def write_evaluations(evaluations: Sequence[Evaluation], folder: Path) -> None:
    """Write `evaluations.json` into a model folder."""
    rows = [asdict(evaluation) for evaluation in evaluations]
    write_text(folder / EVALUATIONS, json.dumps(rows, indent=1) + "\n")


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Read `evaluations.json` of a model folder; a folder without the file has none."""
    path = folder / EVALUATIONS
    if not path.is_file():
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        for row in rows:
            row["figures"] = {name: Metric(**figure) for name, figure in row["figures"].items()}
        return [Evaluation(**row) for row in rows]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: is not a list of evaluations ({error}); publish the model again"
        ) from error
