"""Tests of published models: read from their recorded results, and run again."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from probseg.attention import Adaptation, restored
from probseg.clicks import Mistakes
from probseg.data import CLASS_PATHS, Selected
from probseg.descriptions import build_described, class_name, is_description
from probseg.errors import DataError, UnknownNameError
from probseg.evaluation.protocols import PROTOCOLS, Protocol
from probseg.evaluation.simulation import run_objects
from probseg.evaluation.summary import summarise_records
from probseg.interact.session import prepare_model
from probseg.kinds import Registry
from probseg.metrics import REPORTED_CLICKS
from probseg.models import Network, Segmenter
from probseg.models.build import Description
from probseg.paths import data_dir
from probseg.release.evaluations import Evaluation, Figures, Tolerance
from probseg.zoo.index import Metric

# figures by name, and numbers of what was tested: `objects` and `trials`, or `photographs`
Measured = tuple[dict[str, float], dict[str, int]]

REPRODUCED = Tolerance(share=0.005, clicks=0.15)
"""Largest difference of a repeated test from the recorded one: 0.5 points, 0.15 clicks.

The same weights, images and random numbers give the same figures but for rounding, which depends on
processor, number of threads and versions, and of which clicks can make more. The standard errors
over objects say how other images would change a figure, and are far larger.
"""

# data sets that may be built from a description, by the names of their classes
SETS: Mapping[str, type[Any]] = Registry("semantic_dataset", CLASS_PATHS)

# data modules that may be built from a description, by the names of their classes
MODULES: Mapping[str, type[Any]] = Registry(
    "data_module",
    {
        "FolderDataModule": "probseg.data.datamodule.FolderDataModule",
        "InteractiveDataModule": "probseg.data.datamodule.InteractiveDataModule",
    },
)

# fields of a protocol in which a test may differ from the standard one under the same key
FREE = ("name", "version", "description", "trials")

SEMANTIC_FIGURES = ("miou", "pixel_accuracy", "mean_accuracy")

# arguments of a `FolderDataModule` that select and group its test objects
_OF_FOLDERS = ("root", "val_fraction", "split_seed", "group", "eval_batch_size")


def read_results(path: Path) -> list[Evaluation]:
    """Read a `results.json` of `probseg test`: one evaluation per data set, of either task."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        metadata = results["metadata"]
        if "protocol" in results:
            return [
                _interactive(results["protocol"], name, summary, metadata)
                for name, summary in results["datasets"].items()
            ]
        return [_semantic(results, metadata)]
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); give a results.json of `probseg test`"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: is not what `probseg test` writes ({error!r}); test the model again"
        ) from error


def recorded_digest(path: Path) -> object:
    """Return `weights_sha256` of a readable `results.json`."""
    return json.loads(path.read_text(encoding="utf-8"))["metadata"].get("weights_sha256")


def protocol_of(options: Mapping[str, Any]) -> Protocol:
    """Return a protocol from its options as `results.json` has them."""
    mistakes = options.get("mistakes")
    try:
        return Protocol(
            **{**options, "mistakes": None if mistakes is None else Mistakes(**mistakes)}
        )
    except (TypeError, ValueError) as error:
        raise DataError(
            f"protocol {options.get('name')!r} cannot be repeated by this version: {error}"
        ) from error


def figures_of(summary: Mapping[str, Any], first: int) -> Figures:
    """Return the published figures of a summary of clicks as `results.json` has it.

    `first` is the number of clicks of the first result.
    """
    errors = summary["se_objects"]
    figures = {
        f"miou@{k}": Metric(summary["miou"][k], None if errors is None else errors[k])
        for k in REPORTED_CLICKS
        if first <= k < len(summary["miou"])
    }
    of_clicks = summary.get("noc_se") or {}
    return figures | {
        f"noc@{percent}": Metric(clicks, of_clicks.get(percent))
        for percent, clicks in summary["noc"].items()
    }


def _interactive(
    options: dict[str, Any], name: str, summary: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Evaluation:
    protocol = protocol_of(options)
    adaptation = metadata.get("adaptation")
    standard = PROTOCOLS.get(protocol.name, protocol)
    changes = [
        f"{field.name}={getattr(protocol, field.name)}"
        for field in fields(Protocol)
        if field.name not in FREE and getattr(protocol, field.name) != getattr(standard, field.name)
    ]
    changes += [
        f"{field.name}={value:g}"
        for field in fields(Adaptation)
        if (value := (adaptation or {}).get(field.name)) is not None
    ]
    return Evaluation(
        key="+".join([f"{name}/{protocol.name}", *changes]),
        dataset=name,
        protocol=options,
        options={"seed": metadata["seed"], "adaptation": adaptation},
        data=_data(metadata.get("data") or {}, name),
        count={"objects": summary["n_objects"], "trials": summary["n_trials"]},
        figures=figures_of(summary, protocol.first_result),
        made_with=_made_with(metadata),
    )


def _semantic(results: Mapping[str, Any], metadata: Mapping[str, Any]) -> Evaluation:
    name = results["dataset"]
    options = {key: metadata[key] for key in ("scales", "flip", "iterations", "output_stride")}
    changes = ["flip"] if options["flip"] else []
    if options["scales"] != [1.0]:
        changes.append(f"scales={','.join(f'{scale:g}' for scale in options['scales'])}")
    return Evaluation(
        key="+".join([name, *changes]),
        dataset=name,
        protocol=None,
        options=options,
        data=_data(metadata.get("data") or {}, name),
        count={"photographs": metadata["photographs"]},
        figures={figure: Metric(results[figure], None) for figure in SEMANTIC_FIGURES},
        made_with=_made_with(metadata),
    )


def _made_with(metadata: Mapping[str, Any]) -> dict[str, Any]:
    code = metadata["environment"]
    versions = {name: code["versions"][name] for name in ("probseg", "torch")}
    return {
        "commit": code["commit"],
        **versions,
        "device": code["device"],
        "precision": metadata["precision"],
    }


def _data(described: Mapping[str, Any], name: str) -> Description | None:
    """Return the data module of a test with one test set alone, or None."""
    module = str(described.get("_class_path")).split(".")[-1]
    if module == "FolderDataModule":
        options = {key: described[key] for key in _OF_FOLDERS if key in described}
        options["root"] = _below_data(str(options["root"]))
    elif module in MODULES:
        tests = described.get("test")
        sets = map(_portable, tests if isinstance(tests, list) else [tests])
        fitting = [data for data in sets if data is not None and _name(data) == name]
        if len(fitting) != 1:
            return None
        options = {key: described[key] for key in ("eval_batch_size",) if key in described}
        options["test"] = fitting[0]
    else:
        return None
    return {"class_path": f"probseg.data.{module}", "init_args": options}


def _portable(described: Any) -> Description | None:  # noqa: ANN401 (any plain value)
    """Return the description of a data set without absolute paths; None for another class."""
    if not isinstance(described, Mapping):
        return None
    kind = class_name(described)
    if kind not in SETS:
        return None
    arguments = dict(described.get("init_args") or {})
    for key, value in arguments.items():
        if is_description(value):
            inner = _portable(value)
            if inner is None:
                return None
            arguments[key] = inner
        elif isinstance(value, str):
            arguments[key] = _below_data(value)
    if "root" in arguments and inspect.signature(SETS[kind]).parameters["root"].default is None:
        arguments["root"] = None  # it knows its usual places
    return {"class_path": f"probseg.data.{kind}", "init_args": arguments}


def _below_data(text: str) -> str:
    """Return a path relative to the folder of all data, where it will be looked for."""
    path = Path(text)
    if not path.is_absolute():
        return text
    place = data_dir().resolve()
    return str(path.relative_to(place)) if path.is_relative_to(place) else path.name


def _name(described: Mapping[str, Any]) -> str:
    """Return the name of a data set in results."""
    kind = SETS[class_name(described)]
    arguments: Mapping[str, Any] = described["init_args"]
    return _name(arguments["dataset"]) if kind is Selected else str(kind.display_name(arguments))


def reevaluate(model: Network, evaluation: Evaluation, device: str = "cpu") -> dict[str, float]:
    """Measure the figures of an evaluation again, with a network in evaluation mode on a device."""
    if evaluation.data is None or class_name(evaluation.data) not in MODULES:
        raise DataError(
            f"{evaluation.key}: its results do not describe data that can be found again; test "
            "with a data set of probseg, described in a configuration"
        )
    try:  # what came with a model names no code
        arguments = {
            name: build_described(value, SETS, "data set") if is_description(value) else value
            for name, value in (evaluation.data.get("init_args") or {}).items()
        }
    except UnknownNameError as error:
        raise DataError(f"{evaluation.key}: {error}") from error
    loaders = MODULES[class_name(evaluation.data)](**arguments).test_dataloader()
    settings = {**evaluation.options, "protocol": evaluation.protocol}
    figures, count = MEASURES[model.task](model, loaders, settings, device)
    if count != evaluation.count:
        raise DataError(
            f"{evaluation.key}: the test set changed: it has {count} instead of "
            f"{evaluation.count}; compare `probseg data check {evaluation.dataset}`"
        )
    return figures


def _by_clicks(
    model: Segmenter, loaders: list[DataLoader[Any]], settings: Mapping[str, Any], device: str
) -> Measured:
    protocol = protocol_of(settings["protocol"])
    with restored(model):
        if settings["adaptation"]:
            model.adapt(Adaptation(**settings["adaptation"]))
        tested = prepare_model(model, device)  # as tests have it
        records = [
            record
            for loader in loaders
            for samples in loader
            for record in run_objects(
                tested, samples, protocol, seed=settings["seed"], device=device
            )
        ]
    (summary,) = summarise_records(records, protocol).values()
    figures = figures_of(summary.as_json(), protocol.first_result)
    values = {name: figure.value for name, figure in figures.items()}
    return values, {"objects": summary.n_objects, "trials": summary.n_trials}


# functions of the network, loaders of its test sets, settings and device, by task
MEASURES: Mapping[str, Callable[..., Measured]] = Registry(
    "reevaluation", {"interactive": _by_clicks}
)
