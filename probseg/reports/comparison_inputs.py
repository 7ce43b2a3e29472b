"""Reading of result folders for a comparison, and pairing of their objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probseg.errors import DataError
from probseg.evaluation.arrays import Scores, arrange
from probseg.evaluation.journal import RESULTS
from probseg.evaluation.protocols import (
    BEGINNINGS,
    OPTIONS_OF_BEGINNINGS,
    all_options,
    beginning,
)
from probseg.evaluation.records import read_objects, unique
from probseg.evaluation.summary import percents_up_to
from probseg.paths import no_folder
from probseg.texts import read_json

MAY_DIFFER = ("description", "trials")
"""Fields in which protocols of comparable runs may differ: words and the number of runs."""

NEEDED = ("name", "version", "max_clicks", *OPTIONS_OF_BEGINNINGS)
"""Options that the protocol of a result must have."""

PROTOCOL = {"name": str, "max_clicks": int, "target_iou": float | int | None}
METADATA = {"checkpoint": str | None, "weights_sha256": str | None}
"""Kinds of what a comparison computes with or prints."""

NAMED = 5
"""Objects that an error names; the others are counted."""


@dataclass(frozen=True)
class Result:
    """A folder of results.

    Args:
        name: What to call it.
        folder: Where it is.
        protocol: All options of its protocol.
        metadata: The metadata of `results.json`.
        objects: Names of its objects by data set, sorted.
        scores: Scores of these objects by data set, after `0 ... max_clicks` clicks.
    """

    name: str
    folder: Path
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    objects: Mapping[str, Sequence[str]]
    scores: Mapping[str, Scores]


@dataclass(frozen=True)
class Paired:
    """The same objects of one data set in several results.

    Args:
        dataset: Name of the data set.
        scores: Of each result, in the order given, the objects sorted by name; results may differ
            in their number of trials.
        first: Smallest number of clicks after which all have a result: 0 with a box, scribbles or
            an initial mask, else 1.
        percents: IoUs to reach, in percent, that no run ended before.
    """

    dataset: str
    scores: tuple[Scores, ...]
    first: int
    percents: tuple[int, ...]

    @property
    def photos(self) -> tuple[str, ...]:
        """Photograph of each object."""
        return self.scores[0].photos

    @property
    def n_photos(self) -> int:
        """Number of photographs."""
        return len(set(self.photos))


def default_names(folders: Sequence[Path]) -> list[str]:
    """Return short names of folders: the last part of their paths that differs between all of them.

    Where no single part does, it is the paths below the last folder that they share.

    Raises:
        DataError: If a folder is given twice.
    """
    paths = [folder.resolve().parts for folder in folders]
    if len(set(paths)) < len(paths):
        msg = f"folders: expected different ones, got {', '.join(map(str, folders))}"
        raise DataError(msg)
    for depth in range(1, min(map(len, paths)) + 1):
        names = [parts[-depth] for parts in paths]
        if len(set(names)) == len(names):
            return names
    shared = 0
    while len({parts[: shared + 1] for parts in paths}) == 1:
        shared += 1
    return ["/".join(parts[shared:]) for parts in paths]


def check_results(folder: Path) -> None:
    """Check that a folder has the files that `probseg test` writes.

    Raises:
        DataError: If there is no such folder, or a file is missing.
    """
    expected = "give a run, or a folder that `probseg test` wrote"
    if (fault := no_folder(folder)) is not None:
        msg = f"{folder}: {fault}; {expected}"
        raise DataError(msg)
    for needed in (folder / RESULTS, folder / "objects.csv"):
        if not needed.is_file():
            below = [str(found.parent) for found in folder.glob(f"**/{RESULTS}")]
            tests = sorted(below, key=lambda path: ("/test/" not in path, path))[:3]
            hint = f", here {' or '.join(tests)}" if tests else ""
            msg = f"{needed}: no such file; {expected}{hint}"
            raise DataError(msg)


def read_result(folder: Path, name: str) -> Result:
    """Read a folder that `probseg test` wrote.

    Args:
        folder: Holds `results.json` and `objects.csv`.
        name: What to call the result.

    Raises:
        DataError: If a file is missing or not what `probseg test` writes, or the two files do not
            belong together.
    """
    check_results(folder)
    path = folder / RESULTS
    try:
        content = read_json(path)
    except DataError:  # which names the file
        raise
    except ValueError as error:
        msg = f"{path}: is not JSON: {error}"
        raise DataError(msg) from error
    parts = [_part(path, content, key) for key in ("protocol", "datasets", "metadata")]
    protocol, datasets, metadata = parts
    missing = [key for key in NEEDED if key not in protocol]
    if missing:
        msg = f"{path}: expected {', '.join(missing)} in its protocol; test the model again"
        raise DataError(msg)
    wrong = [
        f"{key} {part.get(key)!r:.60}"
        for part, kinds in ((protocol, PROTOCOL), (metadata, METADATA))
        for key, kind in kinds.items()
        if not isinstance(part.get(key), kind)
    ]
    if wrong:
        msg = f"{path}: has {', '.join(wrong)}, of another kind than `probseg test` writes"
        raise DataError(msg)
    objects, scores = _read_scores(folder / "objects.csv", protocol)
    for dataset in sorted(objects.keys() | datasets.keys()):
        expected = _part(path, datasets, dataset).get("n_objects") if dataset in datasets else 0
        got = len(objects.get(dataset, ()))
        if expected != got:
            msg = (
                f"{folder}: results.json has {expected} objects of {dataset}, objects.csv has "
                f"{got}; the files belong to different runs, test the model again"
            )
            raise DataError(msg)
    return Result(name, folder, all_options(protocol), metadata, objects, scores)


def protocol_differences(results: Sequence[Result]) -> list[str]:
    """Return in words in which options the protocols of results differ; `MAY_DIFFER` aside."""
    keys = sorted({key for result in results for key in result.protocol} - set(MAY_DIFFER))
    differences = []
    for key in keys:
        values = [json.dumps(result.protocol.get(key, "not recorded")) for result in results]
        if len(set(values)) > 1:
            both = [
                f"{value} in {result.name}" for value, result in zip(values, results, strict=True)
            ]
            differences.append(f"{key}: {', '.join(both)}")
    return differences


def pair(results: Sequence[Result], *, common_only: bool = False) -> tuple[list[Paired], list[str]]:
    """Find the same objects in all results.

    Args:
        results: At least two.
        common_only: Whether to leave out the objects that some result lacks.

    Returns:
        One entry per data set, sorted by name, and what was left out, in words. Where protocols
        differ, their steps are cut to the smallest number of clicks, the result before the first
        click counts only if all have it, and the lowest IoU at which runs end holds for all.

    Raises:
        DataError: If objects are missing and are not to be left out, no object is left, or one was
            cut out of different photographs.
    """
    lacking = _lacking(results)
    if lacking and not common_only:
        lines = "\n".join(f"  {line}" for line in lacking)
        msg = (
            f"the results are not of the same objects:\n{lines}\n"
            "test all on the same data, or compare what they share with --common-objects"
        )
        raise DataError(msg)
    shared = set.intersection(*(_keys(result) for result in results))
    if not shared:
        msg = f"{', '.join(result.name for result in results)}: have no object in common"
        raise DataError(msg)
    last = min(result.protocol["max_clicks"] for result in results)
    first = max(_first_result(result.protocol) for result in results)
    if last < first:
        msg = f"{', '.join(result.name for result in results)}: have no number of clicks in common"
        raise DataError(msg)
    targets = [result.protocol.get("target_iou") for result in results]
    target = min((target for target in targets if target is not None), default=None)
    notes = [f"Left out: {line}." for line in lacking]
    if target is not None:
        notes.append(
            f"Runs ended at an IoU of {100 * target:g} %, and their last scores count from there "
            "on, in mIoU and AUC too; NoC and failures of higher IoUs are left out."
        )
    paired = []
    for dataset in sorted({dataset for dataset, _ in shared}):
        names = sorted(name for of, name in shared if of == dataset)
        scores = tuple(_chosen(result, dataset, names, last) for result in results)
        for name, *photos in zip(names, *(of_result.photos for of_result in scores), strict=True):
            if len(set(photos)) > 1:
                each = [f"{p} in {result.name}" for p, result in zip(photos, results, strict=True)]
                msg = (
                    f"{dataset}/{name}: expected the same photograph in all results, got "
                    f"{', '.join(each)}"
                )
                raise DataError(msg)
        paired.append(Paired(dataset, scores, first, percents_up_to(target)))
    return paired, notes


def _part(path: Path, content: object, key: str) -> Mapping[str, Any]:
    """Return an object inside a JSON object."""
    part = content.get(key) if isinstance(content, dict) else None
    if not isinstance(part, dict):
        msg = f"{path}: expected an object {key!r}, as `probseg test` writes it; got {part!r}"
        raise DataError(msg)
    return part


def _read_scores(
    path: Path, protocol: Mapping[str, Any]
) -> tuple[dict[str, list[str]], dict[str, Scores]]:
    """Return names and scores of the objects of an `objects.csv` by data set."""
    max_clicks = protocol["max_clicks"]
    records = unique(read_objects(path))
    for record in records:
        clicks = [step.k for step in record.steps]
        if len(clicks) != max_clicks + 1 or clicks != list(range(len(clicks))):
            msg = (
                f"{path}: expected lines for 0 to {max_clicks} clicks of each run, got "
                f"{len(record.steps)} of {record.dataset}/{record.name}, trial {record.trial}"
            )
            raise DataError(msg)
    try:
        scores = arrange(records, _first_result(protocol))
    except ValueError as error:
        msg = f"{path}: {error}"
        raise DataError(msg) from error
    names: dict[str, set[str]] = {}
    for record in records:
        names.setdefault(record.dataset, set()).add(record.name)
    return {dataset: sorted(of_dataset) for dataset, of_dataset in names.items()}, scores


def _first_result(protocol: Mapping[str, Any]) -> int:
    """Return the number of clicks of the first result, as `Protocol.first_answer` does."""
    return 0 if BEGINNINGS[beginning(protocol)].has_result else 1


def _keys(result: Result) -> set[tuple[str, str]]:
    return {(dataset, name) for dataset, names in result.objects.items() for name in names}


def _lacking(results: Sequence[Result]) -> list[str]:
    """Return in words what is missing in each result but present in others."""
    every = set.union(*(_keys(result) for result in results))
    lines = []
    for result in results:
        missing = every - _keys(result)
        for dataset in sorted({dataset for dataset, _ in missing}):
            names = sorted(name for of, name in missing if of == dataset)
            lines.append(f"{result.name} lacks {_listed(names)} of {dataset}")
    return lines


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _chosen(result: Result, dataset: str, names: Sequence[str], last: int) -> Scores:
    """Return the scores of some objects up to a number of clicks."""
    scores = result.scores[dataset]
    rows = {name: row for row, name in enumerate(result.objects[dataset])}
    index = [rows[name] for name in names]

    def cut(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return values[index, :, : last + 1]

    return Scores(
        values={score: cut(values) for score, values in scores.values.items()},
        seconds=cut(scores.seconds),
        photos=tuple(scores.photos[row] for row in index),
        first=scores.first,
    )
