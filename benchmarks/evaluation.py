"""What an evaluation by clicks costs beside its network, and what batches save.

Two ratios, each measured side by side in one run: the share of the wall time that is not the
network's (click simulation, scores, bookkeeping), and the time of clicking through objects one run
after the other over that of objects and trials together. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from measure import RESULTS, append_row, provenance

from probseg import create_model
from probseg.data import GrabCut, SamplePhotos
from probseg.errors import DatasetNotFoundError
from probseg.evaluation import ObjectRecord, Protocol, get_protocol, run_object, run_objects
from probseg.models import Segmenter
from probseg.types import Sample


def main() -> None:
    """Measure each protocol and write a row for it."""
    args = _parser().parse_args()
    torch.set_num_threads(args.threads)
    model = create_model(args.model, pretrained=True).to(args.device)
    model = model.to(memory_format=torch.channels_last)
    model.working_size = args.working_size
    try:
        objects, data = GrabCut(), "GrabCut"
    except DatasetNotFoundError:
        objects, data = SamplePhotos(), "sample photographs"
    samples = [objects[i] for i in range(min(args.objects, len(objects)))]
    path = RESULTS / f"evaluation_{args.device}.csv"
    path.unlink(missing_ok=True)
    origin = provenance(args.device)
    for name in args.protocols:
        protocol = get_protocol(name)
        if protocol.is_random:
            protocol = replace(protocol, trials=args.trials)
        together, apart = _compare(model, samples, protocol, args)
        row = {
            "model": args.model,
            "working_size": args.working_size,
            "data": data,
            "objects": len(samples),
            "protocol": name,
            "trials": protocol.trials,
            "batch_size": args.batch_size,
            "threads": args.threads,
            "seconds_together": round(together.wall, 1),
            "share_beside_network": round(1 - together.network / together.wall, 3),
            "seconds_one_by_one": round(apart.wall, 1),
            "share_beside_network_one_by_one": round(1 - apart.network / apart.wall, 3),
            "one_by_one_over_together": round(apart.wall / together.wall, 2),
            "runs_that_differ": _differing(together.records, apart.records),
            "largest_difference_of_miou": _largest_difference(together.records, apart.records),
        }
        print("\n".join(f"{key:34} {value}" for key, value in row.items()), end="\n\n", flush=True)
        append_row(path, {**row, **origin})
    print(f"wrote {path}")


class _Tally:
    """Records, their wall time, and the part of it that was the network's."""

    def __init__(self) -> None:
        self.records: list[ObjectRecord] = []
        self.wall = 0.0

    def add(self, call: Callable[[], list[ObjectRecord]]) -> None:
        began = time.perf_counter()
        self.records += call()
        self.wall += time.perf_counter() - began

    @property
    def network(self) -> float:
        return sum(step.seconds or 0.0 for record in self.records for step in record.steps)


def _compare(
    model: Segmenter, samples: Sequence[Sample], protocol: Protocol, args: argparse.Namespace
) -> tuple[_Tally, _Tally]:
    """Evaluate each block of objects in both ways, in turns."""
    together, apart = _Tally(), _Tally()
    run_objects(model, samples[:1], protocol, device=args.device)  # warm
    for first in range(0, len(samples), args.objects_at_once):
        block = samples[first : first + args.objects_at_once]
        together.add(
            lambda block=block: run_objects(
                model, block, protocol, device=args.device, batch_size=args.batch_size
            )
        )
        apart.add(
            lambda block=block: [
                run_object(model, sample, protocol, trial=trial, device=args.device)
                for sample in block
                for trial in range(protocol.trials)
            ]
        )
    return together, apart


def _differing(first: Sequence[ObjectRecord], second: Sequence[ObjectRecord]) -> int:
    """Count the runs in which a click or an IoU is another."""
    pairs = zip(first, second, strict=True)
    return sum([s[:5] for s in a.steps] != [s[:5] for s in b.steps] for a, b in pairs)


def _largest_difference(first: Sequence[ObjectRecord], second: Sequence[ObjectRecord]) -> float:
    ious = [np.array([[s.iou for s in r.steps] for r in records]) for records in (first, second)]
    return float(np.abs(ious[0].mean(axis=0) - ious[1].mean(axis=0)).max())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", default="lite0_unet_prop", help="zoo model")
    add("--working-size", type=int, default=256, help="longest side the network works at")
    add("--protocols", nargs="+", default=["gabbur2021", "ritm"])
    add("--objects", type=int, default=50)
    add("--trials", type=int, default=5)
    add("--objects-at-once", type=int, default=16)
    add("--batch-size", type=int, default=8)
    add("--threads", type=int, default=2)
    add("--device", choices=["cpu", "cuda"], default="cpu")
    return parser


if __name__ == "__main__":
    main()
