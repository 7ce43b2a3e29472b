"""Lists of a page: all objects with their scores, and all options with their meaning."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from probseg.evaluation.arrays import Scores
from probseg.evaluation.protocols import Protocol
from probseg.evaluation.records import ObjectRecord
from probseg.evaluation.summary import percents_up_to
from probseg.metrics import noc
from probseg.reports.pages import render
from probseg.reports.tables import ending

Floats = npt.NDArray[np.float64]

ALL_OBJECTS = 1000
"""Objects in all that are listed; of more only the worst and the best are."""

SOME_OBJECTS = 200
"""Number of the worst and of the best objects of each data set that are then listed."""

LISTED_CLICKS = (1, 3, 5, 10)
"""Numbers of clicks after which the list has the IoU, besides the first answer and the last."""

LISTED_PERCENT = 90
"""IoU in percent to which the list has the number of clicks, or the next one below that runs have
a chance to reach."""


def listed_percent(protocol: Protocol) -> int | None:
    """Return the IoU in percent to which clicks are counted, None where none are to be counted."""
    if protocol.max_clicks == 0:
        return None
    known = percents_up_to(protocol.target_iou)
    return max((percent for percent in known if percent <= LISTED_PERCENT), default=None)


def render_objects(
    records: Sequence[ObjectRecord],
    scores: Mapping[str, Scores],
    areas: Mapping[str, Floats],
    protocol: Protocol,
) -> Markup:
    """Return an HTML table of objects, worst first, that a script may sort and search.

    Args:
        records: Each run once, sorted by data set, object and trial.
        scores: Their scores by data set.
        areas: Area under each run's curve of IoU over clicks by data set, `(objects, trials)`.
        protocol: How they were made.
    """
    last = protocol.max_clicks
    clicks = sorted({protocol.first_answer, last, *(k for k in LISTED_CLICKS if k < last)})
    header = ["data", "object", "AUC", *(f"IoU@{k}" for k in clicks)]
    percent = listed_percent(protocol)
    header += [] if percent is None else [f"NoC@{percent}"]
    header += ["clicks"] if last > 0 else []
    total = sum(len(of_set.photos) for of_set in scores.values())
    rows: list[dict[str, Any]] = []
    for name, of_set in scores.items():
        runs = [record for record in records if record.dataset == name]
        order = areas[name].mean(axis=1).argsort(kind="stable")
        if total > ALL_OBJECTS and len(order) > 2 * SOME_OBJECTS:
            order = np.concatenate([order[:SOME_OBJECTS], order[-SOME_OBJECTS:]])
        n_trials = areas[name].shape[1]
        digits = 0 if n_trials == 1 else 1
        for number in order.tolist():
            mine = runs[number * n_trials : (number + 1) * n_trials]
            ious = of_set.ious[number]  # (trials, K + 1)
            cells = [_cell(100 * areas[name][number].mean(), 1)]
            cells += [_cell(100 * ious[:, k].mean(), 1) for k in clicks]
            if percent is not None:
                reached = bool((ious.max(axis=1) >= percent / 100).all())
                needed = noc(ious[None], percent / 100).mean()
                cells.append(_cell(needed, digits, "" if reached else "> "))
            if last > 0:
                cells.append(_cell(float(np.mean([run.clicks for run in mine])), digits))
            rows.append({"dataset": name, "name": mine[0].name, "cells": cells})
    return render(
        "objects",
        rows=rows,
        total=total,
        some=SOME_OBJECTS,
        percent=percent,
        clicks=last > 0,
        ending=ending(protocol),
        header=header,
    )


def render_options(protocol: Protocol, metadata: Mapping[str, Any]) -> Markup:
    """Return HTML tables of all options of a protocol with their meaning, and of all metadata.

    Args:
        protocol: How the runs were made.
        metadata: Nested JSON values.
    """
    return render("options", options=list(_options(protocol)), facts=list(_leaves(metadata)))


class _Cell(NamedTuple):
    """A number of the list, and its text."""

    value: float
    text: str


def _cell(value: float, digits: int, prefix: str = "") -> _Cell:
    return _Cell(float(value), f"{prefix}{value:.{digits}f}")


def _options(options: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:  # noqa: ANN401
    """Yield name, value and documented meaning of the fields of a dataclass, and of those in it."""
    documented = inspect.getdoc(type(options)) or ""
    meanings = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", documented, flags=re.MULTILINE))
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), prefix + field.name
        meaning = " ".join(meanings.get(field.name, "").split())
        if dataclasses.is_dataclass(value):
            yield name, "", meaning
            yield from _options(value, f"{name}.")
        else:
            yield name, value, meaning


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value of all that is not a mapping itself."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
