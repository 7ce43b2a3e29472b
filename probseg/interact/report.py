"""Results of an evaluation as files: numbers first, then what is drawn from them.

``objects.csv`` has one row per object, trial and number of clicks, and all scores follow from it;
``results.json`` has the scores with all that is needed to repeat the evaluation.
"""

from __future__ import annotations

import functools
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import numpy as np
import torch

import probseg
from probseg.interact.protocols import Protocol
from probseg.interact.records import ObjectRecord, unique, write_objects
from probseg.interact.tables import markdown_table
from probseg.metrics import Scores, Summary, summarise

_OF_STEPS = {
    "ious": "iou",
    "boundary_ious": "boundary_iou",
    "brier": "brier",
    "ece": "ece",
    "compliance": "compliance",
    "seconds": "seconds",
}
"""Which field of a step each array of `Scores` is made of."""


def write_report(
    folder: Path | str,
    records: Sequence[ObjectRecord],
    protocol: Protocol,
    metadata: Mapping[str, Any],
    *,
    brief: bool = False,
) -> dict[str, Path]:
    """Write all files of an evaluation; ``results.json`` comes last and says that all are there.

    ``objects.csv`` holds every click, ``report.md`` the tables, ``report.html`` a page of all that
    needs no other file and no network, ``curve.png`` and ``survival.png`` the figures and
    ``overlays.png`` a sheet of runs.

    Args:
        folder: Where to; made if need be. The ``results.json`` of an earlier evaluation goes first.
        records: All runs, in any order; repeated ones count once.
        protocol: How they were made.
        metadata: What else belongs to the result (model, data, seed, `environment`); JSON values.
        brief: Whether to leave out ``report.html`` and ``survival.png``, which take seconds.

    Returns:
        Path of each file by its name without suffix; ``table`` is ``report.md`` and ``page`` is
        ``report.html``. ``overlays`` is there only if a record has a picture.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    from probseg.interact import figures, html  # matplotlib is slow and not needed for numbers

    records = unique(records)
    scores = scores_of(records)
    summaries = {name: summarise(of_set) for name, of_set in scores.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {
        "results": folder / "results.json",
        "objects": folder / "objects.csv",
        "table": folder / "report.md",
        "curve": folder / "curve.png",
    }
    paths["results"].unlink(missing_ok=True)
    with paths["objects"].open("w", newline="", encoding="utf-8") as file:
        write_objects(file, records)
    paths["table"].write_text(markdown_table(summaries, protocol), encoding="utf-8")
    figures.draw_curve(paths["curve"], summaries, protocol)
    if any(record.picture is not None for record in records):
        paths["overlays"] = folder / "overlays.png"
        figures.draw_overlays(paths["overlays"], records, protocol)
    if not brief:
        paths |= {"survival": folder / "survival.png", "page": folder / "report.html"}
        figures.draw_survival(paths["survival"], summaries, protocol)
        page = html.render_page(records, scores, summaries, protocol, metadata)
        paths["page"].write_text(page, encoding="utf-8")
    results = {
        "protocol": asdict(protocol),
        "datasets": {name: asdict(summary) for name, summary in summaries.items()},
        "metadata": dict(metadata),
    }
    partial = folder / "results.json.partial"
    partial.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    partial.replace(paths["results"])
    return paths


def summarise_records(records: Sequence[ObjectRecord]) -> dict[str, Summary]:
    """Return the scores by data set; repeated runs count once.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    return {name: summarise(scores) for name, scores in scores_of(records).items()}


def scores_of(records: Sequence[ObjectRecord]) -> dict[str, Scores]:
    """Arrange the scores of runs as `probseg.metrics` takes them; repeated runs count once.

    Returns:
        By data set. Objects are sorted by name, trials by number.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    if not records:
        message = "records: expected at least one, got none; is the data set empty?"
        raise ValueError(message)
    objects: dict[str, dict[str, list[ObjectRecord]]] = {}
    for record in unique(records):
        objects.setdefault(record.dataset, {}).setdefault(record.name, []).append(record)
    return {dataset: _arrays(dataset, by_name) for dataset, by_name in objects.items()}


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return what the numbers were made with: versions, commit, machine. JSON values only.

    Args:
        device: Device of the model.

    Returns:
        ``versions`` by package (None where it is missing), ``commit`` and ``dirty`` of the checkout
        (None where there is none), ``python``, ``platform``, ``device`` and ``threads``.
    """
    device = torch.device(device)
    versions: dict[str, str | None] = {
        "probseg": probseg.__version__,
        "torch": str(torch.__version__),  # unlike the package's, it names the CUDA it is built for
    }
    for name in ("lightning", "timm", "numpy", "opencv-python-headless", "pillow"):
        try:
            versions[name] = packages.version(name)
        except packages.PackageNotFoundError:
            versions[name] = None
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "versions": versions,
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


@functools.cache
def _git(*arguments: str) -> str | None:
    """Return what git says about the checkout that the package is in, or None."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installed package may lie inside somebody else's checkout
        return None
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _arrays(dataset: str, objects: Mapping[str, Sequence[ObjectRecord]]) -> Scores:
    trials = sorted({run.trial for runs in objects.values() for run in runs})
    for name, runs in objects.items():
        ran = [run.trial for run in runs]
        if ran != trials:
            message = (
                f"records: expected trials {trials} of every object of {dataset}, got {ran} of "
                f"{name}"
            )
            raise ValueError(message)
    arrays = {
        array: np.array(
            [
                [[getattr(step, field) for step in run.steps] for run in runs]
                for runs in objects.values()
            ],
            dtype=np.float64,  # turns None into NaN
        )
        for array, field in _OF_STEPS.items()
    }
    return Scores(**arrays, photos=tuple(runs[0].photo for runs in objects.values()))
