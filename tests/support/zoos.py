"""Small zoos, and putting them in the place of the shipped one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probseg.zoo.lookup as lookup
from probseg.models import build, override, read_preset
from probseg.models.build import Description
from probseg.zoo.index import INDEX, Entry, Metric, read_index, write_index
from probseg.zoo.store import save

PUBLISHED = [lookup.zoo_dir()]
"""The zoo that ships and, in a checkout, that of models for comparisons."""
FOR_COMPARISONS = lookup.zoo_dir().parent / "benchmarks" / "zoo"
if FOR_COMPARISONS.is_dir():  # the sdist is without it
    PUBLISHED.append(FOR_COMPARISONS)

CLASSES = 3
"""Of semantic models."""


def network(preset: str) -> tuple[nn.Module, Description, dict[str, Any]]:
    """Return a fresh network, its description, and its changes to the preset."""
    if "emanet" in preset:
        changes = {"head": {"num_classes": CLASSES}}
        description = override(read_preset(preset, "semantic"), changes)
        return build(description), description, changes
    return build(read_preset(preset)), read_preset(preset), {}


def add_model(root: Path, name: str, **facts: Any) -> Entry:
    """Write a model `preset.tag` with fresh weights into a zoo, and its line into the index."""
    preset = name.split(".")[0]
    model, description, changes = network(preset)
    entry = Entry(
        name=name,
        task="semantic" if "emanet" in preset else "interactive",
        description="A tiny network.",
        preset=preset,
        arguments=changes,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        files=save(model, description, root / name),
        input={},
        license="CC0-1.0",
        data=["drawn ellipses (CC0)"],
        recipe="none, the weights are random",
        seed=7,
        commit="abcdef",
        hardware="one core",
        hours=0.5,
        limits=["It knows nothing."],
        metrics={"GrabCut/ritm/noc@90": Metric(12.25, 0.5)},
    )
    entry = dataclasses.replace(entry, **facts)
    entries = read_index(root) if (root / INDEX).is_file() else {}
    write_index({**entries, name: entry}, root)
    return entry


def ship(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Let a zoo be the shipped one."""
    monkeypatch.setattr(lookup, "zoo_dir", lambda: root)


def write_checkpoint(
    path: Path, weights: Mapping[str, Tensor], model: Description | None = None, **content: Any
) -> Path:
    """Write what Lightning writes, as far as it is read: weights by their names in the network."""
    node = model or {"class_path": "probseg.models.variant", "init_args": {"of": "micro_csa"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {f"model.{name}": tensor for name, tensor in weights.items()}
    stored = {"hyper_parameters": {"model": node}, "callbacks": {"Other": {}}, "state_dict": state}
    torch.save({**stored, **content}, path)
    return path


def write_run(
    folder: Path, weights: Mapping[str, Tensor], model: Description | None = None
) -> Path:
    """Write the folder of a run with a checkpoint."""
    write_checkpoint(folder / "checkpoints" / "last.ckpt", weights, model)
    (folder / "config.yaml").write_text("seed_everything: 5\n")
    return folder
