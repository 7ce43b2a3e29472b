"""What `emanet.yaml` asks for: networks, their trainings, and claims about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from probseg.errors import UnknownNameError

PLAN = Path(__file__).with_name("emanet.yaml")


@dataclass(frozen=True)
class Row:
    """A network that is tested in one way.

    Args:
        network: Its name.
        iterations: Number of EM iterations of the test; None for the network's own.
    """

    network: str
    iterations: int | None = None

    @property
    def name(self) -> str:
        """Name in plans and tables, for instance `ema@6`."""
        return self.network if self.iterations is None else f"{self.network}@{self.iterations}"


@dataclass(frozen=True)
class Claim:
    """That one row is better than another.

    Args:
        text: The claim in words.
        better: Name of the row that should have the higher mIoU.
        than: Name of the other row.
    """

    text: str
    better: str
    than: str


@dataclass(frozen=True)
class Training:
    """Networks that are trained side by side, and what is asked about them.

    Args:
        name: Of the training.
        about: What is trained, in a sentence.
        epochs: Passes over the training frames.
        frozen: Whether the trunk keeps its ImageNet weights; it is then one for all networks.
        data: Arguments of the data module.
        networks: Names of the networks.
        rows: How they are tested: each with its own number of EM iterations first, then others.
        claims: About these rows.
    """

    name: str
    about: str
    epochs: int
    frozen: bool
    data: Mapping[str, Any]
    networks: tuple[str, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]

    def chosen(self, names: Sequence[str] | None) -> list[str]:
        """Return the networks of these names, or all of them.

        Raises:
            UnknownNameError: If the training has no such network.
        """
        for name in names or ():
            _check_known("network", name, self.networks)
        return [name for name in self.networks if names is None or name in names]


@dataclass(frozen=True)
class Plan:
    """Everything that `emanet.yaml` says.

    Args:
        title: Of the report.
        folder: For the weights.
        seeds: Number of seeds, from 0.
        rate: Learning rate at the beginning.
        iterations: Numbers of EM iterations of tests, in addition to the networks' own.
        backbone: Changes to the backbone of all presets.
        networks: By name: label, preset, changes to its head, and the weight with which the last
            normalisation of the EMAU starts.
        trainings: By name.
    """

    title: str
    folder: str
    seeds: int
    rate: float
    iterations: Sequence[int]
    backbone: Mapping[str, Any]
    networks: Mapping[str, Mapping[str, Any]]
    trainings: Mapping[str, Training]

    def place(self, training: str, network: str, seed: int) -> Path:
        """Return the file of a network's weights."""
        return Path(self.folder) / training / network / f"seed{seed}.pt"


def read_plan(path: Path = PLAN) -> Plan:
    """Read a plan.

    Raises:
        UnknownNameError: If a training has an unknown network, or a claim an unknown row.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    trainings = {}
    for name, entry in content.pop("trainings").items():
        trainings[name] = _training(name, content["iterations"], **entry)
        for network in trainings[name].networks:
            _check_known("network", network, content["networks"])
    return Plan(trainings=trainings, **content)


def _training(
    name: str,
    iterations: Sequence[int],
    about: str,
    epochs: int,
    frozen: bool,
    data: Mapping[str, Any],
    networks: Sequence[str],
    claims: Sequence[Mapping[str, str]],
    swept: Sequence[str] = (),
) -> Training:
    rows = [Row(network) for network in networks]
    rows += [Row(network, n) for network in swept for n in iterations]
    read = tuple(Claim(**claim) for claim in claims)
    for claim in read:
        for row in (claim.better, claim.than):
            _check_known("row", row, [row.name for row in rows])
    return Training(name, about, epochs, frozen, data, tuple(networks), tuple(rows), read)


def _check_known(kind: str, name: str, known: Mapping[str, Any] | Sequence[str]) -> None:
    if name not in known:
        raise UnknownNameError(kind=kind, name=name, known=known)
