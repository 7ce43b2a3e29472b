"""Photographs per minute and core of `probseg predict`, against a loop over the predictor.

`python benchmarks/predict.py` enlarges sample photographs, writes them as JPEG files with a click
and a box on an object of each, and in turns

- runs the command on the folder, from loading the network to the last mask file, in this process;
- lets a `Predictor` read each photograph, answer both prompts and save both masks.

It prints a row for each size and batch size:

- `per_minute_and_core`: photographs by minutes of processor time, of all threads;
- `ratio`: wall time of the loop by that of the command, the median of turns side by side;
- `mib`: peak memory of the command beyond that before it, which must not grow with the number of
  photographs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from itertools import count
from pathlib import Path

import numpy as np
import torch
from clicks import write_case
from measure import Row, interleave, provenance

import probseg
from probseg.cli import main as probseg_command
from probseg.geometry import mask_box
from probseg.lab.gauges import timed_with_peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--sizes", nargs="+", default=["640x480", "4000x3000"], help="W x H")
    parser.add_argument("--photographs", type=int, default=32)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    predictor = probseg.Predictor.from_pretrained(options.model, options.device)
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as place:
            prompts = write_folder(Path(place), size, options.photographs)
            for batch_size in options.batch_sizes:
                row = measured(Path(place), prompts, batch_size, predictor, options)
                row = {"model": options.model, "size": size, **row}
                print({**row, **provenance(options.device)}, flush=True)


Prompts = dict[str, list[dict[str, list[float]]]]


def write_folder(folder: Path, size: str, photographs: int) -> Prompts:
    """Write photographs and prompts, a click and a box on each; return the prompts."""
    prompts: Prompts = {}
    (folder / "photos").mkdir()
    width, height = map(int, size.split("x"))
    for number in range(photographs):
        case = write_case(folder / "photos", number, (width, height))
        click = list(map(float, case.clicks[0][:2]))
        prompts[case.path.name] = [
            {"clicks": [click]},
            {"box": [*map(float, mask_box(case.truth))]},
        ]
    (folder / "prompts.json").write_text(json.dumps(prompts))
    return prompts


def measured(
    folder: Path,
    prompts: Prompts,
    batch_size: int,
    predictor: probseg.Predictor,
    options: argparse.Namespace,
) -> Row:
    """Return the figures of a folder."""
    outputs = (folder / f"out{batch_size}_{turn}" for turn in count())
    processor_seconds: dict[str, list[float]] = {"predict": [], "loop": []}

    def predict() -> None:
        arguments = ["predict", folder / "photos", "--prompts", folder / "prompts.json"]
        arguments += ["--output", next(outputs), "--model", options.model]
        arguments += ["--batch-size", batch_size, "--workers", options.workers]
        arguments += ["--device", options.device]
        before = time.process_time()
        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            assert probseg_command([str(argument) for argument in arguments]) == 0
        processor_seconds["predict"].append(time.process_time() - before)

    def loop() -> None:
        output, before = next(outputs), time.process_time()
        for name, objects in prompts.items():
            predictor.set_image(folder / "photos" / name)
            for number, entry in enumerate(objects, start=1):
                predictor.reset()
                clicks = [(x, y) for x, y in entry.get("clicks", [])]
                mask = predictor.predict(clicks, box=entry.get("box"))
                mask.save(output / f"{Path(name).stem}_{number}.png")
        processor_seconds["loop"].append(time.process_time() - before)

    predict()  # caches of files and kernels
    _, peak = timed_with_peak(predict, options.device)
    turns = {"budget": 0, "minimum": options.turns, "maximum": options.turns}
    for seconds in processor_seconds.values():
        seconds.clear()
    seconds = interleave({"predict": predict, "loop": loop}, options.device, **turns)
    ratios = np.divide(seconds["loop"], seconds["predict"])
    row: Row = {"batch_size": batch_size, "workers": options.workers}
    row |= {"threads": options.threads, "photographs": len(prompts)}
    for name, taken in processor_seconds.items():
        column = "per_minute_and_core" if name == "predict" else "loop_per_minute_and_core"
        row[column] = round(60 * len(prompts) / float(np.median(taken)), 1)
    row["per_minute"] = round(60 * len(prompts) / float(np.median(seconds["predict"])), 1)
    return row | {
        "ratio": round(float(np.median(ratios)), 3),
        "ratio_low": round(float(ratios.min()), 3),
        "ratio_high": round(float(ratios.max()), 3),
        "mib": None if peak is None else round(peak),
    }


if __name__ == "__main__":
    main()
