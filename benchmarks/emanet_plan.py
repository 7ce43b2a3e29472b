"""What ``emanet.yaml`` asks for: networks, their trainings, and claims about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PLAN = Path(__file__).with_name("emanet.yaml")

ITERATIONS = 3
"""EM iterations of a test unless a row says otherwise, as in the paper."""


@dataclass(frozen=True)
class Training:
    """Networks that are trained side by side.

    Args:
        name: In tables.
        epochs: Passes over the 367 frames.
        frozen: Whether the trunk keeps its ImageNet weights, and is then one for all networks.
        networks: Names of the networks.
    """

    name: str
    epochs: int
    frozen: bool
    networks: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A network that is tested with a number of EM iterations.

    Args:
        training: Name of its training.
        network: Its name.
        iterations: Number of EM iterations of the test; None for a network without any.
    """

    training: str
    network: str
    iterations: int | None


@dataclass(frozen=True)
class Claim:
    """That one row is better than another.

    Args:
        text: The claim in words.
        better: The row that should have the higher mIoU.
        than: The other row.
    """

    text: str
    better: Row
    than: Row


@dataclass(frozen=True)
class Plan:
    """Everything that ``emanet.yaml`` says.

    Args:
        title: Of the report.
        seeds: Number of seeds, from 0.
        data: Arguments of the data module.
        backbone: Changes to the backbone of all presets.
        rate: Learning rate at the beginning.
        folder: For the weights, ``<training>/<network>/seed<number>.pt``.
        networks: Preset and changes to its head, by name.
        trainings: By name.
        rows: All that is tested.
        claims: All that is claimed.
    """

    title: str
    seeds: int
    data: Mapping[str, Any]
    backbone: Mapping[str, Any]
    rate: float
    folder: str
    networks: Mapping[str, Mapping[str, Any]]
    trainings: Mapping[str, Training]

    def place(self, training: str, network: str, seed: int) -> Path:
        """Return the file of a network's weights."""
        return Path(self.folder) / training / network / f"seed{seed}.pt"


def read_plan(path: Path = PLAN) -> Plan:
    """Read a plan."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    trainings = {
        name: Training(name, of["epochs"], of["frozen"], tuple(of["networks"]))
        for name, of in content.pop("trainings").items()
    }
    return Plan(trainings=trainings, **content)
