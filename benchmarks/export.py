"""A further click by ONNX Runtime and by PyTorch, and the masks of both on photographs.

`python benchmarks/export.py` exports models of the zoo, asks ONNX Runtime and PyTorch in turns
for another click on the same photograph with the same number of threads, and compares their masks
on all photographs of GrabCut: the box around the object with a click on its middle, and then one on
a corner of the box. Results go to `benchmarks/results/export_cpu.csv`.

- `graph_ratio`: median of the ratios of turns of the graph of a click alone, PyTorch by ONNX
  Runtime;
- `encode_ratio`: the same of the graph that encodes an image, where there is one;
- `click_ratio`: that of a whole click, from the image's own size to a probability at that size;
- `differing`: pixels that one calls object and the other background; `undecided`: those of them
  with a probability within 1e-4 of the threshold;
- `iou`: mean IoU of ONNX Runtime's masks;
- `zoom_ratio`: that of a whole click with the zoom, the third on the photograph; `opening_ms`:
  processor time of the runner's `set_image` with a photograph of 12 megapixels.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measure import RESULTS, Row, append_row, interleave, provenance
from PIL import Image
from skimage.data import coffee

import probseg
from probseg.data import GrabCut
from probseg.export import Runner, export_model
from probseg.geometry import mask_box
from probseg.lab.gauges import Call
from probseg.metrics import iou
from probseg.models import Encoded
from probseg.types import Prompts

Seconds = dict[str, list[float]]

NEAR = 1e-4
"""Probabilities so near to the threshold are undecided."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["lite2_unet_prop", "lite0_unet_prop"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of each comparison")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.models:
        row = measured(name, options.threads, options.budget)
        print(row)
        append_row(RESULTS / "export_cpu.csv", {**row, **provenance("cpu")})


def measured(name: str, threads: int, budget: float) -> Row:
    """Export a model and compare it."""
    model = probseg.create_model(name, pretrained=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "graphs"
        parity = export_model(model, folder)
        runner = Runner(folder, threads, zoom=False)
        megabytes = sum(file.stat().st_size for file in folder.glob("*.onnx")) / 1e6
        zoomed = Runner(folder, threads)
    predictor = probseg.Predictor(model, zoom=None)
    compared = masks(predictor, runner)
    encode, graph, click = times(predictor, runner, budget)
    third, opening = zoomed_times(probseg.Predictor(model), zoomed, budget)
    return {
        "model": name,
        "threads": threads,
        "megabytes": round(megabytes, 2),
        "logit_difference": parity.logit_difference,
        **compared,
        "encode_torch_ms": round(1e3 * median(encode["torch"]), 2) if encode else None,
        "encode_ratio": round(ratio(encode), 2) if encode else None,
        "graph_torch_ms": round(1e3 * median(graph["torch"]), 2),
        "graph_ratio": round(ratio(graph), 2),
        "click_torch_ms": round(1e3 * median(click["torch"]), 2),
        "click_ratio": round(ratio(click), 2),
        "zoom_torch_ms": round(1e3 * median(third["torch"]), 2),
        "zoom_ratio": round(ratio(third), 2),
        "opening_ms": round(1e3 * opening, 1),
    }


def ratio(seconds: Seconds) -> float:
    """Return by how much ONNX Runtime is faster, above 1, or slower."""
    pairs = zip(seconds["torch"], seconds["onnx"], strict=True)
    return median(one / other for one, other in pairs)


def masks(predictor: probseg.Predictor, runner: Runner) -> Row:
    """Compare the masks of all photographs."""
    pixels = differing = undecided = 0
    ious = []
    for sample in GrabCut():
        for answering in (predictor, runner):
            answering.set_image(sample.image)
        x0, y0, x1, y1 = box = mask_box(sample.mask)
        middle, corner = ((x0 + x1) // 2, (y0 + y1) // 2), (x0, y0)
        for x, y, positive, drawn in ((*middle, True, box), (*corner, False, None)):
            click = probseg.Click(x, y, positive)
            answer = predictor.predict([click], drawn)
            mask = runner.predict([click], drawn) > 0.5
            differs = answer.binary != mask
            pixels += differs.size
            differing += int(differs.sum())
            undecided += int((differs & (np.abs(answer.probability - 0.5) < NEAR)).sum())
            ious.append(iou(mask, sample.mask))
    mean = round(float(np.mean(ious)), 4)
    return {"pixels": pixels, "differing": differing, "undecided": undecided, "iou": mean}


def times(
    predictor: probseg.Predictor, runner: Runner, budget: float
) -> tuple[Seconds, Seconds, Seconds]:
    """Time an encoding (nothing without such a graph), the graph of a click, and all of a click."""
    image = GrabCut()[0].image
    height, width = image.shape[:2]
    places = [(width * share, height / 2, True) for share in (0.3, 0.5, 0.7)]
    predictor.set_image(image)
    runner.set_image(image)
    predictor.predict([probseg.Click(*place) for place in places])
    runner.predict(places)
    assert runner.answer is not None, "just given"
    feed = runner.answer.feed
    last = list(runner.graphs)[-1]
    prompts = Prompts(*(torch.from_numpy(feed[key]) for key in ("points", "labels", "box")))
    if "previous" in feed:
        prompts = prompts._replace(previous=torch.from_numpy(feed["previous"]))
    model = predictor.model

    @torch.inference_mode()
    def by_torch() -> None:
        model.decode(encoded, prompts)

    with torch.inference_mode():
        pixels = torch.tensor(feed["image"]).to(memory_format=torch.channels_last)
        size = (pixels.shape[2], pixels.shape[3])
        encoded = Encoded(size, size, pixels, model.image_features(pixels))

    def in_turns(torch_call: Call, onnx_call: Call) -> Seconds:
        calls = {"torch": torch_call, "onnx": onnx_call}
        return interleave(calls, "cpu", budget=budget, minimum=5)

    encode: Seconds = {}
    if "encode" in runner.graphs:
        alone = {"image": feed["image"]}
        features = torch.inference_mode()(lambda: model.image_features(pixels))
        encode = in_turns(features, lambda: runner.graphs["encode"](alone))
    graph = in_turns(by_torch, lambda: runner.graphs[last](feed))
    click = probseg.Click(*places[0])
    by_runner = in_turns(lambda: predictor.predict([click]), lambda: runner.predict(places[:1]))
    return encode, graph, by_runner


def zoomed_times(
    predictor: probseg.Predictor, runner: Runner, budget: float
) -> tuple[Seconds, float]:
    """Time a third click with the zoom, and how long the runner takes to open 12 megapixels."""
    image = GrabCut()[0].image
    height, width = image.shape[:2]
    *earlier, third = [(width * share, height / 2, True) for share in (0.5, 0.4, 0.6)]
    answering: dict[str, Any] = {"torch": predictor, "onnx": runner}
    seconds: Seconds = {name: [] for name in answering}
    stop = time.monotonic() + budget
    while time.monotonic() < stop or len(seconds["onnx"]) < 5:
        for name, one in answering.items():
            one.set_image(image)
            for click in earlier:
                one.predict([click])
            begin = time.perf_counter()
            one.predict([third])
            seconds[name].append(time.perf_counter() - begin)
    content = io.BytesIO()  # an enlarged photograph as cameras write it
    Image.fromarray(coffee()).resize((4000, 3000)).save(content, "JPEG", quality=90)
    large = np.asarray(Image.open(content))
    openings = []
    for _ in range(5):
        begin = time.process_time()
        runner.set_image(large)
        openings.append(time.process_time() - begin)
    return seconds, median(openings)


if __name__ == "__main__":
    main()
