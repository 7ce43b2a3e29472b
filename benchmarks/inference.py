"""Clicks and milliseconds of ways to ask the same weights, paired by object.

`python benchmarks/inference.py` simulates clicks on regions of BSDS500's test photographs (481 x
321 pixels, none of which the models of the zoo were trained on), and writes
`benchmarks/results/inference.csv`. A region takes part if at
least half of the other annotators have one of an IoU of 80 % with it, it covers 1 to 50 % of the
photograph and at most an eighth of its border; one region of each photograph is drawn at random.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from measure import RESULTS, Row, append_row, provenance

import probseg
from probseg.attention import Adaptation
from probseg.data import BSDS500
from probseg.evaluation import PROTOCOLS, run_objects
from probseg.images import read_image
from probseg.masks import read_labels
from probseg.metrics import clustered_bootstrap, noc
from probseg.metrics.statistics import signed_rank
from probseg.types import Sample


class Way(NamedTuple):
    """A way to ask; the classifier `adapts` to the clicks by EM."""

    name: str
    zoom: str | None = "fixed"
    flip: bool = False
    adapts: bool = False


WAYS = [
    Way("plain", zoom=None),
    Way("EM", zoom=None, adapts=True),
    Way("zoom"),
    Way("zoom, EM", adapts=True),
    Way("zoom, EM, flip", flip=True, adapts=True),
]
"""The first is what all others are compared with."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--every", type=int, default=2, help="use each n-th photograph")
    options = parser.parse_args()
    torch.set_num_threads(1)
    samples = agreed_regions()[:: options.every]
    photos = [sample.name for sample in samples]
    first = np.zeros(0)
    for way in WAYS:
        protocol = replace(PROTOCOLS["ritm"], target_iou=0.95, zoom=way.zoom, flip=way.flip)
        network = probseg.create_model(options.model, pretrained=True).eval()
        network.adapt(Adaptation(click_iterations=3 if way.adapts else 0))
        network = network.to(memory_format=torch.channels_last)
        records = run_objects(network, samples, protocol, batch_size=2 if way.flip else 1)
        steps = [[step for step in record.steps if step.k] for record in records]
        ious = np.array([[step.iou for step in record.steps] for record in records])
        seconds = [step.seconds for given in steps for step in given if step.seconds is not None]
        compliance = [step.scores["compliance"] for given in steps for step in given]
        clicks = {q: noc(ious[:, None], q / 100)[:, 0] for q in (80, 85, 90)}
        first = first if len(first) else clicks[90]
        row: Row = {"model": options.model, "way": way.name, "objects": len(samples)}
        row |= {f"noc@{q}": round(float(n.mean()), 3) for q, n in clicks.items()}
        row["failures"] = int((ious < 0.9).all(axis=1).sum())
        row |= {f"miou@{k}": round(float(100 * ious[:, k].mean()), 2) for k in (1, 5, 20)}
        row |= _compared(clicks[90] - first, photos)
        row["compliance"] = round(100 * float(np.mean([c for c in compliance if c is not None])), 2)
        row["ms_per_click"] = round(1000 * float(np.mean(seconds)), 1)
        append_row(RESULTS / "inference.csv", {**row, **provenance("cpu")})
        print(row, flush=True)


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
