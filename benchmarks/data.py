"""What reading and augmenting training crops costs, in all and stage by stage.

Objects of 256 pixels go through the training loader of `InteractiveDataModule`, in the main process
or in workers, and their boxes and clicks are drawn as in a training step. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import cv2
import torch
from measure import RESULTS, Row, append_row, provenance
from training_data import training_set

from probseg import create_model
from probseg.data import InteractiveDataModule, transforms
from probseg.data.base import InteractiveDataset
from probseg.data.datamodule import TrainBatch
from probseg.tasks import InteractiveSegmentation

STAGES = (
    "decode image",
    "read mask",
    "find object",
    "crop and scale",
    "look",
    "collate",
    "prompts",
)


def main() -> None:
    """Measure each data set with each number of workers, and write a row for each."""
    args = _parser().parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    task = InteractiveSegmentation(create_model("micro_csa"))
    path = RESULTS / "data_cpu.csv"
    path.unlink(missing_ok=True)
    origin = provenance("cpu")
    for name in args.sets:
        with training_set(name) as (objects, kind):
            for workers in args.workers:
                row: Row = {
                    "data": f"{name} ({kind})",
                    "crop": args.crop,
                    "batch_size": args.batch_size,
                    "workers": workers,
                    **_loaded(objects, task, workers, args),
                    **(_stages(objects, task, args) if workers == 0 else dict.fromkeys(_columns())),
                }
                print(", ".join(f"{k} {v}" for k, v in row.items() if v is not None), flush=True)
                append_row(path, {**row, **origin})
    print(f"wrote {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--sets", nargs="+", choices=["BSDS500", "objects"], default=["BSDS500", "objects"])
    add("--workers", nargs="+", type=int, default=[0, 1, 2])
    add("--images", type=int, default=1600, help="crops for each row")
    add("--crop", type=int, default=256)
    add("--batch-size", type=int, default=16)
    return parser


def _loaded(
    objects: InteractiveDataset,
    task: InteractiveSegmentation,
    workers: int,
    args: argparse.Namespace,
) -> Row:
    """Take an epoch of crops with prompts; the start of the workers does not count."""
    cpu = _cpu_seconds()
    loader = _data(objects, workers, args).train_dataloader()
    batches = iter(loader)
    _draw(task, next(batches))
    began, images = time.perf_counter(), 0
    for batch in batches:
        _draw(task, batch)
        images += len(batch.images)
    seconds = time.perf_counter() - began
    del loader, batches  # the workers end, and only then count as children
    cpu = _cpu_seconds() - cpu
    return {
        "images": images,
        "images_per_second": round(images / seconds, 1),
        "cpu_ms": round(1000 * cpu / (images + args.batch_size), 2),
    }


def _stages(
    objects: InteractiveDataset, task: InteractiveSegmentation, args: argparse.Namespace
) -> Row:
    """Watch the functions of the pipeline at work, in the main process."""
    data = _data(objects, 0, args)
    loader = data.train_dataloader()
    clock = _Clock()
    module = sys.modules[type(objects).__module__]
    read_mask = "read_object" if hasattr(module, "read_object") else "read_labels"
    with ExitStack() as stack:
        for owner, name, stage in (
            (module, "read_image", "decode image"),
            (module, read_mask, "read mask"),
            (type(objects), "__getitem__", "find object"),
            (transforms.TrainingCrop, "cut", "crop and scale"),
            (transforms.PhotometricAugmentation, "__call__", "look"),
            (loader, "collate_fn", "collate"),
        ):
            stack.enter_context(clock.watching(owner, name, stage))
        began, images = time.process_time(), 0
        for batch in loader:
            with clock.stage("prompts"):
                _draw(task, batch)
            images += len(batch.images)
        whole = time.process_time() - began
    spent = {stage: clock.seconds[stage] for stage in STAGES}
    seconds = [*spent.values(), whole - sum(spent.values())]
    return {
        column: round(1000 * value / images, 3)
        for column, value in zip(_columns(), seconds, strict=True)
    }


def _columns() -> list[str]:
    return [f"cpu_ms_{stage.replace(' ', '_')}" for stage in (*STAGES, "rest")]


class _Clock:
    """Gives the processor time of this process to the innermost stage that is open."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def watching(self, owner: Any, name: str, stage: str) -> Any:  # noqa: ANN401
        """Patch a function so that its calls belong to a stage."""
        original: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            with self.stage(stage):
                return original(*args, **kwargs)

        return patch.object(owner, name, watched)

    def _turn(self) -> None:
        now = time.process_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def _data(
    objects: InteractiveDataset, workers: int, args: argparse.Namespace
) -> InteractiveDataModule:
    return InteractiveDataModule(
        objects,
        batch_size=args.batch_size,
        crop_size=args.crop,
        num_workers=workers,
        samples_per_epoch=args.images,
    )


def _draw(task: InteractiveSegmentation, batch: TrainBatch) -> None:
    """Draw boxes with noise, and random clicks: the second task of the curriculum."""
    epoch = task.curriculum.box_epochs
    images = batch.images.float() / 255
    task.draw_prompts(images, batch.masks, batch.seeds, epoch=epoch, batch_seed=0)


def _cpu_seconds() -> float:
    """Return the processor time of this process and of its workers that have ended."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    main()
