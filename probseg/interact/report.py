"""Results of an evaluation as files: numbers first, then what is drawn from them.

``objects.csv`` has one row per object, trial and number of clicks, and all scores follow from it;
``results.json`` has the scores with all that is needed to repeat the evaluation.
"""

from __future__ import annotations

import csv
import functools
import json
import platform
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

import probseg
from probseg.interact.loop import ObjectRecord
from probseg.interact.protocols import Protocol
from probseg.metrics import REPORTED_CLICKS, Summary, summarise

COLUMNS = ("dataset", "object", "trial", "k", "x", "y", "sign", "iou", "seconds")
"""Columns of ``objects.csv``; ``sign`` is 1 or -1. No click or no time is an empty cell."""


def write_report(
    folder: Path | str,
    records: Sequence[ObjectRecord],
    protocol: Protocol,
    metadata: Mapping[str, Any],
) -> dict[str, Path]:
    """Write ``results.json``, ``objects.csv``, ``table.md``, ``curve.png`` and ``overlays.png``.

    Args:
        folder: Where to; made if need be.
        records: All runs, in any order; repeated ones count once.
        protocol: How they were made.
        metadata: What else belongs to the result (model, data, seed, `environment`); JSON values.

    Returns:
        Path of each file by its name without suffix. ``overlays`` is there only if a record has a
        picture.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    from probseg.interact import figures  # matplotlib is slow to import and not needed for numbers

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    records = _unique(records)
    summaries = summarise_records(records)
    paths = {
        "results": folder / "results.json",
        "objects": folder / "objects.csv",
        "table": folder / "table.md",
        "curve": folder / "curve.png",
    }
    results = {
        "protocol": asdict(protocol),
        "datasets": {name: asdict(summary) for name, summary in summaries.items()},
        "metadata": dict(metadata),
    }
    paths["results"].write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    _write_objects(paths["objects"], records)
    paths["table"].write_text(markdown_table(summaries, protocol), encoding="utf-8")
    figures.draw_curve(paths["curve"], summaries, protocol)
    pictured = [record for record in records if record.picture is not None]
    if pictured:
        paths["overlays"] = folder / "overlays.png"
        figures.draw_overlays(paths["overlays"], pictured)
    return paths


def summarise_records(records: Sequence[ObjectRecord]) -> dict[str, Summary]:
    """Return the scores by data set; repeated runs count once.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    runs = {
        (record.dataset, record.name, record.trial): [step.iou for step in record.steps]
        for record in records
    }
    return {name: summarise(ious) for name, ious in _iou_arrays(runs).items()}


def read_ious(path: Path | str) -> dict[str, npt.NDArray[np.float64]]:
    """Read the IoUs of an ``objects.csv``, as `probseg.metrics` takes them.

    Returns:
        By data set, shape ``(objects, trials, K + 1)``; the objects are sorted by name.
    """
    runs: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    with Path(path).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            runs[row["dataset"], row["object"], int(row["trial"])].append(float(row["iou"]))
    return _iou_arrays(runs)


def markdown_table(summaries: Mapping[str, Summary], protocol: Protocol) -> str:
    """Return the scores as two Markdown tables with a legend."""
    lines = [f"# {protocol.name} (version {protocol.version})", "", protocol.description, ""]
    for title, legend, header, rows in _tables(summaries, protocol):
        lines += [f"## {title}", "", legend, ""]
        lines += [f"| {' | '.join(header)} |", f"|:--|{'--:|' * (len(header) - 1)}"]
        lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
    return "\n".join(lines)


def print_summary(console: Console, summaries: Mapping[str, Summary], protocol: Protocol) -> None:
    """Print the scores as tables."""
    for title, legend, header, rows in _tables(summaries, protocol):
        table = Table(title=f"{title}, protocol {protocol.name}", caption=legend)
        for number, name in enumerate(header):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)


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
    for name in ("lightning", "timm", "numpy", "opencv-python-headless"):
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


def _unique(records: Sequence[ObjectRecord]) -> list[ObjectRecord]:
    """Return each run once, sorted by data set, object and trial, whoever ran it first."""
    runs = {(record.dataset, record.name, record.trial): record for record in reversed(records)}
    return [runs[key] for key in sorted(runs)]


def _iou_arrays(
    runs: Mapping[tuple[str, str, int], list[float]],
) -> dict[str, npt.NDArray[np.float64]]:
    """Arrange IoUs by ``(dataset, object, trial)`` as arrays ``(objects, trials, K + 1)``."""
    if not runs:
        message = "records: expected at least one, got none; is the data set empty?"
        raise ValueError(message)
    objects: dict[str, dict[str, dict[int, list[float]]]] = {}
    for (dataset, name, trial), values in sorted(runs.items()):
        objects.setdefault(dataset, {}).setdefault(name, {})[trial] = values
    arrays = {}
    for dataset, by_name in objects.items():
        trials = {trial for by_trial in by_name.values() for trial in by_trial}
        for name, by_trial in by_name.items():
            if by_trial.keys() != trials:
                message = (
                    f"records: expected trials {sorted(trials)} of every object of {dataset}, "
                    f"got {sorted(by_trial)} of {name}"
                )
                raise ValueError(message)
        arrays[dataset] = np.array([list(by_trial.values()) for by_trial in by_name.values()])
    return arrays


def _write_objects(path: Path, records: Sequence[ObjectRecord]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for record in records:
            run = (record.dataset, record.name, record.trial)
            for k, x, y, positive, iou, seconds in record.steps:
                sign = None if positive is None else 1 if positive else -1
                writer.writerow((*run, k, x, y, sign, iou, seconds))


def _tables(
    summaries: Mapping[str, Summary], protocol: Protocol
) -> list[tuple[str, str, list[str], list[list[str]]]]:
    """Return title, legend, header and rows of both tables, in words."""
    first = 0 if protocol.box else 1  # the empty mask before the first click is nobody's result
    clicks = [k for k in REPORTED_CLICKS if first <= k <= protocol.max_clicks]
    after_box = " after the box" if protocol.box else ""
    over_trials = any(summary.n_trials > 1 for summary in summaries.values())
    legend = (
        f"In percent, after k corrective clicks{after_box}: "
        "mean ± standard error over objects"
        + (" ± standard error over trials." if over_trials else ".")
    )
    means = [
        [name, f"{summary.n_objects}", f"{summary.n_trials}"]
        + [_mean(summary, k, over_trials) for k in clicks]
        for name, summary in summaries.items()
    ]
    header = ["data", "objects", "trials", *(f"mIoU@{k}" for k in clicks)]
    percents = list(next(iter(summaries.values())).noc)
    cap = protocol.max_clicks
    counts_legend = (
        f"NoC@q: mean number of corrective clicks{after_box} to an IoU of q percent (≤ {cap}). "
        f"Runs that failed: ≥{cap}@q needed {cap} clicks or more, never@q did not get there."
    )
    counts_header = [
        "data",
        "runs",
        *(f"NoC@{percent}" for percent in percents),
        *(f"≥{cap}@{percent}" for percent in percents),
        *(f"never@{percent}" for percent in percents),
    ]
    counts = [
        [
            name,
            f"{summary.n_objects * summary.n_trials}",
            *(f"{summary.noc[percent]:.2f}" for percent in percents),
            *(f"{summary.failures_at_cap[percent]}" for percent in percents),
            *(f"{summary.failures_never[percent]}" for percent in percents),
        ]
        for name, summary in summaries.items()
    ]
    return [
        ("Mean IoU", legend, header, means),
        ("Number of clicks", counts_legend, counts_header, counts),
    ]


def _mean(summary: Summary, k: int, over_trials: bool) -> str:
    errors = [summary.se_objects, summary.se_trials] if over_trials else [summary.se_objects]
    spreads = ["n/a" if error is None else f"{100 * error[k]:.1f}" for error in errors]
    return "±".join([f"{100 * summary.miou[k]:.1f}", *spreads])
