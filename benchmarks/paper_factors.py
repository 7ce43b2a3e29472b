"""Trains and evaluates the networks of `paper_factors.yaml`: when do adapted keys help or harm?

`python benchmarks/paper_factors.py` trains the eight networks of one seed after another, each seed
on the features of one frozen trunk, and adds to `paper_factors.csv` a line for each network and
distribution: mean IoU of the first mask without and with key adaptation, and what adaptation does
to the keys. Lines that are there are not made again, so that it can be stopped at any time and
goes on with the same command. `paper_factors_report.py` tests them.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from measure import RESULTS
from paper_beliefs import CHANGES, KA, NO_KA, shown
from paper_chain import computed, watched
from paper_factors_report import COLUMNS, SHIFTS, read
from paper_rows import Plan, Training, read_plan
from paper_train import trained
from torch import Tensor

from probseg.attention import probabilistic_layers
from probseg.clicks.rounds import without_clicks
from probseg.errors import USER_ERRORS, DataError
from probseg.metrics import iou
from probseg.models import Segmenter
from probseg.models.encoded import Encoded
from probseg.semantic.camvid import CamVid
from probseg.types import IGNORE, Sample
from probseg.zoo import warm_start

PLAN = Path(__file__).with_name("paper_factors.yaml")

THINGS = ("car", "pedestrian", "bicyclist")
"""Classes of CamVid whose largest connected part is an object."""

SMALLEST = 0.005
"""Share of the frame that it covers at least."""


class Shown(NamedTuple):
    """What a network sees of an object, its image encoded; `mask` is `(H, W)`, `box` `(1, 4)`."""

    encoded: Encoded
    mask: Tensor
    box: Tensor


def main(arguments: list[str] | None = None) -> int:
    """Train and evaluate what is missing; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--seed", type=int, nargs="+", help="default all")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    os.environ.setdefault("PROBSEG_ZOO", str(Path(__file__).parent / "zoo"))
    try:
        run(read_plan(args.plan), args.seed, args.results / f"{args.plan.stem}.csv")
    except USER_ERRORS as error:
        sys.stderr.write(f"paper_factors.py: error: {error}\n")
        return 2
    return 0


def run(plan: Plan, seeds: Sequence[int] | None, path: Path) -> None:
    """Add the missing lines to a file of results.

    Raises:
        DataError: If its networks were trained for another number of steps.
    """
    training = plan.training
    assert training is not None, "the plan has a training"
    there = read(path)
    for line in there:
        if line["steps"] != training.steps:
            msg = (
                f"{path}: steps: expected {training.steps} as in {plan.name}.yaml, got "
                f"{line['steps']:.0f}; move the file away to begin again"
            )
            raise DataError(msg)
    done = {tuple(line[of] for of in (*COLUMNS[:4], "shift")) for line in there}
    objects: dict[str, list[Shown]] = {}
    for seed in range(training.seeds) if seeds is None else seeds:
        missing = {
            name: [shift for shift in SHIFTS if (seed, *levels(training, name), shift) not in done]
            for name in training.networks
        }
        names = [name for name, shifts in missing.items() if shifts]
        if not names:
            continue
        began = time.process_time()
        objects = objects or dict(_distributions(plan))
        networks, _ = trained(training, seed, names)
        for name in names:
            for shift in missing[name]:
                scores = evaluated(networks[name], objects[shift])
                _append(path, [seed, *levels(training, name), shift, training.steps, *scores])
        print(f"seed {seed}: {time.process_time() - began:.0f} s of one core", flush=True)


def levels(training: Training, name: str) -> tuple[int, int, int]:
    """Return a network's factors: normalised, number of projections, path around the stage."""
    fusion = training.networks[name]["fusion"]
    finer = fusion.get("finer", False)
    return int(name in training.normalised), 2 - (name in training.tied), int(finer)


@torch.no_grad()
def evaluated(model: Segmenter, objects: Sequence[Shown]) -> list[float]:
    """Return the measures of `COLUMNS` of a network, means over objects."""
    model.eval()
    layers = probabilistic_layers(model.fusion)
    rows = []
    for encoded, mask, box in objects:
        prompts = without_clicks(box)
        ious = []
        for adaptation in (NO_KA, KA):
            model.adapt(adaptation)
            with watched(layers) as inputs:
                answer = model.decode(encoded, prompts)[0, 0] > 0
            ious.append(100 * iou(answer.numpy(), mask.numpy()))
        adapted = [computed(*pair) for pair in zip(layers, inputs, strict=True)]
        model.adapt(NO_KA)
        plain = [computed(*pair) for pair in zip(layers, inputs, strict=True)]
        keys = [of_keys(a.queries, a.keys, b.keys) for a, b in zip(plain, adapted, strict=True)]
        rows.append([*ious, *np.mean(keys, axis=0)])
    return [float(mean) for mean in np.mean(rows, axis=0)]


def of_keys(queries: Tensor, before: Tensor, after: Tensor) -> list[float]:
    """Return where keys are, and where they move.

    Args:
        queries: Shape `(B, G, N, D)`.
        before: The keys, of the same shape.
        after: The adapted keys, of the same shape.

    Returns:
        Distance of the means of queries and keys over the keys' spread, the root of their mean
        squared distance from their mean; length of the move over that of the keys; spread after
        over spread before. Means over heads.
    """
    centres = [of.mean(dim=2, keepdim=True) for of in (queries, before, after)]
    spreads = [
        (of - centre).square().sum(dim=-1).mean(dim=2).sqrt()
        for of, centre in zip((before, after), centres[1:], strict=True)
    ]
    offset = (centres[0] - centres[1]).norm(dim=-1)[..., 0] / spreads[0]
    moved = (after - before).flatten(2).norm(dim=2) / before.flatten(2).norm(dim=2)
    return [float(of.mean()) for of in (offset, moved, spreads[1] / spreads[0])]


def _distributions(plan: Plan) -> Iterator[tuple[str, list[Shown]]]:
    """Yield the distributions of `SHIFTS` with their encoded objects."""
    training = plan.training
    assert training is not None, "checked by run"
    trunk = warm_start(training.of, training.trunk, training.fresh).eval()
    random = np.random.default_rng(0)
    own = [*plan.datasets["own"].open()]
    altered = {
        shift: [of._replace(image=CHANGES[change](of.image, random)) for of in own]
        for shift, change in {"colours": "inverted", "blur": "blurred"}.items()
    }
    samples = {"own": own, **altered, "camvid": things_of_camvid(len(own))}
    for shift in SHIFTS:
        with torch.no_grad():
            yield shift, [_encoded(trunk, plan, sample) for sample in samples[shift]]


def _encoded(trunk: Segmenter, plan: Plan, sample: Sample) -> Shown:
    image, mask, box = shown(sample, plan.protocol)
    return Shown(trunk.encode(image), mask[0], box)


def things_of_camvid(most: int) -> list[Sample]:
    """Return the largest object of each of `most` frames, evenly spread over those with one."""
    found = []
    for split in ("train", "val", "test"):
        for frame in CamVid(split):
            mask = largest_thing(frame.labels)
            if mask.mean() >= SMALLEST:
                mask = np.where(frame.labels == IGNORE, np.uint8(IGNORE), mask)
                found.append(Sample(frame.image, mask, frame.name, frame.dataset))
    return [found[number * len(found) // most] for number in range(most)]


def largest_thing(labels: np.ndarray) -> np.ndarray:
    """Return the largest connected part of one of `THINGS`, uint8 of 0 and 1, shape `(H, W)`."""
    best = np.zeros(labels.shape, np.uint8)
    for thing in THINGS:
        of_class = (labels == CamVid.classes.index(thing)).astype(np.uint8)
        _, parts, stats, _ = cv2.connectedComponentsWithStats(of_class)
        if len(stats) > 1:
            largest = 1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())
            best = max(best, (parts == largest).astype(np.uint8), key=np.sum)
    return best


def _append(path: Path, line: Sequence[float | str]) -> None:
    new = not path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerow([f"{of:.4f}" if isinstance(of, float) else of for of in line])


if __name__ == "__main__":
    sys.exit(main())
