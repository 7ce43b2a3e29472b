"""Evaluates the rows of a plan and leaves a folder of results for each network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.paper.plan import Plan, Row
from benchmarks.paper.results import place_of
from probseg.errors import USER_ERRORS
from probseg.evaluation import ObjectRecord, Protocol, environment, run_objects, summarise_records
from probseg.evaluation.protocols import all_options
from probseg.models import Segmenter, build, without_downloads
from probseg.reports import write_report
from probseg.types import Sample
from probseg.zoo import create_interactive
from probseg.zoo.lookup import find_description
from probseg.zoo.trained import read_trained, weights_digest

SEED = 0  # of the simulated annotator: the boxes are the same for all rows
OBJECTS_AT_ONCE = 16
BATCH_SIZE = 8


def evaluate(
    plan: Plan, rows: Sequence[Row], folder: Path, device: str, seeds: Sequence[int] | None
) -> list[str]:
    """Evaluate what has no result yet, or one of other weights or settings.

    A result goes to `<folder>/<row>/seed<number>/<data set>/`. Returns a sentence for each network
    that was left out.
    """
    datasets = {name: objects.open() for name, objects in plan.datasets.items()}
    left_out = []
    for row in rows:
        for number, name in enumerate(row.models):
            if seeds is not None and number not in seeds:
                continue
            try:
                model, network = load(name)
            except (*USER_ERRORS, FileNotFoundError) as error:
                left_out.append(f"{row.name}, {name}: {error}")
                continue
            model.to(device=device, memory_format=torch.channels_last)
            model.adapt(row.adaptation)
            state = {f"model.{of}": weight for of, weight in model.state_dict().items()}
            about = {
                **row.settings(name),
                "network": network,
                "weights_sha256": weights_digest(state),  # as `probseg test` computes it
                "seed": SEED,
            }
            for dataset, objects in datasets.items():
                place = place_of(folder, row, number, dataset)
                _evaluate(model, objects, plan.protocol, about, place, device)
    return left_out


def load(name: str) -> tuple[Segmenter, Mapping[str, Any]]:
    """Load a zoo model, or a model folder, run or checkpoint; return it with its description."""
    if "/" not in name:
        return create_interactive(name, pretrained=True), find_description(name, pretrained=True)[1]
    trained = read_trained(Path(name))
    model = build(without_downloads(trained.description))
    model.load_state_dict(trained.weights)
    return model.eval(), trained.description


def _evaluate(
    model: Segmenter,
    objects: Sequence[Sample],
    protocol: Protocol,
    about: Mapping[str, Any],
    place: Path,
    device: str,
) -> None:
    """Evaluate a network on a data set, unless a result has these weights and settings."""
    path = place / "results.json"
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        wanted = json.loads(json.dumps({**about, "protocol": asdict(protocol)}))
        there = {**stored["metadata"], "protocol": all_options(stored["protocol"])}
        if wanted.items() <= there.items():
            print(f"{place}: is there", flush=True)
            return
    records: list[ObjectRecord] = []
    for first in range(0, len(objects), OBJECTS_AT_ONCE):
        last = min(len(objects), first + OBJECTS_AT_ONCE)
        samples = [objects[i] for i in range(first, last)]
        records += run_objects(
            model, samples, protocol, seed=SEED, device=device, batch_size=BATCH_SIZE
        )
    metadata = {**about, "environment": environment(device)}
    write_report(place, records, protocol, metadata, brief=True)
    (summary,) = summarise_records(records, protocol).values()
    means = ", ".join(f"mIoU@{k} {summary.miou[k]:.3f}" for k in (0, protocol.max_clicks))
    print(f"{place}: {means}", flush=True)
