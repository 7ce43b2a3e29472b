"""Evaluates the rows of `paper.yaml` and leaves a folder of results for each network."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from paper_rows import Plan, Row, place_of, settings_of

from probseg.errors import USER_ERRORS
from probseg.evaluation import (
    Journal,
    ObjectRecord,
    Protocol,
    checksum,
    environment,
    find_unfinished,
    run_objects,
    summarise_records,
)
from probseg.evaluation.protocols import all_options
from probseg.models import Segmenter, build, without_downloads
from probseg.reports import write_report
from probseg.types import Sample
from probseg.zoo import create_interactive
from probseg.zoo.lookup import describe
from probseg.zoo.trained import read_trained, weights_digest

SEED = 0
"""Of the simulated annotator: the boxes are the same for all rows."""

OBJECTS_AT_ONCE = 16
BATCH_SIZE = 8


def evaluate(
    plan: Plan,
    rows: Sequence[Row],
    folder: Path,
    device: str,
    seeds: Sequence[int] | None = None,
) -> list[str]:
    """Evaluate what has no result yet, or one of other weights or settings.

    Args:
        plan: Says on what, and how.
        rows: What to evaluate.
        folder: A result goes to `<folder>/<row>/seed<number>/<data set>/`.
        device: "cpu" or "cuda".
        seeds: Numbers of the networks of each row to evaluate; None for all.

    Returns:
        Why networks were left out, one sentence each.
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
            about = {
                **settings_of(row, name),
                "network": network,
                "weights_sha256": _digest(model),
                "seed": SEED,
            }
            for dataset, objects in datasets.items():
                place = place_of(folder, row, number, dataset)
                data = {"data": asdict(plan.datasets[dataset]), "objects": len(objects)}
                _evaluate(model, objects, plan.protocol, about | data, place, device)
    return left_out


def load(name: str) -> tuple[Segmenter, Mapping[str, Any]]:
    """Return a trained network in evaluation mode on the CPU, and its description.

    Args:
        name: Of a zoo model, or the path, with a slash, of a model folder, of a run or of a
            checkpoint.

    Raises:
        FileNotFoundError: If the weights of a zoo model are missing.
        UnknownNameError: If the zoo has no such model.
        UsageError: If there is no such file.
        WeightsError: If it cannot be used.
    """
    if "/" not in name:
        return create_interactive(name, pretrained=True), describe(name, pretrained=True)[1]
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
    """Evaluate one network on one data set, unless that was done."""
    if _is_done(place, about, protocol):
        print(f"{place}: is there", flush=True)
        return
    began = time.perf_counter()
    metadata = {**about, "environment": environment(device)}
    subject = {**metadata, "protocol": asdict(protocol)}
    _, taken_over = find_unfinished(place, subject)
    known = {record.key: record for record in taken_over}
    journal = Journal(place, subject, records=taken_over)
    records: list[ObjectRecord] = []
    for first in range(0, len(objects), OBJECTS_AT_ONCE):
        last = min(len(objects), first + OBJECTS_AT_ONCE)
        samples = [objects[i] for i in range(first, last)]
        made = _known(samples, protocol, known)
        if not made:
            made = run_objects(
                model, samples, protocol, seed=SEED, device=device, batch_size=BATCH_SIZE
            )
            journal.add(made)
        records += made
    write_report(place, records, protocol, metadata, brief=True)
    journal.close()
    (summary,) = summarise_records(records, protocol).values()
    minutes = (time.perf_counter() - began) / 60
    means = ", ".join(f"mIoU@{k} {summary.miou[k]:.3f}" for k in (0, protocol.max_clicks))
    print(f"{place}: {means}, {minutes:.1f} min", flush=True)


def _digest(model: Segmenter) -> str:
    """Return the checksum of the weights that `probseg test` gives them."""
    return weights_digest({f"model.{name}": t for name, t in model.state_dict().items()})


def _is_done(place: Path, about: Mapping[str, Any], protocol: Protocol) -> bool:
    """Say whether a result is there that was made with these weights and settings."""
    path = place / "results.json"
    if not path.is_file():
        return False
    stored = json.loads(path.read_text(encoding="utf-8"))
    wanted = json.loads(json.dumps({**about, "protocol": asdict(protocol)}))
    found = {**stored["metadata"], "protocol": all_options(stored["protocol"])}
    return {key: found.get(key) for key in wanted} == wanted


def _known(
    samples: Sequence[Sample],
    protocol: Protocol,
    known: Mapping[tuple[str, str, int], ObjectRecord],
) -> list[ObjectRecord]:
    """Return the runs of a block that were made before; none unless all of them were."""
    runs = [
        (known.get((sample.dataset, sample.name, trial)), checksum(sample))
        for sample in samples
        for trial in range(protocol.trials)
    ]
    found = [record for record, pixels in runs if record is not None and record.pixels == pixels]
    return found if len(found) == len(runs) else []
