"""Results of `probseg test` that were never run: made-up scores, as folders or in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from probseg.evaluation import PROTOCOLS, SCORES, ClickRecord, ObjectRecord, Scores, write_objects
from probseg.reports.comparison import Comparison, Row
from probseg.reports.comparison_inputs import Result

BOXED = replace(PROTOCOLS["gabbur2021"], max_clicks=5, trials=2)
UNBOXED = replace(PROTOCOLS["ritm"], max_clicks=5)


COMPARED = [name for name, score in SCORES.items() if score.compared and name != "iou"]
"""Scores that `compare` tests after the last click."""

METRICS = [
    *(f"miou@{k}" for k in (0, 1, 2, 3, 5)),
    "auc",
    *(f"noc@{q}" for q in (80, 85, 90, 95)),
    *COMPARED,
    *(f"failures@{q}" for q in (80, 85, 90, 95)),
]
"""All metrics of a comparison of results with five clicks."""


def step(
    k: int,
    click: tuple[int, int, bool] | tuple[None, None, None] = (None, None, None),
    seconds: float | None = None,
    **scores: float | None,
) -> ClickRecord:
    """A line of a run; scores that are not given are None."""
    return ClickRecord(k, *click, dict.fromkeys(SCORES) | scores, seconds)


def scores_by_iou(ious: Any) -> dict[str, Any]:
    """Scores that `compare` tests, made up from IoUs: half the IoU, or half the error."""
    errors = 1 - ious
    halves = {name: (ious if SCORES[name].higher_is_better else errors) / 2 for name in COMPARED}
    return {"iou": ious, **halves}


def record(dataset: str, name: str, trial: int, ious: Any, photo: str, boxed: bool) -> ObjectRecord:
    """One run whose other scores follow from its IoUs."""
    steps = []
    for k, iou in enumerate(map(float, ious)):
        answered = boxed or k > 0
        click = (3, 4, True) if k else (None, None, None)
        compliance = 1.0 if k else None
        seconds = 0.1 if answered else None
        scores = scores_by_iou(iou)
        if not answered:
            scores |= {"brier": None, "ece": None}
        steps.append(step(k, click, seconds, **scores, compliance=compliance))
    return ObjectRecord(dataset, name, trial, tuple(steps), photo)


def write_result(
    folder: Path,
    ious: Mapping[str, Any],
    protocol: Any = BOXED,
    photos: Mapping[str, list[str]] | None = None,
    **metadata: Any,
) -> Path:
    """Write `results.json` and `objects.csv`, of IoUs `(objects, trials, K + 1)` by data set."""
    folder.mkdir(parents=True)
    records = []
    for dataset, values in ious.items():
        names = [f"o{number:02}" for number in range(len(values))]
        of_objects = (photos or {}).get(dataset, names)
        for name, photo, trials in zip(names, of_objects, np.asarray(values), strict=True):
            for trial, run in enumerate(trials):
                records.append(record(dataset, name, trial, run, photo, protocol.box))
    with (folder / "objects.csv").open("w", newline="", encoding="utf-8") as file:
        write_objects(file, records)
    results = {
        "protocol": asdict(protocol),
        "datasets": {dataset: {"n_objects": len(values)} for dataset, values in ious.items()},
        "metadata": {"seed": 0, "weights_sha256": f"sha of {folder.name}"} | metadata,
    }
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return folder


def rising(objects: int, trials: int = 2, clicks: int = 5, *, seed: int = 0) -> Any:
    """IoUs that rise with the clicks, of objects that are not all as hard."""
    random = np.random.default_rng(seed)
    ease = random.uniform(0.3, 0.7, (objects, 1, 1))
    climb = 1 - (1 - ease) * np.exp(-0.3 * np.arange(clicks + 1))
    return np.clip(climb + random.normal(0, 0.02, (objects, trials, clicks + 1)), 0, 1)


def result(name: str, ious: Any, photos: Any = None) -> Result:
    """A result that was not read from a folder; its other scores follow from its IoUs."""
    ious = np.asarray(ious, dtype=np.float64)
    names = [f"o{number:03}" for number in range(len(ious))]
    unknown = np.full_like(ious, np.nan)
    values = dict.fromkeys(SCORES, unknown) | scores_by_iou(ious)
    scores = Scores(values, unknown, tuple(photos or names), 0)
    protocol = {
        "name": "toy",
        "version": 1,
        "max_clicks": ious.shape[2] - 1,
        "box": True,
        "scribbles": False,
        "initial_mask": False,
    }
    return Result(name, Path(name), protocol, {}, {"Toy": names}, {"Toy": scores})


def rows_of(comparison: Comparison, other: str | None = None) -> dict[str, Row]:
    """Rows by metric, of one other result or of all."""
    return {row.metric: row for row in comparison.rows if other in (None, row.other)}
