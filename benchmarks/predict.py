"""Photographs per second of `probseg predict`, against the network alone on ready batches.

`python benchmarks/predict.py` writes photographs of 640 x 480 pixels and a click on each into a
folder, and in turns

- runs the command on it, from loading the network to the last mask file, in this process;
- calls the network on the same pixels and clicks, in batches that are in memory.

It prints a row for each batch size; `ratio` is the time of the command in multiples of the
network's, the median of turns side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from itertools import count
from pathlib import Path

import cv2
import numpy as np
import torch
from measure import Row, interleave, provenance
from PIL import Image
from torch import Tensor

import probseg
from probseg.cli import main as probseg_command
from probseg.data import SamplePhotos
from probseg.types import Prompts

SIZE = (640, 480)
CLICK = (320.0, 240.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--photographs", type=int, default=64)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    network = probseg.create_model(options.model, pretrained=True)
    network = network.to(options.device).to(memory_format=torch.channels_last)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pixels = write_folder(folder, options.photographs)
        for batch_size in options.batch_sizes:
            outputs = (folder / f"out{batch_size}_{turn}" for turn in count())

            def predict(batch_size: int = batch_size, outputs=outputs) -> None:  # noqa: ANN001
                arguments = ["predict", folder / "photos", "--prompts", folder / "prompts.json"]
                arguments += ["--output", next(outputs), "--model", options.model]
                arguments += ["--batch-size", batch_size, "--workers", options.workers]
                arguments += ["--device", options.device]
                with contextlib.redirect_stdout(io.StringIO()):
                    assert probseg_command([str(argument) for argument in arguments]) == 0

            batches = ready_batches(pixels, batch_size, options.device)

            @torch.inference_mode()
            def alone(batches: list[tuple[Tensor, Prompts]] = batches) -> None:
                for images, prompts in batches:
                    network(images, prompts)

            calls = {"predict": predict, "network": alone}
            for call in calls.values():
                call()  # caches of files and kernels
            seconds = interleave(
                calls, options.device, budget=0, minimum=options.turns, maximum=options.turns
            )
            ratios = np.divide(seconds["predict"], seconds["network"])
            row: Row = {"model": options.model, "batch_size": batch_size}
            row |= {"workers": options.workers, "photographs": options.photographs}
            for name, taken in seconds.items():
                row[f"{name}_per_second"] = round(options.photographs / float(np.median(taken)), 2)
            row |= {
                "ratio": round(float(np.median(ratios)), 3),
                "ratio_low": round(float(ratios.min()), 3),
                "ratio_high": round(float(ratios.max()), 3),
            }
            print({**row, **provenance(options.device)}, flush=True)


def write_folder(folder: Path, photographs: int) -> list[Tensor]:
    """Write photographs and prompts; return the pixels as they are read, `(3, H, W)`."""
    photos = SamplePhotos()
    (folder / "photos").mkdir()
    pixels, prompts = [], {}
    for number in range(photographs):
        image = cv2.resize(photos[number % len(photos)].image, SIZE)
        path = folder / "photos" / f"{number:04d}.jpg"
        Image.fromarray(image).save(path, quality=92)
        pixels.append(torch.tensor(np.array(Image.open(path))).permute(2, 0, 1).float() / 255)
        prompts[path.name] = [{"clicks": [CLICK]}]
    (folder / "prompts.json").write_text(json.dumps(prompts))
    return pixels


def ready_batches(
    pixels: list[Tensor], batch_size: int, device: str
) -> list[tuple[Tensor, Prompts]]:
    """Return images `(B, 3, H, W)` with a click on each, on the device."""
    found = []
    for first in range(0, len(pixels), batch_size):
        images = torch.stack(pixels[first : first + batch_size]).to(device)
        points = torch.tensor([[CLICK]], device=device).expand(len(images), 1, 2)
        labels = torch.ones(len(images), 1, dtype=torch.long, device=device)
        boxes = torch.full((len(images), 4), float("nan"), device=device)
        found.append((images, Prompts(points, labels, boxes)))
    return found


if __name__ == "__main__":
    main()
