"""What a plan in `plans` asks for: rows, figures that show them, and claims about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml

from probseg.attention import Adaptation
from probseg.data import DATASETS
from probseg.data.datamodule import spread
from probseg.errors import DataError, UnknownNameError
from probseg.evaluation import Protocol, get_protocol
from probseg.models.build import Changes
from probseg.types import Sample

PLANS = Path(__file__).with_name("plans")
RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Row:
    """Networks that are evaluated in one way.

    `models` are the same network from several seeds: names in the zoo, or paths, with a slash, of
    model folders, runs or checkpoints. `adaptation` is switched after training; all None leaves it.
    """

    name: str
    label: str
    models: tuple[str, ...]
    adaptation: Adaptation

    def settings(self, model: str) -> dict[str, Any]:
        """Return what a result of one of the networks says of itself, as JSON values."""
        return {"model": model, "adaptation": switched(asdict(self.adaptation))}


def switched(adaptation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an adaptation that differ from those of the training."""
    return {name: value for name, value in adaptation.items() if value is not None}


@dataclass(frozen=True)
class Claim:
    """That one row has a higher mean IoU than another, after some numbers of clicks."""

    text: str
    better: str
    than: str
    clicks: Sequence[int] = ()


@dataclass(frozen=True)
class Figure:
    """A counterpart of one of the paper's figures; rows are in the order of the legend."""

    name: str
    title: str
    rows: Sequence[str]
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Objects:
    """A data set, of which `most` objects are kept, evenly spread."""

    name: str
    kind: str
    arguments: Mapping[str, Any]
    most: int | None = None

    def open(self) -> Sequence[Sample]:
        return cast(Sequence[Sample], spread(DATASETS[self.kind](**self.arguments), self.most))


@dataclass(frozen=True)
class Training:
    """Networks that are trained side by side on the same crops, changes of the preset `of`.

    Prompts enter behind `trunk`, a zoo model whose weights they all have but those of `fresh`. They
    begin as the networks in the folders of `start`, if there are some, and then learn all weights.
    The keys of `tied` networks are their queries; `normalised` ones normalise queries, keys and
    values over the batch, as `bn_qkv` of axial attention does.
    """

    of: str
    trunk: str
    folder: str
    seeds: int
    steps: int
    batch_size: int
    crop_size: int
    rate: float
    data: Objects
    networks: Mapping[str, Changes]
    fresh: Sequence[str] = ("fusion.*", "head.*")
    start: Mapping[str, str] | None = None
    tied: Sequence[str] = ()
    normalised: Sequence[str] = ()

    def place(self, network: str, seed: int) -> Path:
        """Return the model folder of a network."""
        return Path(self.folder) / network / f"seed{seed}"


@dataclass(frozen=True)
class Plan:
    """All that a plan says; claims are `pooled` if they are tested on all data sets together."""

    name: str
    title: str
    about: str
    protocol: Protocol
    datasets: Mapping[str, Objects]
    rows: Mapping[str, Row]
    figures: tuple[Figure, ...]
    pooled: bool
    training: Training | None

    def chosen(self, names: Sequence[str] | None) -> list[Row]:
        """Return the rows of these names, or all of them."""
        for name in names or ():
            check_known("row", name, self.rows)
        return [row for name, row in self.rows.items() if names is None or name in names]


def read_plan(name: str | Path) -> Plan:
    """Read a plan of `plans`, or another file; claims that could not be tested are refused."""
    path = Path(name) if Path(name).suffix else PLANS / f"{name}.yaml"
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    protocol = replace(get_protocol(content["protocol"]), trials=content["trials"])
    training = None
    if "training" in content:
        data = Objects(**content["training"].pop("data"))
        training = Training(**content["training"], data=data)
    rows = {row: _row(row, training, entry) for row, entry in content["rows"].items()}
    figures = []
    for figure, entry in content["figures"].items():
        claims = tuple(Claim(**claim) for claim in entry.pop("claims", ()))
        figures.append(Figure(figure, **entry, claims=claims))
        for row in figures[-1].rows:
            check_known("row", row, rows)
        for claim in claims:
            check_known(f"row of figure {figure}", claim.better, entry["rows"])
            check_known(f"row of figure {figure}", claim.than, entry["rows"])
            if not set(claim.clicks) <= {*range(protocol.first_result, protocol.max_clicks + 1)}:
                raise DataError(
                    f"{path}: {figure}: clicks: at most {protocol.max_clicks}, got {claim.clicks}"
                )
    datasets = {of: Objects(name=of, **entry) for of, entry in content["datasets"].items()}
    words = content.get("title", path.stem), content.get("about", "")
    shown = tuple(figures), content.get("pooled", False)
    return Plan(path.stem, *words, protocol, datasets, rows, *shown, training)


def _row(name: str, training: Training | None, entry: Mapping[str, Any]) -> Row:
    models, network = entry.get("models", ()), entry.get("network")
    if network is not None:
        assert training is not None, "a network is one of the plan's training"
        check_known("network", network, training.networks)
        models = [str(training.place(network, seed)) for seed in range(training.seeds)]
    return Row(name, entry["label"], tuple(models), Adaptation(**entry.get("adaptation", {})))


def check_known(kind: str, name: str, known: Mapping[str, Any] | Sequence[str]) -> None:
    if name not in known:
        raise UnknownNameError(kind=kind, name=name, known=known)
