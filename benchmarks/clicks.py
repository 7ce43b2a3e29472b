"""Clicks on photographs of several sizes, and encodings, on a CPU or a GPU.

`python benchmarks/clicks.py` sets photographs, clicks on the middle of an object, then twice more
on it and once off it, sizes in turns, and prints a row for each size: median milliseconds (of
processor time on a CPU, by the clock on a GPU) and their ratios to the smallest size. `mask` is the
array of all pixels, which is computed when it is asked for. `agreement` is the mean IoU of the
masks with those of the same clicks on the photograph at full size.

With `--encodings`, it prints a row for each batch that is encoded, and on a GPU one for an encoding
that is replayed as a CUDA graph, in turns with the same launched kernel by kernel.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from measure import Row, interleave, provenance
from PIL import Image

from probseg.data import SamplePhotos
from probseg.interact import RECOMMENDED_ZOOM, ZOOMS, Predictor, begin, image_tensor
from probseg.interact.session import build_loop
from probseg.lab.gauges import Call
from probseg.metrics import iou
from probseg.models import Segmenter
from probseg.types import Click

SIZES = ((640, 480), (4000, 3000), (8000, 6000))
COLUMNS = ("set_image", "first_click", "next_click", "mask")


class Case(NamedTuple):
    """A JPEG file, an object `(H, W)` on it, and clicks: three on the object, one off it."""

    path: Path
    truth: np.ndarray
    clicks: tuple[Click, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--zoom", choices=("none", *ZOOMS), default=RECOMMENDED_ZOOM)
    parser.add_argument("--turns", type=int, default=6, help="photographs of each size")
    parser.add_argument("--agreement", type=int, default=4, help="photographs at full size too")
    parser.add_argument("--encodings", type=int, nargs="*", default=[], help="batches: 1 16 64")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    zoom = None if options.zoom == "none" else options.zoom
    predictor = Predictor.from_pretrained(options.model, options.device, zoom=zoom)
    for row in encodings(predictor.model, options.encodings, options.device):
        print(row, flush=True)
    with tempfile.TemporaryDirectory() as place:
        cases = [
            write_case(Path(place), turn, size) for turn in range(options.turns) for size in SIZES
        ]
        answer(predictor, cases[0])  # caches of kernels
        seconds = np.array([answer(predictor, case) for case in cases])
        medians = np.median(seconds.reshape(options.turns, len(SIZES), -1), axis=0)
        for n, (width, height) in enumerate(SIZES):
            row: Row = {"megapixels": round(width * height / 1e6, 1), "zoom": options.zoom}
            for column, of_size, smallest in zip(COLUMNS, medians[n], medians[0], strict=True):
                row[f"{column}_ms"] = round(float(1000 * of_size), 1)
                row[f"{column}_ratio"] = round(float(of_size / smallest), 2)
            at_full_size = cases[n :: len(SIZES)][: options.agreement]
            alike = [agreement(predictor, case, zoom) for case in at_full_size]
            row["agreement"] = round(float(np.mean(alike)), 4) if alike else None
            print({**row, "model": options.model, **provenance(options.device)}, flush=True)


def write_case(folder: Path, number: int, size: tuple[int, int]) -> Case:
    """Enlarge a sample photograph, and write it."""
    photos = SamplePhotos()
    sample = photos[number % len(photos)]
    path = folder / f"{number}_{size[0]}.jpg"
    picture = cv2.resize(sample.image, size, interpolation=cv2.INTER_CUBIC)
    Image.fromarray(picture).save(path, quality=92)
    truth = cv2.resize(np.uint8(sample.mask == 1), size, interpolation=cv2.INTER_NEAREST) > 0
    small = cv2.resize(np.uint8(truth), None, fx=0.25, fy=0.25, interpolation=cv2.INTER_NEAREST)
    clicks = []  # deep inside of the object, each far from those before, and one outside
    for positive in (True, True, True, False):
        depth = cv2.distanceTransform(np.pad(small if positive else 1 - small, 1), cv2.DIST_L2, 5)
        y, x = np.unravel_index(int(depth[1:-1, 1:-1].argmax()), small.shape)
        clicks.append(Click(4.0 * x, 4.0 * y, positive))
        cv2.circle(small, (int(x), int(y)), max(3, min(small.shape) // 30), 0, cv2.FILLED)
    return Case(path, truth, tuple(clicks))


def answer(predictor: Predictor, case: Case) -> list[float]:
    """Return the seconds of `COLUMNS`; of the further clicks, the median."""

    def now() -> float:
        if predictor.device.type == "cpu":
            return time.process_time()  # which other programs disturb less
        torch.cuda.synchronize()
        return time.perf_counter()

    began = [now()]
    predictor.set_image(case.path)
    began.append(now())
    for click in case.clicks:
        mask = predictor.predict([click])
        began.append(now())
    mask.binary  # noqa: B018 (computes it)
    began.append(now())
    setting, first, *further, full = np.diff(began)
    return [setting, first, float(np.median(further)), full]


def agreement(predictor: Predictor, case: Case, zoom: str | None) -> float:
    """Return the IoU of the mask with that of the same clicks at full size."""
    predictor.set_image(case.path)
    for click in case.clicks:
        mask = predictor.predict([click]).binary
    state = begin(image_tensor(np.array(Image.open(case.path))).to(predictor.device))
    loop = build_loop(predictor.model, zoom)
    for click in case.clicks:
        (state,) = loop.step([state], [click])
    return iou(mask, state.probability > 0.5)


@torch.inference_mode()
def encodings(model: Segmenter, batches: list[int], device: str) -> list[Row]:
    """Return the milliseconds of encoding squares of the working size, and of a CUDA graph."""
    side = model.working_size or 512
    rows: list[Row] = []
    for batch in batches:
        images = torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
        images = images.to(device, memory_format=torch.channels_last)
        for dtype in (torch.float32, torch.bfloat16):
            with torch.autocast(device, dtype, enabled=dtype != torch.float32):
                ms = milliseconds({"encode": lambda images=images: model.encode(images)}, device)
            rows.append({"encoded": batch, "dtype": str(dtype), "ms": ms["encode"]})
    if batches and device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):  # libraries take memory before the capture
            model.encode(images[:1])
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            model.encode(images[:1])
        calls = {"launched": lambda: model.encode(images[:1]), "replayed": graph.replay}
        rows.append({"encoded": 1, **milliseconds(calls, device)})
    return rows


def milliseconds(calls: dict[str, Call], device: str) -> Row:
    """Return the medians of calls in turns, after three turns that warm up."""
    seconds = interleave(calls, device, budget=0, minimum=13)
    return {name: round(1000 * statistics.median(ran[3:]), 2) for name, ran in seconds.items()}


if __name__ == "__main__":
    main()
