"""The list of a zoo's models, `index.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from probseg.errors import ModelNotFoundError, ZooError
from probseg.kinds import TaskName
from probseg.models.build import Description, read_preset
from probseg.paths import write_text

INDEX, WEIGHTS, CONFIG, CARD = "index.json", "model.safetensors", "config.json", "README.md"
CHECKSUMS = "SHA256SUMS"
SCHEMA = 2

MODEL_NAME = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# patterns of names, which become part of paths and must not lead out of the zoo
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")

SHA256 = re.compile(r"[0-9a-f]{64}")

Count = Annotated[int, Ge(0)]


@dataclass(frozen=True)
class File:
    """Expected size and checksum of a model file."""

    sha256: str  # in hexadecimal
    bytes: Count


@dataclass(frozen=True)
class Metric:
    """A measured figure."""

    value: float  # IoUs in [0, 1]
    error: float | None  # standard error over objects


@dataclass(frozen=True)
class Entry:
    """One model of a zoo."""

    name: str  # architecture.tag
    task: TaskName
    description: str  # one sentence
    preset: str  # that it is a variant of
    arguments: Mapping[str, Any]  # changes to the preset, which make it what config.json says
    parameters: Count
    files: Mapping[str, File]  # all of its folder by name, except card and `CHECKSUMS`
    input: Mapping[str, Any]  # working_size, prompts_enter and previous_mask, or num_classes
    license: str  # of the weights
    data: list[str]  # with its licence, a line per data set
    recipe: str  # command that trains the model
    seed: Count  # of the training
    commit: str  # of probseg
    hardware: str
    hours: float
    limits: list[str]  # weaknesses, one line each
    metrics: Mapping[str, Metric]  # measured figures by name, `data/protocol/figure`
    comparison: bool = False  # trained to be compared with others, not to be used

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files.values())


def description_of(entry: Entry) -> Description:
    """Return the description of a model's network, made of its preset and arguments."""
    from probseg.models.schema import checked  # with pydantic, which presets do not need

    return checked(read_preset(entry.preset, entry.task), entry.name, entry.arguments)


def read_index(root: Path) -> dict[str, Entry]:
    """Return the models of a zoo, a folder, by name, those that are preferred first."""
    path = root / INDEX
    if not path.is_file():
        raise ModelNotFoundError(
            f"{path}: no zoo index; reinstall probseg, or give the folder of a zoo"
        )
    return parse_index(path.read_bytes(), str(path))


def parse_index(content: bytes, source: str) -> dict[str, Entry]:
    """Return the models that an index lists, by name; errors name its `source`."""
    from pydantic import TypeAdapter, ValidationError  # which presets do not need

    try:
        index = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ZooError(
            f"{source}: is not JSON ({error}); the file is damaged, or no index of a zoo"
        ) from error
    schema = index.get("schema") if isinstance(index, dict) else None
    if schema != SCHEMA:
        raise ZooError(
            f"{source}: schema {schema} is not {SCHEMA}, the one that this version of probseg "
            "reads; update probseg, or take a zoo that fits its version"
        )
    entries: dict[str, Entry] = {}
    try:
        reader = TypeAdapter(
            list[Entry], config={"extra": "forbid", "strict": True, "allow_inf_nan": False}
        )
        for number, entry in enumerate(reader.validate_json(json.dumps(index.get("models")))):
            if fault := _fault(entry, entries):
                told = f"{source}: models[{number}].{fault}"
                raise _damaged(told)
            entries[entry.name] = entry
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
        told = f"{source}: models{where}: {first['msg']}, got {first['input']!r:.80}"
        raise _damaged(told) from error
    return entries


def write_index(entries: Mapping[str, Entry], root: Path) -> None:
    """Write `index.json`; the order is the order of preference among the tags of a name."""
    index = {"schema": SCHEMA, "models": [asdict(entry) for entry in entries.values()]}
    write_text(root / INDEX, json.dumps(index, indent=2) + "\n")


def _fault(entry: Entry, others: Mapping[str, Entry]) -> str | None:
    """Return what is wrong with the names and checksums, of which paths are made; None if right."""
    if not MODEL_NAME.fullmatch(entry.name):
        return f"name: expected architecture.tag of letters, digits, _ and -, got {entry.name!r}"
    if entry.name in others:
        return f"name: expected a name that no other has, got {entry.name!r}"
    for needed in (WEIGHTS, CONFIG):
        if needed not in entry.files:
            return f"files.{needed}: expected a file"
    for name, file in entry.files.items():
        if not FILE_NAME.fullmatch(name):
            return f"files: expected names of files in the model's own folder, got {name!r:.80}"
        if not SHA256.fullmatch(file.sha256):
            return f"files.{name}.sha256: expected 64 hexadecimal digits, got {file.sha256!r:.80}"
    return None


def _damaged(told: str) -> ZooError:
    return ZooError(f"{told}; the index is damaged: restore it, or update probseg")


OF_CLASSES = "/miou"  # end of the names of the mean IoUs over classes


def is_clicks(name: str) -> bool:
    """Return whether a figure, by its name, is a number of clicks; the others are in [0, 1]."""
    return name.rpartition("/")[2].startswith("noc@")


def in_words(name: str, metric: Metric) -> str:
    """Return a figure with its standard error: numbers of clicks, and all others in percent."""
    scale, digits = (1, 2) if is_clicks(name) else (100, 1)
    error = "" if metric.error is None else f" ± {scale * metric.error:.{digits}f}"
    return f"{scale * metric.value:.{digits}f}{error}"


def figure(entry: Entry, name: str) -> str:
    """Return a figure of a model as `in_words` does; an empty text where it was not measured."""
    return in_words(name, entry.metrics[name]) if name in entry.metrics else ""


def class_figures(entry: Entry) -> list[str]:
    """Return the mean IoUs over classes, in percent, each with its data set."""
    names = [name for name in entry.metrics if name.endswith(OF_CLASSES)]
    return [f"{figure(entry, name)} ({name.removesuffix(OF_CLASSES)})" for name in names]
