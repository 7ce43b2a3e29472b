"""Tests by clicks on a small network, and what they leave behind without the times."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from support.runs import MICRO, QUIET

TEST = (
    *("test", "--config", "configs/experiment/grabcut.yaml", *MICRO, *QUIET),
    "--seed_everything=2",
    *("--data.test=probseg.data.ImageMaskFolder", "--data.test.root=data"),
)
"""A test of random weights, which the seed fixes, on the folder `data`."""

TIMES = {"first_seconds", "next_seconds"}


def clicks(folder: Path) -> list[dict[str, str]]:
    """Rows of `objects.csv` in their order, all columns but the time."""
    with (folder / "objects.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row.pop("seconds") is not None for row in rows)
    return rows


def figures(folder: Path) -> dict[str, dict[str, Any]]:
    """Scores of `results.json` by data set, all but the times."""
    datasets = json.loads((folder / "results.json").read_text())["datasets"]
    for scores in datasets.values():
        assert scores.keys() >= TIMES
    return {
        name: {key: value for key, value in scores.items() if key not in TIMES}
        for name, scores in datasets.items()
    }
