"""The IoUs of all rows after every click: from folders of results, and as one small file.

Of a plan `paper.yaml`, `paper_objects.csv.gz` has a line for each run, with IoUs of four
digits; `paper_sources.json` says what each was made with. Tables, tests and figures are made from
these two alone, so that they are the same with and without the folders.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from paper_rows import Plan, Row, place_of, settings_of, switched

from probseg.errors import DataError
from probseg.evaluation.protocols import all_options
from probseg.paths import replacing
from probseg.reports.comparison_inputs import read_result

Floats = npt.NDArray[np.float64]

OBJECTS, SOURCES = "{}_objects.csv.gz", "{}_sources.json"
"""Names of the two files of a plan."""

DIGITS = 4
RUN = ("row", "seed", "dataset", "object", "photo", "trial")


@dataclass(frozen=True, eq=False)
class Result:
    """One network of one row on one data set.

    Args:
        row: Name of the row.
        seed: Number of the network among those of the row.
        dataset: Name of the data set.
        objects: Names of the objects, sorted.
        photos: Photograph of each.
        ious: After 0 ... K clicks, float64, shape `(objects, trials, K + 1)`.
        source: What it was made with, JSON values.
    """

    row: str
    seed: int
    dataset: str
    objects: tuple[str, ...]
    photos: tuple[str, ...]
    ious: Floats
    source: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, int, str]:
        """Row, number of the network, and data set."""
        return self.row, self.seed, self.dataset


def gather(plan: Plan, folder: Path, stored: Path) -> tuple[list[Result], list[str]]:
    """Return the newest results of a plan, and what is missing.

    Args:
        plan: Says which results are wanted, and of which models and settings.
        folder: Of the evaluations; need not exist.
        stored: Folder with the two files of earlier results; need not have them.

    Returns:
        The results in the plan's order, and a sentence for each that is not there.
    """
    kept = {result.key: result for result in read(stored, plan.name)}
    results, missing = [], []
    for row in plan.rows.values():
        for seed, model in enumerate(row.models):
            wanted = {**settings_of(row, model), "protocol": asdict(plan.protocol)}
            for dataset in plan.datasets:
                place = place_of(folder, row, seed, dataset)
                candidates = [_of_folder(place, row.name, seed, dataset)]
                candidates.append(kept.get((row.name, seed, dataset)))
                found = [result for result in candidates if result is not None]
                fitting = [
                    result
                    for result in found
                    if {key: result.source[key] for key in wanted} == wanted
                ]
                if fitting:
                    results.append(fitting[0])
                    continue
                why = "has other settings" if found else "was not evaluated"
                missing.append(f"{row.name}: {model} {why} on {dataset}.")
    return results, missing


def differences(plan: Plan, rows: Sequence[Row], folder: Path, stored: Path) -> list[str]:
    """Compare results in folders with the stored ones of the same objects.

    Args:
        plan: The rows and data sets.
        rows: Rows to compare.
        folder: Of the evaluations.
        stored: Folder with the two files of earlier results.

    Returns:
        A line for each network and data set: mean IoUs in percent, stored and repeated, and the
        largest difference of a single IoU.
    """
    kept = {result.key: result for result in read(stored, plan.name)}
    lines = []
    for row in rows:
        for seed, dataset in product(range(len(row.models)), plan.datasets):
            there = _of_folder(place_of(folder, row, seed, dataset), row.name, seed, dataset)
            if there is None:
                continue
            place = f"{row.name}, seed {seed}, {dataset}"
            before = kept.get(there.key)
            if before is None or before.ious.shape != there.ious.shape:
                lines.append(f"{place}: there is no stored result of these runs")
                continue
            means = [100 * result.ious.mean((0, 1)) for result in (before, there)]
            clicks = sorted({0, 1, min(5, len(means[0]) - 1), len(means[0]) - 1})
            figures = (f"@{k} {means[0][k]:.2f} -> {means[1][k]:.2f}" for k in clicks)
            most = 100 * np.abs(before.ious - there.ious).max()
            lines.append(f"{place}: mIoU{', '.join(figures)}; largest difference {most:.2f}")
    return lines


def read(folder: Path, plan: str) -> list[Result]:
    """Read the two files of a plan; without them there are no results.

    Raises:
        DataError: If they do not fit together.
    """
    path = folder / OBJECTS.format(plan)
    if not path.is_file():
        return []
    sources = json.loads((folder / SOURCES.format(plan)).read_text(encoding="utf-8"))
    runs: dict[tuple[str, int, str], list[list[str]]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        next(lines)
        for line in lines:
            runs.setdefault((line[0], int(line[1]), line[2]), []).append(line)
    if [list(key) for key in runs] != [source["result"] for source in sources]:
        other = SOURCES.format(plan)
        msg = f"{path}: its results are not those of {other}; restore both, or remove both"
        raise DataError(msg)
    for source in sources:
        source["protocol"] = all_options(source["protocol"])
    return [_of_lines(runs[key], source) for key, source in zip(runs, sources, strict=True)]


def write(folder: Path, plan: str, results: Sequence[Result]) -> None:
    """Write the two files of a plan; the same results give the same bytes."""
    clicks = range(max(result.ious.shape[2] for result in results))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*RUN, *(f"iou@{k}" for k in clicks)])
    for result in results:
        for name, photo, trials in zip(result.objects, result.photos, result.ious, strict=True):
            for trial, ious in enumerate(trials):
                scores = [f"{iou:.{DIGITS}f}" for iou in ious]
                writer.writerow([*result.key, name, photo, trial, *scores])
    sources = [{"result": list(result.key), **result.source} for result in results]
    with replacing(folder / OBJECTS.format(plan)) as draft:
        draft.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    with replacing(folder / SOURCES.format(plan)) as draft:
        draft.write_text(json.dumps(sources, indent=1) + "\n", encoding="utf-8")


def _of_folder(place: Path, row: str, seed: int, dataset: str) -> Result | None:
    """Read a folder of results, or return None where the evaluation did not come to its end."""
    if not (place / "results.json").is_file():
        return None
    result = read_result(place, row)
    (scores,) = result.scores.values()
    (names,) = result.objects.values()
    metadata = result.metadata
    machine = metadata["environment"]
    source = {
        "model": metadata["model"],
        "adaptation": switched(metadata["adaptation"]),
        "weights_sha256": metadata["weights_sha256"],
        "protocol": dict(result.protocol),
        "seed": metadata["seed"],
        "commit": machine["commit"] and machine["commit"][:7] + "+" * bool(machine["dirty"]),
        "torch": machine["versions"]["torch"],
        "device": machine["device"],
    }
    ious = np.round(scores.ious, DIGITS)
    return Result(row, seed, dataset, tuple(names), scores.photos, ious, source)


def _of_lines(lines: Sequence[Sequence[str]], source: Mapping[str, Any]) -> Result:
    """Put the runs of one result together; they are sorted by object and trial."""
    row, seed, dataset = source["result"]
    photos = {line[3]: line[4] for line in lines}
    scores = np.array([line[len(RUN) :] for line in lines], dtype=np.float64)
    ious = scores.reshape(len(photos), -1, scores.shape[1])
    rest = {key: value for key, value in source.items() if key != "result"}
    return Result(row, seed, dataset, tuple(photos), tuple(photos.values()), ious, rest)
