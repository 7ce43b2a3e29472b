"""What reading and augmenting training crops costs; see benchmarks/README.md.

Crops go through the training loader, in the main process or in workers, and their boxes and clicks
are drawn as in a training step. `--size` measures the reading of photographs of that size instead.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import torch
from measure import RESULTS, Row, append_row, provenance
from PIL import Image

from probseg import create_model
from probseg.data import ImageMaskFolder, InteractiveDataModule
from probseg.data.base import InteractiveDataset
from probseg.data.datamodule import TrainBatch
from probseg.errors import DatasetNotFoundError
from probseg.tasks import InteractiveSegmentation

SIZE = (321, 480)  # height and width of the drawn photographs, those of BSDS500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=1600, help="crops for each row")
    parser.add_argument("--crop", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument(
        "--size", nargs=2, type=int, metavar=("H", "W"), help="of photographs, against 480 x 640"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    if args.size:
        for size in ((480, 640), tuple(args.size)):
            print(f"{size[1]} x {size[0]}, ms of a crop in each epoch:", *readings(size, args))
        return
    task = InteractiveSegmentation(create_model("micro_csa"))
    path = RESULTS / "data_cpu.csv"
    path.unlink(missing_ok=True)
    with training_set() as (objects, kind):
        for workers in args.workers:
            row: Row = {"data": f"objects ({kind})", "crop": args.crop}
            row |= {"batch_size": args.batch_size, "workers": workers}
            row |= epoch(objects, task, workers, args)
            print(row, flush=True)
            append_row(path, {**row, **provenance("cpu")})


def epoch(
    objects: InteractiveDataset,
    task: InteractiveSegmentation,
    workers: int,
    args: argparse.Namespace,
) -> Row:
    """Take an epoch of crops with prompts; the start of the workers does not count."""

    def draw(batch: TrainBatch) -> None:  # random clicks: the second task of the curriculum
        second, images = task.curriculum.box_epochs, batch.images.float() / 255
        task.draw_prompts(images, batch.masks, batch.seeds, epoch=second, batch_seed=0)

    cpu = sum(os.times()[:4])  # of this process, and of its workers that have ended
    loader = InteractiveDataModule(
        objects,
        batch_size=args.batch_size,
        crop_size=args.crop,
        num_workers=workers,
        samples_per_epoch=args.images,
    ).train_dataloader()
    batches = iter(loader)
    draw(next(batches))
    began, images = time.perf_counter(), 0
    for batch in batches:
        draw(batch)
        images += len(batch.images)
    seconds = time.perf_counter() - began
    del loader, batches  # the workers end, and only then count as children
    cpu = sum(os.times()[:4]) - cpu
    return {
        "images": images,
        "images_per_second": round(images / seconds, 1),
        "cpu_ms": round(1000 * cpu / (images + args.batch_size), 2),
    }


def readings(size: tuple[int, int], args: argparse.Namespace, photographs: int = 8) -> list[str]:
    """Take three epochs of all objects, and return milliseconds of processor time per crop."""
    with TemporaryDirectory() as place:
        draw_folder(Path(place), photographs, size)
        objects = ImageMaskFolder(place)
        loader = InteractiveDataModule(
            objects, batch_size=1, crop_size=args.crop, num_workers=0
        ).train_dataloader()
        times = []
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            began = time.process_time()
            crops = sum(len(batch.images) for batch in loader)
            times.append(f"{1000 * (time.process_time() - began) / crops:.1f}")
    return times


@contextmanager
def training_set(photographs: int = 200) -> Iterator[tuple[InteractiveDataset, str]]:
    """Open the folder `objects` in `$PROBSEG_DATA`, "real", or a folder of photographs, "drawn"."""
    with TemporaryDirectory() as place:
        try:
            yield ImageMaskFolder("objects", name="objects"), "real"
        except DatasetNotFoundError:
            draw_folder(Path(place), photographs, SIZE)
            yield ImageMaskFolder(place, name="objects"), "drawn"


def draw_folder(folder: Path, photographs: int, size: tuple[int, int]) -> None:
    """Draw photographs of four ellipses on a textured ground, as rough as photographs are."""
    for part in ("images", "masks"):
        (folder / part).mkdir()
    height, width = size
    for number in range(photographs):
        random = np.random.default_rng(number)
        texture = sum(
            cv2.resize(random.normal(0, 20, (height // s, width // s, 3)), (width, height))
            for s in (2, 8, 32)
        )
        labels = np.zeros(size, np.uint8)
        for key in range(1, 5):
            centre = (int(random.integers(width)), int(random.integers(height)))
            axes = (int(random.integers(20, 90)), int(random.integers(20, 90)))
            axes = (axes[0] * width // SIZE[1], axes[1] * width // SIZE[1])
            cv2.ellipse(labels, centre, axes, 0, 0, 360, key, thickness=-1)
        image = np.clip(random.integers(50, 200, (5, 3))[labels] + texture, 0, 255)
        name = f"{number:04d}"
        Image.fromarray(image.astype(np.uint8)).save(folder / f"images/{name}.jpg", quality=88)
        Image.fromarray(labels).save(folder / f"masks/{name}.png")


if __name__ == "__main__":
    main()
