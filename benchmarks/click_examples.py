"""Click examples per second of one thread: what a training step teaches, side by side.

A click example is an answer to prompts that has a loss and a gradient. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from unittest.mock import PropertyMock, patch

import torch
from measure import RESULTS, Row, append_row, interleave, provenance

from probseg.clicks import IteratedClicks
from probseg.data.datamodule import TrainBatch
from probseg.models import build, read_preset
from probseg.tasks import InteractiveSegmentation

FROZEN = (
    "backbone.network.conv_stem.*",
    "backbone.network.bn1.*",
    "backbone.network.blocks.[01].*",
)
ROUNDS = 3


def main() -> None:
    """Measure both ways to train and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crop", type=int, default=256, help="side in pixels")
    parser.add_argument("--batch", type=int, default=12, help="crops per step")
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="lightning")
    batch = _batch(args.crop, args.batch)
    # Rounds of clicks of which the last is trained, as published, against all of them.
    tasks = {
        "resnet26_small_clicks, last round": _task("resnet26_small_clicks", every_round=False),
        "lite0_unet_prop, last round": _task("lite0_unet_prop", every_round=False),
        "lite0_unet_prop, every round": _task("lite0_unet_prop", every_round=True),
        "lite0_unet_prop, every round, front frozen": _task(
            "lite0_unet_prop", every_round=True, frozen=FROZEN, fixed_statistics=True
        ),
        "the same, two annotators": _task(
            "lite0_unet_prop", every_round=True, frozen=FROZEN, fixed_statistics=True, annotators=2
        ),
        "the same, three annotators": _task(
            "lite0_unet_prop", every_round=True, frozen=FROZEN, fixed_statistics=True, annotators=3
        ),
    }
    halves = {"the same, in bfloat16": tasks["the same, three annotators"]}
    path = RESULTS / "click_examples_cpu.csv"
    path.unlink(missing_ok=True)
    calls = {name: (lambda task=task: _step(task, batch)) for name, task in tasks.items()}
    for name, task in halves.items():
        calls[name] = lambda task=task: _step(task, batch, half=True)
    tasks |= halves
    for call in calls.values():
        call()  # warms up
    seconds = interleave(calls, "cpu", budget=args.seconds, minimum=3)
    base = 0.0
    for name, task in tasks.items():
        answers = (ROUNDS + 1 if task.every_round else 1) * task.annotators * args.batch
        rate = answers / statistics.median(seconds[name])
        base = base or rate
        row: Row = {
            "training": name,
            "crop": args.crop,
            "examples_per_step": answers,
            "examples_per_second": round(rate, 1),
            "ratio": round(rate / base, 2),
        }
        print("  ".join(f"{key} {value}" for key, value in row.items()))
        append_row(path, {**row, **provenance("cpu")})
    print(f"wrote {path}")


def _task(preset: str, every_round: bool, **options: object) -> InteractiveSegmentation:
    clicks = IteratedClicks(most_clicks=8, decay=0.7, fewest_rounds=ROUNDS, most_rounds=ROUNDS)
    task = InteractiveSegmentation(
        build(read_preset(preset)),
        curriculum=clicks,
        every_round=every_round,
        **options,  # type: ignore[arg-type]
    )
    task.setup("fit")
    return task


def _batch(crop: int, size: int) -> TrainBatch:
    torch.manual_seed(0)
    masks = torch.zeros(size, crop, crop, dtype=torch.uint8)
    masks[:, crop // 4 : 3 * crop // 4, crop // 3 : 3 * crop // 4] = 1
    images = torch.randint(0, 256, (size, 3, crop, crop), dtype=torch.uint8)
    return TrainBatch(images, masks, torch.arange(size), ["object"] * size, [])


def _step(task: InteractiveSegmentation, batch: TrainBatch, half: bool = False) -> None:
    epoch = patch.object(type(task), "current_epoch", PropertyMock(return_value=0))
    precision = torch.autocast("cpu", torch.bfloat16, enabled=half)
    with epoch, precision, patch.object(task, "log"):
        loss = task.training_step(batch, 0)["loss"]
    assert isinstance(loss, torch.Tensor), "a step returns its loss"
    loss.backward()  # type: ignore[no-untyped-call]
    task.zero_grad()


if __name__ == "__main__":
    main()
