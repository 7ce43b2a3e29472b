"""Test results in the format of the zoo: the figures, and all settings of the test."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from probseg.attention import Adaptation
from probseg.clicks import Mistakes
from probseg.data import CLASS_PATHS, Selected
from probseg.descriptions import class_name, is_description
from probseg.errors import DataError
from probseg.evaluation.protocols import PROTOCOLS, Protocol
from probseg.kinds import Offers
from probseg.metrics import REPORTED_CLICKS
from probseg.models.build import Description
from probseg.paths import data_dir
from probseg.release.evaluations import Evaluation, Figures
from probseg.zoo.index import Metric

SETS: Mapping[str, type[Any]] = Offers("semantic_dataset", CLASS_PATHS)
"""Data sets that may be built from a description, by the names of their classes."""

MODULES: Mapping[str, type[Any]] = Offers(
    "data_module",
    {
        "FolderDataModule": "probseg.data.datamodule.FolderDataModule",
        "InteractiveDataModule": "probseg.data.datamodule.InteractiveDataModule",
    },
)
"""Data modules that may be built from a description, by the names of their classes."""

FREE = ("name", "version", "description", "trials")
"""Fields of a protocol in which a test may differ from the standard one under the same key."""

SEMANTIC_FIGURES = ("miou", "pixel_accuracy", "mean_accuracy")

_OF_FOLDERS = ("root", "val_fraction", "split_seed", "eval_batch_size")
"""Arguments of a `FolderDataModule` that select and group its test objects."""


def read_results(path: Path) -> list[Evaluation]:
    """Read a `results.json` that `probseg test` wrote, of either kind of segmentation.

    Args:
        path: The file.

    Returns:
        One evaluation per data set.

    Raises:
        DataError: If the file is missing or something else.
    """
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
        msg = f"{path}: cannot be read ({error.strerror}); give a results.json of `probseg test`"
        raise DataError(msg) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"{path}: is not what `probseg test` writes ({error!r}); test the model again"
        raise DataError(msg) from error


def recorded_digest(path: Path) -> object:
    """Return `weights_sha256` of a readable `results.json`."""
    return json.loads(path.read_text(encoding="utf-8"))["metadata"].get("weights_sha256")


def protocol_of(options: Mapping[str, Any]) -> Protocol:
    """Return a protocol from its options as `results.json` has them.

    Raises:
        DataError: If there are others, or one is out of range.
    """
    mistakes = options.get("mistakes")
    try:
        return Protocol(
            **{**options, "mistakes": None if mistakes is None else Mistakes(**mistakes)}
        )
    except (TypeError, ValueError) as error:
        msg = f"protocol {options.get('name')!r} cannot be repeated by this version: {error}"
        raise DataError(msg) from error


def figures_of(summary: Mapping[str, Any], first: int) -> Figures:
    """Return the published figures of a summary of clicks.

    Args:
        summary: `probseg.evaluation.summary.Summary.as_json`, also as `results.json` has it.
        first: Number of clicks of the first result.
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
    changes = [*_changes(protocol), *_set_values(adaptation or {})]
    return Evaluation(
        key="+".join([f"{name}/{protocol.name}", *changes]),
        dataset=name,
        protocol=options,
        options={"seed": metadata["seed"], "adaptation": adaptation},
        data=_data(metadata.get("data") or {}, name),
        count={"objects": summary["n_objects"], "trials": summary["n_trials"]},
        figures=figures_of(summary, protocol.first_answer),
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


def _changes(protocol: Protocol) -> list[str]:
    """Return the differences of a protocol from the standard one of its name."""
    standard = PROTOCOLS.get(protocol.name)
    if standard is None:
        return []
    every = [field.name for field in fields(Protocol) if field.name not in FREE]
    return [
        f"{name}={getattr(protocol, name)}"
        for name in every
        if getattr(protocol, name) != getattr(standard, name)
    ]


def _set_values(adaptation: Mapping[str, Any]) -> list[str]:
    known = [field.name for field in fields(Adaptation)]
    return [f"{name}={adaptation[name]:g}" for name in known if adaptation.get(name) is not None]


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
        sets = [_portable(one) for one in (tests if isinstance(tests, list) else [tests])]
        fitting = [one for one in sets if one is not None and _name(one) == name]
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
