"""The IoUs of all rows after every click: from folders of results, and as one small file.

Of a plan, `<plan>_objects.csv.gz` has a line for each run, with IoUs of four digits, and
`<plan>_sources.json` says what each was made with. Reports are made from these two alone, so that
they are the same with and without the folders.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.plan import Plan, Row, switched
from probseg.errors import DataError
from probseg.evaluation.protocols import all_options
from probseg.paths import replacing, write_text
from probseg.reports.comparison_inputs import read_result

Floats = npt.NDArray[np.float64]

OBJECTS, SOURCES = "{}_objects.csv.gz", "{}_sources.json"
DIGITS = 4
RUN = ["row", "seed", "dataset", "object", "photo", "trial"]


def write_csv(path: Path, lines: Iterable[Iterable[object]]) -> None:
    """Write a CSV file, compressed if it is named so; the same lines give the same bytes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    content = text.getvalue().encode()
    with replacing(path) as draft:
        draft.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_csv(path: Path) -> list[list[str]]:
    """Return the lines of a CSV file; one that is not there has none."""
    if not path.is_file():
        return []
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return [*csv.reader(file)]


def read_columns(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file by the names of its columns."""
    header, *lines = read_csv(path) or [[]]
    return [dict(zip(header, line, strict=True)) for line in lines]


@dataclass(frozen=True, eq=False)
class Result:
    """One network of one row on one data set.

    `objects` are sorted names, with the photograph of each; `ious` are those after 0 ... K clicks,
    shape `(objects, trials, K + 1)`; `source` says what it was made with, in JSON values.
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
        return self.row, self.seed, self.dataset


def place_of(folder: Path, row: Row, number: int, dataset: str) -> Path:
    """Return the folder of a result."""
    return folder / row.name / f"seed{number}" / dataset


def gather(plan: Plan, folder: Path, stored: Path) -> tuple[list[Result], list[str]]:
    """Return the newest results of a plan in its order, and a sentence for each that is missing.

    Results in `folder` come before those in the two files in `stored`.
    """
    kept = {result.key: result for result in read(stored, plan.name)}
    results, missing = [], []
    for row in plan.rows.values():
        for (seed, model), dataset in product(enumerate(row.models), plan.datasets):
            wanted = {**row.settings(model), "protocol": asdict(plan.protocol)}
            new = _of_folder(place_of(folder, row, seed, dataset), row.name, seed, dataset)
            there = [of for of in (new, kept.get((row.name, seed, dataset))) if of is not None]
            fitting = [of for of in there if wanted.items() <= dict(of.source).items()]
            if fitting:
                results.append(fitting[0])
            else:
                why = "has other settings" if there else "was not evaluated"
                missing.append(f"{row.name}: {model} {why} on {dataset}.")
    return results, missing


def differences(plan: Plan, rows: Sequence[Row], folder: Path, stored: Path) -> list[str]:
    """Return a line for each result in `folder`: its mean IoUs after those that are stored."""
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
            old, new = (100 * result.ious.mean((0, 1)) for result in (before, there))
            figures = ", ".join(f"@{k} {old[k]:.2f} -> {new[k]:.2f}" for k in (0, 1, 5, 10))
            most = 100 * np.abs(before.ious - there.ious).max()
            lines.append(f"{place}: mIoU{figures}; largest difference {most:.2f}")
    return lines


def read(folder: Path, plan: str) -> list[Result]:
    """Read the two files of a plan, which must fit together; without them there are no results."""
    path = folder / OBJECTS.format(plan)
    runs: dict[tuple[str, int, str], list[list[str]]] = {}
    for line in read_csv(path)[1:]:
        runs.setdefault((line[0], int(line[1]), line[2]), []).append(line)
    if not runs:
        return []
    sources = json.loads((folder / SOURCES.format(plan)).read_text(encoding="utf-8"))
    if [list(key) for key in runs] != [source.pop("result") for source in sources]:
        other = SOURCES.format(plan)
        raise DataError(
            f"{path}: its results are not those of {other}; restore both, or remove both"
        )
    results = []
    for (key, lines), source in zip(runs.items(), sources, strict=True):
        source["protocol"] = all_options(source["protocol"])
        photos = {line[3]: line[4] for line in lines}  # sorted by object and trial
        scores = np.array([line[len(RUN) :] for line in lines], dtype=np.float64)
        ious = scores.reshape(len(photos), -1, scores.shape[1])
        results.append(Result(*key, tuple(photos), tuple(photos.values()), ious, source))
    return results


def write(folder: Path, plan: str, results: Sequence[Result]) -> None:
    """Write the two files of a plan."""
    clicks = range(max(result.ious.shape[2] for result in results))
    lines: list[list[object]] = [[*RUN, *(f"iou@{k}" for k in clicks)]]
    for result in results:
        for name, photo, trials in zip(result.objects, result.photos, result.ious, strict=True):
            for trial, ious in enumerate(trials):
                scores = [f"{iou:.{DIGITS}f}" for iou in ious]
                lines.append([*result.key, name, photo, trial, *scores])
    write_csv(folder / OBJECTS.format(plan), lines)
    sources = [{"result": list(result.key), **result.source} for result in results]
    write_text(folder / SOURCES.format(plan), json.dumps(sources, indent=1) + "\n")


def _of_folder(place: Path, row: str, seed: int, dataset: str) -> Result | None:
    """Read a folder of results; there is none where the evaluation did not come to its end."""
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
