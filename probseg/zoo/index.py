"""The list of a zoo's models, `index.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from probseg.errors import ModelNotFoundError, ZooError
from probseg.kinds import TaskName
from probseg.models.build import Description, read_preset
from probseg.paths import write_text

INDEX, WEIGHTS, CONFIG, CARD = "index.json", "model.safetensors", "config.json", "README.md"
CHECKSUMS = "SHA256SUMS"
SCHEMA = 2

MODEL_NAME = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
"""Patterns of names, which become part of paths and must not lead out of the zoo."""

SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """Expected size and checksum of a model file.

    Args:
        sha256: Its checksum in hexadecimal.
        bytes: Its size.
    """

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Metric:
    """A measured figure.

    Args:
        value: The figure; IoUs in [0, 1].
        error: Its standard error over objects; None where there is none.
    """

    value: float
    error: float | None


@dataclass(frozen=True)
class Entry:
    """One model of a zoo.

    Args:
        name: `architecture.tag`.
        task: Task of the model.
        description: One sentence.
        preset: The preset that it is a variant of.
        arguments: Changes to the preset, as in `probseg.create_model`; with them it is what the
            model's `config.json` says.
        parameters: Number of parameters.
        files: All files of its folder by name, except card and `CHECKSUMS`.
        input: What it takes: `working_size`, `prompts_enter` and `previous_mask`, or
            `num_classes`.
        license: Licence of the weights.
        data: Training data, one line per data set, with its licence.
        recipe: Command that trains the model.
        seed: Seed of the training.
        commit: Commit of probseg that it was trained with.
        hardware: Training hardware.
        hours: For how long.
        limits: Weaknesses of the model, one line each.
        metrics: Measured figures by name, `data/protocol/figure`.
    """

    name: str
    task: TaskName
    description: str
    preset: str
    arguments: Mapping[str, Any]
    parameters: int
    files: Mapping[str, File]
    input: Mapping[str, Any]
    license: str
    data: list[str]
    recipe: str
    seed: int
    commit: str
    hardware: str
    hours: float
    limits: list[str]
    metrics: Mapping[str, Metric]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files.values())


def description_of(entry: Entry) -> Description:
    """Return the description of a model's network, made of its preset and arguments.

    Raises:
        UnknownNameError: If there is no such preset.
        ZooError: If the arguments are more than settings of the network's parts.
    """
    from probseg.models.schema import checked  # with pydantic, which presets do not need

    return checked(read_preset(entry.preset, entry.task), entry.name, entry.arguments)


def read_index(root: Path) -> dict[str, Entry]:
    """Return the models of a zoo by name, those that are preferred first.

    Args:
        root: Folder with `index.json`.

    Raises:
        ModelNotFoundError: If there is no index.
        ZooError: If the index has another schema or is damaged; the message names file and key.
    """
    path = root / INDEX
    if not path.is_file():
        msg = f"{path}: no zoo index; reinstall probseg, or give the folder of a zoo"
        raise ModelNotFoundError(msg)
    return parse_index(path.read_bytes(), str(path))


def parse_index(content: bytes, source: str) -> dict[str, Entry]:
    """Return the models that an index lists, by name.

    Args:
        content: Of the file.
        source: Its path or address, for errors.

    Raises:
        ZooError: If the index has another schema or is damaged.
    """
    try:
        index = json.loads(content)
    except (ValueError, RecursionError) as error:
        msg = f"{source}: is not JSON ({error}); the file is damaged, or no index of a zoo"
        raise ZooError(msg) from error
    if not isinstance(index, dict) or "schema" not in index:
        _refuse(f"{source}: schema", "a number", "nothing")
    if index["schema"] != SCHEMA:
        msg = (
            f"{source}: schema {index['schema']} is not {SCHEMA}, the one that this version of "
            "probseg reads; update probseg, or take a zoo that fits its version"
        )
        raise ZooError(msg)
    entries: dict[str, Entry] = {}
    models: list[Entry] = _read(list[Entry], index.get("models"), f"{source}: models")
    for number, entry in enumerate(models):
        where = f"{source}: models[{number}]"
        _check_names(entry, where)
        if entry.name in entries:
            _refuse(f"{where}.name", "a name that no other has", entry.name)
        entries[entry.name] = entry
    return entries


def write_index(entries: Mapping[str, Entry], root: Path) -> None:
    """Write `index.json`; the order is the order of preference among the tags of a name."""
    index = {"schema": SCHEMA, "models": [asdict(entry) for entry in entries.values()]}
    write_text(root / INDEX, json.dumps(index, indent=2) + "\n")


def _read(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401 (any type, any JSON)
    """Convert a value of the index to a type, which may be a dataclass with types inside."""
    origin, inside = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        row = _read(Mapping[str, Any], value, where)
        for key in [*hints, *row]:
            if key not in row:
                _refuse(f"{where}.{key}", "a value", "nothing")
            if key not in hints:
                _refuse(f"{where}.{key}", f"one of the keys {', '.join(hints)}", key)
        return kind(**{key: _read(hints[key], row[key], f"{where}.{key}") for key in hints})
    if origin is Mapping:
        if not isinstance(value, dict):
            _refuse(where, "an object", value)
        return {key: _read(inside[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is list:
        if not isinstance(value, list):
            _refuse(where, "a list", value)
        return [_read(inside[0], item, f"{where}[{n}]") for n, item in enumerate(value)]
    if origin is UnionType:
        return None if value is None else _read(inside[0], value, where)
    expected, fits = _PLAIN[kind]
    if not fits(value):
        _refuse(where, expected, value)
    return value


_PLAIN: dict[object, tuple[str, Callable[[Any], bool]]] = {
    Any: ("anything", lambda value: True),
    TaskName: (" or ".join(get_args(TaskName)), lambda value: value in get_args(TaskName)),
    str: ("text", lambda value: isinstance(value, str)),
    int: ("a whole number of at least 0", lambda value: type(value) is int and value >= 0),
    float: ("a finite number", lambda value: type(value) in (int, float) and isfinite(value)),
}


def _check_names(entry: Entry, where: str) -> None:
    """Check the names and checksums, of which paths are made."""
    if not MODEL_NAME.fullmatch(entry.name):
        _refuse(f"{where}.name", "architecture.tag of letters, digits, _ and -", entry.name)
    for needed in (WEIGHTS, CONFIG):
        if needed not in entry.files:
            _refuse(f"{where}.files.{needed}", "a file", "nothing")
    for name, file in entry.files.items():
        if not FILE_NAME.fullmatch(name):
            _refuse(f"{where}.files", "names of files in the model's own folder", name)
        if not SHA256.fullmatch(file.sha256):
            _refuse(f"{where}.files.{name}.sha256", "64 hexadecimal digits", file.sha256)


def _refuse(where: str, expected: str, got: object) -> NoReturn:
    msg = (
        f"{where}: expected {expected}, got {got!r:.80}; the index is damaged: restore it, or "
        "update probseg"
    )
    raise ZooError(msg)
