"""What a training costs: images per second, waiting for data, and the tasks of the curriculum.

Lightning's trainer trains presets on photographs, once with the three tasks in turns, and once with
each number of workers. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import NamedTuple

import lightning as L
import torch
from data import training_set
from measure import RESULTS, Row, append_row, provenance

from probseg import create_model
from probseg.clicks.curriculum import STAGES, Curriculum, Stage
from probseg.data import InteractiveDataModule
from probseg.data.base import InteractiveDataset
from probseg.tasks import InteractiveSegmentation


class Case(NamedTuple):
    """A network and its batches."""

    preset: str
    crop: int
    batch_size: int


CASES = (Case("micro_csa", 144, 16), Case("resnet16_csa", 144, 16), Case("hrnet18_ocr_csa", 256, 4))


def main() -> None:
    """Measure the presets and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--presets", nargs="+", choices=[case.preset for case in CASES], help="all by default")
    add("--workers", nargs="+", type=int, default=[1, 2])
    add("--turns", type=int, default=12, help="steps of each task")
    add("--steps", type=int, default=30, help="steps with each number of workers")
    add("--threads", type=int, default=2)
    add("--precision", default="32-true")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", module="lightning")  # of few workers and few steps
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    path = RESULTS / f"train_{args.device}.csv"
    path.unlink(missing_ok=True)
    origin = provenance(args.device)
    with training_set() as (objects, kind):
        for case in CASES:
            if args.presets and case.preset not in args.presets:
                continue
            row: Row = {
                **case._asdict(),
                "data": kind,
                "device": args.device,
                "precision": args.precision,
                "threads": args.threads,
                **_tasks(case, objects, args),
            }
            for workers in args.workers:
                row |= _speed(case, objects, workers, args)
            print("\n".join(f"{key:34} {value}" for key, value in row.items()), end="\n\n")
            append_row(path, {**row, **origin})
    print(f"wrote {path}")


@dataclass(frozen=True)
class _Turns(Curriculum):
    """The curriculum with its tasks in turns, a step of each."""

    order: Iterator[Stage] = field(default_factory=lambda: cycle(STAGES))
    present: list[Stage] = field(default_factory=lambda: ["box"])

    def next_turn(self) -> Stage:
        self.present[0] = next(self.order)
        return self.present[0]

    def stage(self, epoch: int) -> Stage:
        return self.present[0]


class _Watch(L.Callback):
    """Notes when steps begin and end, and in which task."""

    def __init__(self) -> None:
        self.steps: list[tuple[Stage, float, float]] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        curriculum = pl_module.curriculum
        self._stage = curriculum.next_turn() if isinstance(curriculum, _Turns) else "box"
        self._began = _now(pl_module.device)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        self.steps.append((self._stage, self._began, _now(pl_module.device)))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _tasks(case: Case, objects: InteractiveDataset, args: argparse.Namespace) -> Row:
    """Compare steps of the three tasks, neighbours in time; the first turn warms up."""
    steps = len(STAGES) * (args.turns + 1)
    watched = _trained(case, objects, 0, steps, _Turns(), args)[len(STAGES) :]
    seconds = {name: [end - begin for of, begin, end in watched if of == name] for name in STAGES}
    row: Row = {"ms_box": round(1000 * min(seconds["box"]), 1)}
    for name in STAGES[1:]:
        turns = zip(seconds[name], seconds["box"], strict=True)
        row[f"{name}_over_box"] = round(min(seconds[name]) / min(seconds["box"]), 2)
        row[f"{name}_over_box_median"] = round(statistics.median(a / b for a, b in turns), 2)
    return row


def _speed(case: Case, objects: InteractiveDataset, workers: int, args: argparse.Namespace) -> Row:
    """Train on boxes, the cheapest task, for which data must come the fastest."""
    watched = _trained(case, objects, workers, args.steps + 1, Curriculum(), args)
    began, ended = watched[0][2], watched[-1][2]  # the first step warms up
    busy = sum(end - begin for _, begin, end in watched[1:])
    return {
        f"images_per_second_{workers}": round(case.batch_size * args.steps / (ended - began), 1),
        f"share_waiting_{workers}": round(1 - busy / (ended - began), 3),
    }


def _trained(
    case: Case,
    objects: InteractiveDataset,
    workers: int,
    steps: int,
    curriculum: Curriculum,
    args: argparse.Namespace,
) -> Sequence[tuple[Stage, float, float]]:
    """Train a fresh network for so many steps; return their task, beginning and end."""
    L.seed_everything(0, verbose=False)
    watch = _Watch()
    trainer = L.Trainer(
        accelerator="gpu" if args.device == "cuda" else "cpu",
        devices=1,
        precision=args.precision,
        max_steps=steps,
        callbacks=[watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    task = InteractiveSegmentation(create_model(case.preset), curriculum=curriculum)
    data = InteractiveDataModule(
        objects,
        batch_size=case.batch_size,
        crop_size=case.crop,
        num_workers=workers,
        samples_per_epoch=case.batch_size * steps,
    )
    trainer.fit(task, data)
    return watch.steps


if __name__ == "__main__":
    main()
