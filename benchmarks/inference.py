"""Clicks and milliseconds of ways to ask the same weights, paired by object.

``python benchmarks/inference.py`` simulates clicks on regions of BSDS500's test photographs (481 x
321 pixels, none of which the models of the zoo were trained on), and writes
``benchmarks/results/inference.csv`` and ``inference.png``. A region takes part if at least half of
the other annotators have one of an IoU of 80 % with it, it covers 1 to 50 % of the photograph and
at most an eighth of its border; one region of each photograph is drawn at random.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import pyplot as plt
from measure import RESULTS, Row, append_row, provenance

import probseg
from probseg.data import BSDS500
from probseg.data.images import read_image, read_labels
from probseg.evaluation import PROTOCOLS, run_objects
from probseg.metrics import clustered_bootstrap, noc
from probseg.metrics.comparison import signed_rank
from probseg.types import Sample

WAYS: dict[str, dict[str, object]] = {
    "whole image": {},
    "zoom": {"zoom": "fixed"},
    "flip": {"flip": True},
    "zoom and flip": {"zoom": "fixed", "flip": True},
}
"""Options of the protocol ``ritm``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite0_unet_prop")
    parser.add_argument("--every", type=int, default=2, help="use each n-th photograph")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = probseg.create_model(options.model, pretrained=True).eval()
    samples = agreed_regions()[:: options.every]
    photos = [sample.name for sample in samples]
    first = np.zeros(0)
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for way, changes in WAYS.items():
        protocol = replace(PROTOCOLS["ritm"], target_iou=0.95, **changes)
        began = time.perf_counter()
        records = run_objects(model, samples, protocol)
        seconds = time.perf_counter() - began
        ious = np.array([[step.iou for step in record.steps] for record in records])
        clicks = {q: noc(ious[:, None], q / 100)[:, 0] for q in (80, 85, 90)}
        first = first if len(first) else clicks[90]
        row: Row = {"model": options.model, "way": way, "objects": len(samples)}
        row |= {f"noc@{q}": round(float(n.mean()), 3) for q, n in clicks.items()}
        row |= {f"miou@{k}": round(float(100 * ious[:, k].mean()), 2) for k in (1, 5, 20)}
        row |= _compared(clicks[90] - first, photos)
        row["ms_per_click"] = round(1000 * seconds / sum(record.clicks for record in records), 1)
        append_row(RESULTS / "inference.csv", {**row, **provenance("cpu")})
        print(row, flush=True)
        axes.scatter(row["ms_per_click"], row["noc@90"])
        axes.annotate(way, (row["ms_per_click"], row["noc@90"]), (4, 4), textcoords="offset points")
    axes.set(xlabel="milliseconds per click", ylabel="NoC@90", xlim=(0, None))
    axes.margins(x=0.2)
    figure.savefig(RESULTS / "inference.png", dpi=150)


def agreed_regions() -> list[Sample]:
    """Return one region of each photograph on which annotators agree."""
    regions = BSDS500("test", exclude=None, min_fraction=0.01, max_fraction=0.5).objects
    random = np.random.default_rng(0)
    samples = []
    for image in sorted({image for image, _, _ in regions}):
        mine = [(path, number) for photo, path, number in regions if photo == image]
        maps = {path: read_labels(path) for path, _ in mine}
        agreed = [one for one in mine if _agreed(maps, *one)]
        if agreed:
            path, number = agreed[random.integers(len(agreed))]
            mask = (maps[path] == number).astype(np.uint8)
            samples.append(Sample(read_image(image), mask, image.stem, "BSDS500 test"))
    return samples


def _agreed(maps: dict[Path, npt.NDArray[np.uint8]], path: Path, number: int) -> bool:
    region = maps[path] == number
    border = np.concatenate([region[0], region[-1], region[:, 0], region[:, -1]])
    if border.mean() > 1 / 8:
        return False
    ious = []
    for other, labels in maps.items():
        if other != path:
            same = labels == np.bincount(labels[region]).argmax()
            ious.append((region & same).sum() / (region | same).sum())
    return sum(iou >= 0.8 for iou in ious) >= max(1, len(ious) / 2)


def _compared(differences: npt.NDArray[np.int64], photos: list[str]) -> Row:
    """Return clicks more than the first way, their 95 % interval, and Wilcoxon's p."""
    if not differences.any():
        return {"more_clicks": 0.0, "low": None, "high": None, "p": None}
    bounds = clustered_bootstrap(differences, photos)
    return {
        "more_clicks": round(float(differences.mean()), 3),
        "low": round(float(bounds.low), 3),
        "high": round(float(bounds.high), 3),
        "p": float(f"{signed_rank(differences, photos).p:.2g}"),
    }


if __name__ == "__main__":
    main()
