"""Clicks and encodings on a GPU, by the clock with all kernels finished; see benchmarks/README.md.

`python benchmarks/clicks_gpu.py` prints a row for the clicks of a `Predictor` without zoom and with
the recommended one, a row for each batch that is encoded, and a row for one encoding that is
replayed as a CUDA graph, with its ratio to the same encoding launched kernel by kernel.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from measure import Row, provenance

from probseg.data import SamplePhotos
from probseg.interact import RECOMMENDED_ZOOM, Predictor
from probseg.models import Segmenter
from probseg.types import Click
from probseg.zoo import create_interactive

TURNS = 10
CLICKS = (Click(320, 240, True), Click(330, 250, True), Click(100, 100, False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1, 16, 64], help="encoded at once"
    )
    options = parser.parse_args()
    device, model = options.device, create_interactive(options.model, pretrained=True)
    for zoom in (None, RECOMMENDED_ZOOM):
        show({"zoom": zoom or "none", **clicks(Predictor(model, device, zoom))})
    model = Predictor(model, device).model
    for batch in options.batches:
        for dtype in (torch.float32, torch.bfloat16):
            seconds = encoding(model, batch, dtype, device)
            show({"encoded": batch, "dtype": str(dtype), "ms": round(1000 * seconds, 2)})
    if device == "cuda":
        launched, replayed = graph(model)
        ratio = round(replayed / launched, 2)
        show({"encoded": 1, "graph_ms": round(1000 * replayed, 2), "ratio_to_launched": ratio})
    print(provenance(device))


def show(row: Row) -> None:
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def finished(device: str) -> float:
    """Wait for all kernels; return the clock in seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def clicks(predictor: Predictor) -> Row:
    """Return the median milliseconds of `set_image`, of a first and of further clicks."""
    photo, device = SamplePhotos()[0].image, predictor.device.type
    turns = []
    for _ in range(TURNS + 2):  # the first two warm up
        times = [finished(device)]
        predictor.set_image(photo)
        times.append(finished(device))
        for click in CLICKS:
            predictor.predict([click])
            times.append(finished(device))
        turns.append([1000 * (end - begin) for begin, end in pairwise(times)])
    setting, first, *further = zip(*turns[2:], strict=True)
    return {
        "set_image_ms": round(statistics.median(setting), 2),
        "first_click_ms": round(statistics.median(first), 2),
        "next_click_ms": round(statistics.median(sum(further, start=())), 2),
    }


def encoding(model: Segmenter, batch: int, dtype: torch.dtype, device: str) -> float:
    """Return the seconds of encoding so many squares of the working size."""
    images = squares(model, batch, device)
    half = torch.autocast(device, dtype, enabled=dtype != torch.float32)
    with torch.inference_mode(), half:
        return repeated(lambda: model.encode(images), device)


def graph(model: Segmenter) -> tuple[float, float]:
    """Return the seconds of one encoding, launched and replayed as a CUDA graph."""
    images = squares(model, 1, "cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):  # memory that a capture needs is taken on another stream
            launched = repeated(lambda: model.encode(images), "cuda")
        with torch.cuda.graph(captured):
            model.encode(images)
    return launched, repeated(captured.replay, "cuda")


def squares(model: Segmenter, batch: int, device: str) -> torch.Tensor:
    side = model.working_size or 512
    images = torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
    return images.to(device, memory_format=torch.channels_last)


def repeated(call: Callable[[], object], device: str) -> float:
    """Return the mean seconds of `TURNS` calls in a row, after three that warm up."""
    for _ in range(3):
        call()
    began = finished(device)
    for _ in range(TURNS):
        call()
    return (finished(device) - began) / TURNS


if __name__ == "__main__":
    main()
