"""Clicks and encodings on a GPU, by the clock with all kernels finished; see benchmarks/README.md.

`python benchmarks/clicks_gpu.py` prints a row for the clicks of a `Predictor` without zoom and with
the recommended one, a row for each batch that is encoded, and a row for one encoding that is
replayed as a CUDA graph, in turns with the same encoding launched kernel by kernel.
"""

from __future__ import annotations

import argparse
import statistics

import cv2
import torch
from measure import Row, interleave, provenance

from probseg.data import SamplePhotos
from probseg.interact import RECOMMENDED_ZOOM, Predictor
from probseg.lab.gauges import Call, timed
from probseg.models import Segmenter
from probseg.types import Click
from probseg.zoo import create_interactive

TURNS = 10
SIZE = (640, 480)
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
            ms = encoding(model, batch, dtype, device)
            show({"encoded": batch, "dtype": str(dtype), "ms": ms})
    if device == "cuda":
        show({"encoded": 1, **graph(model)})
    print(provenance(device))


def show(row: Row) -> None:
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def clicks(predictor: Predictor) -> Row:
    """Return the median milliseconds of `set_image`, of a first and of further clicks."""
    photo, device = cv2.resize(SamplePhotos()[0].image, SIZE), predictor.device.type
    calls: list[Call] = [lambda: predictor.set_image(photo)]
    calls += [lambda click=click: predictor.predict([click]) for click in CLICKS]  # type: ignore[misc]
    turns = [[timed(call, device) for call in calls] for _ in range(TURNS + 2)]
    setting, first, *further = zip(*turns[2:], strict=True)  # the first two warm up
    return {
        "set_image_ms": median_ms(setting),
        "first_click_ms": median_ms(first),
        "next_click_ms": median_ms(sum(further, start=())),
    }


def encoding(model: Segmenter, batch: int, dtype: torch.dtype, device: str) -> float:
    """Return the median milliseconds of encoding so many squares of the working size."""
    images = squares(model, batch, device)
    half = torch.autocast(device, dtype, enabled=dtype != torch.float32)
    with torch.inference_mode(), half:
        return measured({"encoding": lambda: model.encode(images)}, device)["encoding"]


def graph(model: Segmenter) -> Row:
    """Return the milliseconds of one encoding as a CUDA graph, over the same one launched."""
    images = squares(model, 1, "cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):  # where libraries take their memory before the capture
            model.encode(images)
        torch.cuda.synchronize()
        with torch.cuda.graph(captured):
            model.encode(images)
        calls: dict[str, Call] = {
            "launched": lambda: model.encode(images),
            "replayed": captured.replay,
        }
        ms = measured(calls, "cuda")
    return {
        "graph_ms": ms["replayed"],
        "ratio_to_launched": round(ms["replayed"] / ms["launched"], 2),
    }


def squares(model: Segmenter, batch: int, device: str) -> torch.Tensor:
    side = model.working_size or 512
    images = torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
    return images.to(device, memory_format=torch.channels_last)


def measured(calls: dict[str, Call], device: str) -> dict[str, float]:
    """Return the median milliseconds of calls in turns, after three turns that warm up."""
    seconds = interleave(calls, device, budget=0, minimum=TURNS + 3)
    return {name: median_ms(ran[3:]) for name, ran in seconds.items()}


def median_ms(seconds: list[float] | tuple[float, ...]) -> float:
    return round(1000 * statistics.median(seconds), 2)


if __name__ == "__main__":
    main()
