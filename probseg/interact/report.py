"""Results of an evaluation as files: numbers first, then what is drawn from them.

``objects.csv`` has one row per object, trial and number of clicks, and all scores follow from it;
``results.json`` has the scores with all that is needed to repeat the evaluation.
"""

from __future__ import annotations

import functools
import hashlib
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
from probseg.metrics import Scores, Summary, percents_up_to, summarise
from probseg.paths import replacing

_OF_STEPS = {
    "ious": "iou",
    "boundary_ious": "boundary_iou",
    "brier": "brier",
    "ece": "ece",
    "compliance": "compliance",
    "seconds": "seconds",
}
"""Which field of a step each array of `Scores` is made of."""

PACKAGES = (
    "lightning",
    "timm",
    "numpy",
    "opencv-python-headless",
    "pillow",
    "scikit-image",
    "scipy",
)
"""Packages besides torch whose versions numbers depend on."""


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
    scores = scores_of(records, protocol)
    summaries = _summaries(scores, protocol)
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
    with replacing(paths["results"]) as draft:
        draft.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return paths


def summarise_records(records: Sequence[ObjectRecord], protocol: Protocol) -> dict[str, Summary]:
    """Return the scores by data set; repeated runs count once.

    Args:
        records: All runs, in any order.
        protocol: How they were made. IoUs above its target, at which runs end, are not asked for.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    return _summaries(scores_of(records, protocol), protocol)


def scores_of(records: Sequence[ObjectRecord], protocol: Protocol) -> dict[str, Scores]:
    """Arrange the scores of runs as `probseg.metrics` takes them; repeated runs count once.

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
    """Do the same as `scores_of` for runs of which no more than the first result is known.

    Args:
        records: All runs, in any order.
        first: Number of corrective clicks of the first result, see `Scores`.
    """
    if not records:
        message = "records: expected at least one, got none; is the data set empty?"
        raise ValueError(message)
    objects: dict[str, dict[str, list[ObjectRecord]]] = {}
    for record in unique(records):
        objects.setdefault(record.dataset, {}).setdefault(record.name, []).append(record)
    return {dataset: _arrays(dataset, by_name, first) for dataset, by_name in objects.items()}


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return what the numbers were made with: versions, commit, machine. JSON values only.

    Args:
        device: Device of the model.

    Returns:
        ``versions`` by package (None where it is missing), ``commit`` and ``dirty`` of the checkout
        (None where there is none), ``changes_sha256`` (of what ``git diff HEAD`` prints; None
        without changes), ``python``, ``platform``, ``device`` and ``threads``.
    """
    device = torch.device(device)
    versions: dict[str, str | None] = {
        "probseg": probseg.__version__,
        "torch": str(torch.__version__),  # unlike the package's, it names the CUDA it is built for
    }
    for name in PACKAGES:
        try:
            versions[name] = packages.version(name)
        except packages.PackageNotFoundError:
            versions[name] = None
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no")
    changes = _git("diff", "HEAD")
    return {
        "versions": versions,
        "commit": None if commit is None else commit.decode().strip(),
        "dirty": None if status is None else bool(status),
        "changes_sha256": hashlib.sha256(changes).hexdigest() if changes else None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


@functools.cache
def _git(*arguments: str) -> bytes | None:
    """Return what git says about the checkout that the package is in, or None."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installed package may lie inside somebody else's checkout
        return None
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _summaries(scores: Mapping[str, Scores], protocol: Protocol) -> dict[str, Summary]:
    percents = percents_up_to(protocol.target_iou)
    return {name: summarise(of_set, percents) for name, of_set in scores.items()}


def _arrays(dataset: str, objects: Mapping[str, Sequence[ObjectRecord]], first: int) -> Scores:
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
    return Scores(**arrays, photos=tuple(runs[0].photo for runs in objects.values()), first=first)
