"""The list of a zoo's models, ``index.json``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from probseg.errors import ZooError
from probseg.models.build import Description, Task, override, read_preset
from probseg.paths import replacing

INDEX, WEIGHTS, CONFIG, CARD = "index.json", "model.safetensors", "config.json", "README.md"
SCHEMA = 2

MODEL_NAME = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
"""What names may be: they become part of paths, and must not lead out of the zoo."""


@dataclass(frozen=True)
class File:
    """What a file of a model must be.

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
        name: ``architecture.tag``.
        task: What it is for.
        description: One sentence.
        preset: The preset that it is a variant of.
        arguments: Changes to the preset, as in `probseg.create_model`; with them it is what the
            model's ``config.json`` says.
        parameters: Number of parameters.
        files: All files of its folder by name, but for the card.
        input: What it takes: ``working_size``, ``prompts`` and ``previous_mask``, or
            ``num_classes``.
        license: Licence of the weights.
        data: What the weights were trained on, one line per data set, with its licence.
        recipe: Command that trains the model.
        seed: Seed of the training.
        commit: Commit of probseg that it was trained with.
        hardware: What it was trained on.
        hours: For how long.
        limits: What the model is not good at, one line each.
        metrics: Measured figures by name, ``data/protocol/figure``.
    """

    name: str
    task: Task
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
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files.values())


def description_of(entry: Entry) -> Description:
    """Return the description of a model's network, made of its preset and arguments.

    Raises:
        UnknownNameError: If there is no such preset.
    """
    return override(read_preset(entry.preset, entry.task), entry.arguments)


def read_index(root: Path) -> dict[str, Entry]:
    """Return the models of a zoo by name, those that are preferred first.

    Args:
        root: Folder with ``index.json``.

    Raises:
        FileNotFoundError: If there is no index.
        ZooError: If the index has another schema or is damaged; the message names file and key.
    """
    path = root / INDEX
    if not path.is_file():
        msg = f"{path}: no zoo index; reinstall probseg, or give the folder of a zoo"
        raise FileNotFoundError(msg)
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
    except ValueError as error:
        msg = f"{source}: is not JSON ({error}); the file is damaged, or no index of a zoo"
        raise ZooError(msg) from error
    if not isinstance(index, dict) or "schema" not in index:
        _refuse(source, "schema", "a number", "nothing")
    if index["schema"] != SCHEMA:
        msg = (
            f"{source}: schema {index['schema']} is not {SCHEMA}, the one that this version of "
            "probseg reads; update probseg, or take a zoo that fits its version"
        )
        raise ZooError(msg)
    rows = index.get("models")
    if not isinstance(rows, list):
        _refuse(source, "models", "a list", rows)
    entries: dict[str, Entry] = {}
    for number, row in enumerate(rows):
        entry = _entry(row, source, f"models[{number}]")
        if entry.name in entries:
            _refuse(source, f"models[{number}].name", "a name that no other has", entry.name)
        entries[entry.name] = entry
    return entries


def write_index(entries: Mapping[str, Entry], root: Path) -> None:
    """Write ``index.json``; the order is the order of preference among the tags of a name."""
    index = {"schema": SCHEMA, "models": [asdict(entry) for entry in entries.values()]}
    with replacing(root / INDEX) as draft:
        draft.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _entry(row: object, source: str, where: str) -> Entry:
    """Return a model of the index; the types are checked by hand, as they come from elsewhere."""
    if not isinstance(row, dict):
        _refuse(source, where, "an object", row)
    names = [field.name for field in fields(Entry)]
    for key in names:
        if key not in row:
            _refuse(source, f"{where}.{key}", "a value", "nothing")
    for key, value in row.items():
        if key not in names:
            _refuse(source, f"{where}.{key}", f"one of the keys {', '.join(names)}", key)
        _check(_KINDS[key], value, source, f"{where}.{key}")
    for needed in (WEIGHTS, CONFIG):
        if needed not in row["files"]:
            _refuse(source, f"{where}.files.{needed}", "a file", "nothing")
    files = {name: File(**file) for name, file in row["files"].items()}
    metrics = {name: Metric(**metric) for name, metric in row["metrics"].items()}
    return Entry(**{**row, "files": files, "metrics": metrics})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class _Kind(NamedTuple):
    """What a value may be, in words and as a test; and the values of an object's objects."""

    expected: str
    fits: Callable[[Any], bool]
    each: Mapping[str, _Kind] | None = None


_TEXT = _Kind("text", lambda value: isinstance(value, str))
_TEXTS = _Kind(
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
)
_NUMBER = _Kind("a finite number", _is_number)
_COUNT = _Kind(
    "a whole number of at least 0",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
)
_OBJECT = _Kind("an object", lambda value: isinstance(value, dict))
_SHA256 = _Kind(
    "64 hexadecimal digits",
    lambda value: isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None,
)
_KINDS = {
    "name": _Kind(
        "architecture.tag of letters, digits, _ and -",
        lambda value: isinstance(value, str) and MODEL_NAME.fullmatch(value) is not None,
    ),
    "task": _Kind("interactive or semantic", lambda value: value in ("interactive", "semantic")),
    "description": _TEXT,
    "preset": _TEXT,
    "arguments": _OBJECT,
    "parameters": _COUNT,
    "files": _Kind(
        "an object whose keys are names of files in the model's own folder",
        lambda value: isinstance(value, dict) and all(map(FILE_NAME.fullmatch, value)),
        {"sha256": _SHA256, "bytes": _COUNT},
    ),
    "input": _OBJECT,
    "license": _TEXT,
    "data": _TEXTS,
    "recipe": _TEXT,
    "seed": _COUNT,
    "commit": _TEXT,
    "hardware": _TEXT,
    "hours": _NUMBER,
    "limits": _TEXTS,
    "metrics": _OBJECT._replace(
        each={
            "value": _NUMBER,
            "error": _Kind(
                "a finite number or null", lambda value: value is None or _is_number(value)
            ),
        }
    ),
}


def _check(kind: _Kind, value: Any, source: str, where: str) -> None:  # noqa: ANN401 (any JSON)
    if not kind.fits(value):
        _refuse(source, where, kind.expected, value)
    if kind.each is None:
        return
    for name, inner in value.items():
        if not isinstance(inner, dict) or set(inner) != set(kind.each):
            expected = f"an object with the keys {' and '.join(kind.each)}"
            _refuse(source, f"{where}.{name}", expected, inner)
        for key, of in kind.each.items():
            _check(of, inner[key], source, f"{where}.{name}.{key}")


def _refuse(source: str, where: str, expected: str, got: object) -> NoReturn:
    msg = (
        f"{source}: {where} must be {expected}, got {got!r:.80}; the index is damaged: restore it, "
        "or update probseg"
    )
    raise ZooError(msg)
