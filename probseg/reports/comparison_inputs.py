"""Folders of results: which to compare, what they hold, and the objects that they share."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from probseg.errors import DataError
from probseg.evaluation.journal import RESULTS
from probseg.evaluation.protocols import BEGINNINGS, all_options, beginning
from probseg.evaluation.records import ObjectRecord, each_object
from probseg.evaluation.summary import Scores, percents_up_to, scores_of
from probseg.paths import is_path, no_folder, run_of
from probseg.texts import read_json

# fields in which protocols of comparable runs may differ: words and the number of runs
MAY_DIFFER = ("description", "trials")


class _Protocol(BaseModel, strict=True):
    """Options of a protocol that a comparison computes with or prints."""

    name: str
    version: Any
    max_clicks: int
    box: Any
    scribbles: Any
    initial_mask: Any
    target_iou: float | None = None


class _DataSet(BaseModel, strict=True):
    n_objects: int


class _Metadata(BaseModel, strict=True):
    checkpoint: str | None = None
    weights_sha256: str | None = None
    seed: int | None = None


class _Results(BaseModel, strict=True):
    """What a comparison needs of a `results.json`."""

    protocol: _Protocol
    datasets: dict[str, _DataSet]
    metadata: _Metadata


@dataclass(frozen=True)
class Result:
    """A folder of results: objects sorted by name, their scores after `0 ... max_clicks` clicks."""

    name: str
    folder: Path
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    objects: Mapping[str, Sequence[str]]  # names by data set
    scores: Mapping[str, Scores]

    @property
    def keys(self) -> set[tuple[str, str]]:
        """Data set and name of each object."""
        return {(dataset, name) for dataset, names in self.objects.items() for name in names}


@dataclass(frozen=True)
class Paired:
    """The same objects of one data set in several results, whose numbers of trials may differ."""

    dataset: str
    scores: tuple[Scores, ...]
    first: int  # smallest number of clicks after which all have a result
    percents: tuple[int, ...]  # IoUs that no run ended before

    @property
    def photos(self) -> tuple[str, ...]:
        """Photograph of each object."""
        return self.scores[0].photos

    @property
    def n_photos(self) -> int:
        """Number of photographs."""
        return len(set(self.photos))


def default_names(folders: Sequence[Path]) -> list[str]:
    """Return the last part of each path that differs between all, else the paths below all."""
    paths = [folder.resolve().parts for folder in folders]
    if len(set(paths)) < len(paths):
        raise DataError(f"folders: expected different ones, got {', '.join(map(str, folders))}")
    for depth in range(1, min(map(len, paths)) + 1):
        names = [parts[-depth] for parts in paths]
        if len(set(names)) == len(names):
            return names
    shared = 0
    while len({parts[: shared + 1] for parts in paths}) == 1:
        shared += 1
    return ["/".join(parts[shared:]) for parts in paths]


def pairings(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Return one folder of results of each run, by the protocols that all were tested under.

    The results of a run are those in its `test/`, and without any the newest tests of its
    checkpoints in other runs of the same folder. Where all folders are results, they are compared
    as they are, whatever their protocols.
    """
    for folder in folders:
        if not _is_run(folder):
            check_results(folder)
    if not any(_is_run(folder) for folder in folders):
        return {"": list(folders)}
    tests = [_results(folder) for folder in folders]
    shared = [name for name in tests[0] if all(name in others for others in tests)]
    if not shared:
        each = [f"  {folder}: {', '.join(of)}" for folder, of in zip(folders, tests, strict=True)]
        lines = "\n".join(each)
        raise DataError(
            f"the folders have no protocol in common:\n{lines}\ntest all under the same one"
        )
    return {name: [of[name] for of in tests] for name in shared}


def runs_in(folder: Path) -> list[Path]:
    """Return the runs in the folder of a setting; none in a run, and in a folder of results."""
    if _is_run(folder) or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _is_run(path))


def model_names(folders: Sequence[Path]) -> list[str]:
    """Return the names of tested models: of the zoo, or of the run of the tested checkpoint.

    Where models have the same name, a part of their folder's path follows; results that name no
    model have that part alone.
    """
    parts = default_names(folders)
    names = [_model(_metadata(folder)) for folder in folders]
    return [
        part if name is None else name if names.count(name) == 1 else f"{name} ({part})"
        for name, part in zip(names, parts, strict=True)
    ]


def check_results(folder: Path) -> None:
    """Check that a folder has the files that `probseg test` writes."""
    expected = "give a run, or a folder that `probseg test` wrote"
    if (fault := no_folder(folder)) is not None:
        raise DataError(f"{folder}: {fault}; {expected}")
    for needed in (folder / RESULTS, folder / "objects.csv"):
        if not needed.is_file():
            below = [str(found.parent) for found in folder.glob(f"**/{RESULTS}")]
            tests = sorted(below, key=lambda path: ("/test/" not in path, path))[:3]
            hint = f", here {' or '.join(tests)}" if tests else ""
            raise DataError(f"{needed}: no such file; {expected}{hint}")


def read_result(folder: Path, name: str) -> Result:
    """Read a folder that `probseg test` wrote; its two files must belong together."""
    check_results(folder)
    path = folder / RESULTS
    try:
        content = read_json(path)
        json.dumps(content, ensure_ascii=False, allow_nan=False).encode()  # as it is written again
        counts = _Results.model_validate(content).datasets
    except ValidationError as error:
        first = error.errors()[0]
        fault = f"no {first['loc'][-1]}"
        if first["type"] != "missing":
            fault = f"{first['loc'][-1]} {first['input']!r:.60}, of another kind than a test writes"
        raise DataError(f"{path}: has {fault}; test the model again") from error
    except DataError:  # which names the file
        raise
    except ValueError as error:
        raise DataError(f"{path}: is not JSON: {error}") from error
    protocol, metadata = content["protocol"], content["metadata"]
    objects, scores = _read_scores(folder / "objects.csv", protocol)
    for dataset in sorted(objects.keys() | counts.keys()):
        expected = counts[dataset].n_objects if dataset in counts else 0
        got = len(objects.get(dataset, ()))
        if expected != got:
            raise DataError(
                f"{folder}: results.json has {expected} objects of {dataset}, objects.csv has "
                f"{got}; the files belong to different runs, test the model again"
            )
    return Result(name, folder, all_options(protocol), metadata, objects, scores)


def protocol_differences(results: Sequence[Result]) -> list[str]:
    """Say in which options the protocols of results differ; `MAY_DIFFER` aside."""
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
    """Return the objects that all results share by data set, and sentences on what was left out.

    Where protocols differ, their steps are cut to the smallest number of clicks, the result before
    the first click counts only if all have it, and the lowest IoU at which runs end holds for all.
    """
    every = set().union(*(result.keys for result in results))
    lacking = []
    for result in results:
        missing = sorted(every - result.keys)
        for dataset, group in itertools.groupby(missing, key=lambda key: key[0]):
            names = [name for _, name in group]
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            lacking.append(f"{result.name} lacks {', '.join(names[:5])}{more} of {dataset}")
    if lacking and not common_only:
        lines = "\n".join(f"  {line}" for line in lacking)
        raise DataError(
            f"the results are not of the same objects:\n{lines}\n"
            "test all on the same data, or compare what they share with --common-objects"
        )
    shared = set.intersection(*(result.keys for result in results))
    last = min(result.protocol["max_clicks"] for result in results)
    first = max(_first_result(result.protocol) for result in results)
    if not shared or last < first:
        what = "number of clicks" if shared else "object"
        raise DataError(f"{', '.join(result.name for result in results)}: have no {what} in common")
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
                raise DataError(
                    f"{dataset}/{name}: expected the same photograph in all results, got "
                    f"{', '.join(each)}"
                )
        paired.append(Paired(dataset, scores, first, percents_up_to(target)))
    return paired, notes


def _is_run(folder: Path) -> bool:
    has_tests = any(folder.glob(f"test/*/{RESULTS}")) or (folder / "config.yaml").is_file()
    return has_tests and not (folder / RESULTS).is_file()


def _results(folder: Path) -> dict[str, Path]:
    """Return the results in or of a folder, by protocol."""
    if not _is_run(folder):
        return {folder.resolve().name: folder}
    if inside := sorted(path.parent for path in folder.glob(f"test/*/{RESULTS}")):
        return {path.name: path for path in inside}
    run = folder.resolve()
    # `probseg test RUN` writes beside the runs that are named as configs/experiment/folder.yaml.
    places = run.parent.parent.glob(f"*/*/test/*/{RESULTS}")
    of_run = {}
    for path in sorted(places, key=lambda path: path.stat().st_mtime):  # the newest stay
        tested = _tested(_metadata(path.parent))
        if tested is not None and tested.parts[-2:] == run.parts[-len(tested.parts[-2:]) :]:
            of_run[path.parent.name] = path.parent
    if not of_run:
        config = shlex.quote(str(folder / "config.yaml"))
        raise DataError(f"{folder}: has no results; run `probseg test --config {config}`")
    return of_run


def _metadata(folder: Path) -> Mapping[str, Any]:
    """Return the metadata of results; nothing where `read_result` will refuse them."""
    try:
        metadata = read_json(folder / RESULTS)["metadata"]
    except (ValueError, KeyError, TypeError):
        return {}
    known = isinstance(metadata, Mapping) and isinstance(metadata.get("checkpoint"), str | None)
    return metadata if known else {}


def _tested(metadata: Mapping[str, Any]) -> Path | None:
    """Return the run that a test has named: by a checkpoint, or in place of a model."""
    model = metadata.get("model")
    arguments = model.get("init_args") if isinstance(model, Mapping) else None
    name = arguments.get("name") if isinstance(arguments, Mapping) else None
    known = name if isinstance(name, str) and is_path(name) else ""
    path = Path(metadata.get("checkpoint") or known)
    return run_of(path) if path.suffix == ".ckpt" else path if path.name else None


def _model(metadata: Mapping[str, Any]) -> str | None:
    if metadata.get("checkpoint"):
        return "/".join(run_of(Path(metadata["checkpoint"])).parts[-2:]) or None
    model = metadata.get("model")
    if not isinstance(model, Mapping) or "class_path" not in model:
        return None
    parts = (model.get("init_args"), model.get("dict_kwargs"))
    arguments = {k: v for part in parts if isinstance(part, Mapping) for k, v in part.items()}
    kind = str(model["class_path"]).rpartition(".")[2]
    name = arguments.get("name") or arguments.get("of") or kind
    return str(name).rstrip("/").rpartition("/")[2]


def _read_scores(
    path: Path, protocol: Mapping[str, Any]
) -> tuple[dict[str, list[str]], dict[str, Scores]]:
    """Return names and scores of the objects of an `objects.csv` by data set."""
    max_clicks = protocol["max_clicks"]
    names: dict[str, set[str]] = {}

    def checked() -> Iterator[ObjectRecord]:
        for record in each_object(path):
            lines = len(record.steps)
            if lines != max_clicks + 1 or [step.k for step in record.steps] != [*range(lines)]:
                raise DataError(
                    f"{path}: expected lines for 0 to {max_clicks} clicks of each run, got "
                    f"{lines} of {record.dataset}/{record.name}, trial {record.trial}"
                )
            names.setdefault(record.dataset, set()).add(record.name)
            yield record

    try:
        scores = scores_of(checked(), _first_result(protocol))
    except DataError:  # which names the file
        raise
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    return {dataset: sorted(of_dataset) for dataset, of_dataset in names.items()}, scores


def _first_result(protocol: Mapping[str, Any]) -> int:
    """Return the number of clicks of the first result, as `Protocol.first_result` does."""
    return 0 if BEGINNINGS[beginning(protocol)].has_result else 1


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
