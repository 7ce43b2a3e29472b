"""Weights on disk: one folder per model with weights, description and card.

A folder holds ``model.safetensors`` (half precision), ``config.json`` (the description that
`probseg.models.build` understands) and ``README.md`` (the card). ``index.json`` beside the folders
lists them with the checksums and figures of each.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from probseg.errors import ChecksumError, UnknownNameError, WeightsError
from probseg.models import Segmenter
from probseg.models.build import Description
from probseg.paths import zoo_dir

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """One model of the zoo.

    Args:
        name: ``architecture.tag``.
        sha256: Checksum of the weight file.
        parameters: Number of parameters.
        description: One sentence.
        license: Licence of the weights.
        data: What the weights were trained on.
        metrics: Measured figures by name.
    """

    name: str
    sha256: str
    parameters: int
    description: str
    license: str
    data: list[str]
    metrics: dict[str, float] = field(default_factory=dict)


def read_index(root: Path | None = None) -> dict[str, Entry]:
    """Return the models of a zoo by name.

    Args:
        root: Folder with ``index.json``; the zoo that ships with probseg by default.

    Raises:
        FileNotFoundError: If there is no index.
        ValueError: If the index has a newer format than this version of probseg knows.
    """
    path = (root or zoo_dir()) / "index.json"
    if not path.is_file():
        msg = f"{path}: no zoo index; reinstall probseg, or give the folder of a zoo"
        raise FileNotFoundError(msg)
    index = json.loads(path.read_text(encoding="utf-8"))
    if index["schema"] != SCHEMA:
        msg = f"{path}: schema {index['schema']} is not {SCHEMA}; update probseg to read it"
        raise ValueError(msg)
    return {row["name"]: Entry(**row) for row in index["models"]}


def write_index(entries: Mapping[str, Entry], root: Path) -> None:
    """Write ``index.json``; the order is the order of preference among the tags of a name."""
    index = {"schema": SCHEMA, "models": [asdict(entry) for entry in entries.values()]}
    (root / "index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def find(name: str, root: Path | None = None) -> Entry:
    """Return a model by ``architecture.tag``, or the first tag of an ``architecture``.

    Raises:
        UnknownNameError: If the zoo has no such model; the message lists the nearest names.
    """
    entries = read_index(root)
    if name in entries:
        return entries[name]
    tagged = fnmatch.filter(entries, f"{name}.*")
    if tagged:
        return entries[tagged[0]]
    architectures = {known.split(".")[0] for known in entries}
    raise UnknownNameError(kind="zoo model", name=name, known=[*entries, *architectures])


def sha256(path: Path) -> str:
    """Return the checksum of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def verify(name: str, root: Path | None = None) -> Path:
    """Return the folder of a model after checking its weight file.

    Raises:
        FileNotFoundError: If the weight file is missing.
        ChecksumError: If its checksum is not the recorded one.
    """
    entry = find(name, root)
    folder = (root or zoo_dir()) / entry.name
    path = folder / WEIGHTS
    if not path.is_file():
        msg = f"{path}: the weight file of {entry.name} is missing; reinstall probseg"
        raise FileNotFoundError(msg)
    found = sha256(path)
    if found != entry.sha256:
        msg = (
            f"{path}: sha256 is {found}, expected {entry.sha256}; the file is damaged or was "
            "replaced: reinstall probseg, or restore the file"
        )
        raise ChecksumError(msg)
    return folder


def load_into(model: Segmenter, path: Path) -> None:
    """Load a weight file into a network, strictly.

    Args:
        model: The network; its weights are replaced.
        path: A safetensors file.

    Raises:
        FileNotFoundError: If there is no such file.
        WeightsError: If the file cannot be read, or names or shapes of the weights are not those of
            the network.
    """
    try:
        weights = load_file(path)
    except SafetensorError as error:
        msg = f"{path}: cannot be read ({error}); the file is damaged or no safetensors file"
        raise WeightsError(msg) from error
    check_fit(model.state_dict(), weights, str(path))
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})


def check_fit(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str) -> None:
    """Raise a readable WeightsError unless two sets of weights have equal names and shapes."""
    missing = sorted(set(wanted) - set(given))
    surplus = sorted(set(given) - set(wanted))
    shapes = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in sorted(set(wanted) & set(given))
        if wanted[name].shape != given[name].shape
    ]
    if not (missing or surplus or shapes):
        return
    parts = (("missing", missing), ("unknown", surplus), ("of another shape", shapes))
    told = "; ".join(f"{len(x)} {what}, e.g. {x[0]}" for what, x in parts if x)
    msg = (
        f"{source}: the weights are those of another architecture ({told}); build the network "
        "with the configuration that the weights were trained with"
    )
    raise WeightsError(msg)


def save(model: Segmenter, description: Description, folder: Path) -> str:
    """Write weights in half precision and the description of a network.

    Args:
        model: The network.
        description: What it was built from.
        folder: Where to; made if need be.

    Returns:
        sha256 of the weight file.

    Raises:
        ValueError: If a weight does not fit into half precision.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        half = tensor.half() if tensor.is_floating_point() else tensor
        if not torch.isfinite(half).all():
            msg = f"{name}: has values beyond the range of float16; the training has diverged"
            raise ValueError(msg)
        weights[name] = half.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return sha256(folder / WEIGHTS)


def read_config(folder: Path) -> Description:
    """Return the description of the network in a model folder.

    Raises:
        FileNotFoundError: If the folder has no ``config.json``.
    """
    path = folder / CONFIG
    if not path.is_file():
        msg = f"{path}: no such file; a model folder holds {WEIGHTS} and {CONFIG}"
        raise FileNotFoundError(msg)
    description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return description
