"""What a plan such as `paper.yaml` asks for: rows, figures that show them, claims about them."""

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

PLANS = [
    Path(__file__).with_name(f"{name}.yaml")
    for name in ("paper", "paper_frozen", "paper_tuned", "paper_propagation", "paper_csa")
]


@dataclass(frozen=True)
class Row:
    """Networks that are evaluated in one way.

    Args:
        name: Of its folder and in the tables.
        label: What figures call it.
        models: The same network from several seeds: names in the zoo, or paths, with a slash, of
            model folders, runs or checkpoints.
        adaptation: What is switched after training; all None evaluates it as it was trained.
    """

    name: str
    label: str
    models: tuple[str, ...]
    adaptation: Adaptation


@dataclass(frozen=True)
class Claim:
    """That one row is better than another.

    Args:
        text: The claim in words.
        better: Name of the row that should have the higher mean IoU.
        than: Name of the other row.
        clicks: Numbers of corrective clicks after which it should.
    """

    text: str
    better: str
    than: str
    clicks: tuple[int, ...]


@dataclass(frozen=True)
class Figure:
    """A counterpart of one of the paper's figures.

    Args:
        name: Of its file.
        title: What it shows.
        rows: Names of the rows, in the order of the legend.
        claims: What is tested; the p-values of one figure are corrected together.
    """

    name: str
    title: str
    rows: tuple[str, ...]
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Objects:
    """A data set to evaluate on.

    Args:
        name: Of its folder, in tables and figures.
        kind: Name in `probseg.data.DATASETS`.
        arguments: Of its class.
        most: Number of objects that are kept, evenly spread; None for all.
    """

    name: str
    kind: str
    arguments: Mapping[str, Any]
    most: int | None = None

    def open(self) -> Sequence[Sample]:
        """Open the data set."""
        return cast(Sequence[Sample], spread(DATASETS[self.kind](**self.arguments), self.most))


@dataclass(frozen=True)
class Training:
    """Networks that are trained side by side on the same crops.

    Args:
        of: The preset of which all networks are variants; prompts enter behind its trunk.
        trunk: Zoo model with the weights of backbone and decoder.
        folder: A model folder `<folder>/<network>/seed<number>` is written for each.
        seeds: Number of seeds, from 0.
        steps: Training steps.
        batch_size: Crops per step.
        crop_size: Side of the crops in pixels.
        rate: Highest learning rate of the cycle.
        data: Objects to train on.
        networks: Changes to the preset, by name.
        fresh: Shell patterns of the weights that are not the trunk's, as in `warm_start`.
        start: Folder of the networks of all seeds, by name, in which all weights learn then; None
            for new stages behind a frozen trunk.
        tied: Networks whose keys in the stage are their queries.
        normalised: Networks whose stage normalises queries, keys and values over the batch, each
            channel by itself, as `bn_qkv` of axial attention does.
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
        return _of_seed(f"{self.folder}/{network}", seed)

    def started(self, network: str, seed: int) -> Path:
        """Return the model folder that a network starts from."""
        assert self.start is not None, "networks start from others"
        return _of_seed(self.start[network], seed)


@dataclass(frozen=True)
class Plan:
    """Everything that a plan such as `paper.yaml` says; rows and data sets in its order, by name.

    Args:
        name: Stem of its file, with which the names of its results begin.
        title: Of the report.
        about: What the networks are, in sentences.
        protocol: Of the evaluation.
        datasets: What to evaluate on.
        rows: What to evaluate.
        figures: What to draw and to test.
        pooled: Whether claims are tested on the photographs of all data sets together, instead of
            each data set by itself.
        training: Of the networks; None where they are in the zoo.
    """

    name: str
    title: str
    about: str
    protocol: Protocol
    datasets: Mapping[str, Objects]
    rows: Mapping[str, Row]
    figures: tuple[Figure, ...]
    pooled: bool = False
    training: Training | None = None


def read_plan(path: Path) -> Plan:
    """Read and check a plan.

    Raises:
        DataError: If an entry is missing, unknown or out of range; the message names it.
        UnknownNameError: If there is no such protocol, data set or row.
    """
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    place = "protocol, trials"
    try:
        protocol = replace(get_protocol(content["protocol"]), trials=content["trials"])
        datasets, rows = {}, {}
        place = "training"
        training = _training(**content["training"]) if "training" in content else None
        for name, entry in content["datasets"].items():
            place = f"datasets: {name}"
            datasets[name] = Objects(name=name, **entry)
        for name, entry in content["rows"].items():
            place = f"rows: {name}"
            rows[name] = _row(name, training, **entry)
        figures = []
        for name, entry in content["figures"].items():
            place = f"figures: {name}"
            figures.append(_figure(name, **entry))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnknownNameError):
            raise
        msg = f"{path}: {place}: {error}"
        raise DataError(msg) from error
    for objects in datasets.values():
        _check_known("data set", objects.kind, DATASETS)
    for figure in figures:
        _check(figure, rows, protocol, path)
    return Plan(
        path.stem,
        content.get("title", path.stem),
        content.get("about", ""),
        protocol,
        datasets,
        rows,
        tuple(figures),
        content.get("pooled", False),
        training,
    )


def chosen(plan: Plan, names: Sequence[str] | None) -> list[Row]:
    """Return the rows of these names, or all of them.

    Raises:
        UnknownNameError: If there is no such row.
    """
    for name in names or ():
        _check_known("row", name, plan.rows)
    return [row for name, row in plan.rows.items() if names is None or name in names]


def settings_of(row: Row, model: str) -> dict[str, Any]:
    """Return what a result of one of a row's networks says of itself, as JSON values."""
    return {"model": model, "adaptation": switched(asdict(row.adaptation))}


def switched(adaptation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an adaptation that are not None: those that differ from training."""
    return {name: value for name, value in adaptation.items() if value is not None}


def place_of(folder: Path, row: Row, number: int, dataset: str) -> Path:
    """Return the folder of a result: that of a network of a row on a data set."""
    return folder / row.name / f"seed{number}" / dataset


def _of_seed(folder: str, seed: int) -> Path:
    return Path(folder) / f"seed{seed}"


def _training(data: Mapping[str, Any], networks: Mapping[str, Any], **entries: Any) -> Training:  # noqa: ANN401
    return Training(data=Objects(**data), networks=networks, **entries)


def _row(
    name: str,
    training: Training | None,
    label: str,
    models: Sequence[str] = (),
    network: str | None = None,
    adaptation: Mapping[str, Any] | None = None,
) -> Row:
    if network is not None:
        if training is None or models:
            msg = "network: names a network of `training`, without `models`"
            raise ValueError(msg)
        _check_known("network", network, training.networks)
        models = [str(training.place(network, seed)) for seed in range(training.seeds)]
    if isinstance(models, str) or not models:
        msg = f"models: expected a list of names, one per seed, got {models!r}"
        raise ValueError(msg)
    return Row(name, label, tuple(models), Adaptation(**(adaptation or {})))


def _figure(
    name: str,
    title: str,
    rows: Sequence[str],
    claims: Sequence[Mapping[str, Any]] = (),
) -> Figure:
    read = [Claim(**{**claim, "clicks": tuple(claim["clicks"])}) for claim in claims]
    return Figure(name, title, tuple(rows), tuple(read))


def _check(figure: Figure, rows: Mapping[str, Row], protocol: Protocol, path: Path) -> None:
    for name in figure.rows:
        _check_known("row", name, rows)
    for claim in figure.claims:
        for name in (claim.better, claim.than):
            _check_known(f"row of figure {figure.name}", name, figure.rows)
        for k in claim.clicks:
            if not protocol.first_answer <= k <= protocol.max_clicks:
                msg = (
                    f"{path}: figures: {figure.name}: clicks: expected numbers in "
                    f"{protocol.first_answer} ... {protocol.max_clicks}, got {k}"
                )
                raise DataError(msg)


def _check_known(kind: str, name: str, known: Mapping[str, Any] | Sequence[str]) -> None:
    if name not in known:
        raise UnknownNameError(kind=kind, name=name, known=known)
