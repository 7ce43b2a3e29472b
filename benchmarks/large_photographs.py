"""Clicks on photographs of 12 and 48 megapixels, against clicks on one of 640 x 480 pixels.

`python benchmarks/large_photographs.py` enlarges sample photographs, writes them as JPEG files, and
in turns sets a photograph, clicks on the middle of an object, then twice more on it and once off
it, on one thread. It prints a row for each size: milliseconds of processor time (medians), which
other programs disturb less than those by the clock, and their ratios to the smallest size.
`mask` is the array of all pixels, which is computed when it is asked for.

Two more columns say what the reduced copies cost in accuracy: `agreement` is the mean IoU of the
masks with those of the same clicks on the photograph at full size, `iou_difference` the mean
difference of their IoUs with the truth.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from measure import provenance
from PIL import Image

from probseg.data import SamplePhotos
from probseg.interact import (
    RECOMMENDED_ZOOM,
    ZOOMS,
    InteractionState,
    Predictor,
    begin,
    image_tensor,
)
from probseg.interact.session import build_loop
from probseg.metrics import iou
from probseg.types import Click

SIZES = ((640, 480), (4000, 3000), (8000, 6000))
COLUMNS = ("set_image", "first_click", "next_click", "mask")


class Case(NamedTuple):
    """A photograph.

    Args:
        path: A JPEG file.
        truth: Of an object, bool, shape `(H, W)`.
        clicks: On it, on it, on it, and off it.
    """

    path: Path
    truth: np.ndarray
    clicks: tuple[Click, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--zoom", choices=("none", *ZOOMS), default=RECOMMENDED_ZOOM)
    parser.add_argument("--turns", type=int, default=6, help="photographs of each size")
    parser.add_argument("--agreement", type=int, default=4, help="photographs at full size too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    zoom = None if options.zoom == "none" else options.zoom
    predictor = Predictor.from_pretrained(options.model, zoom=zoom)
    with tempfile.TemporaryDirectory() as place:
        cases = [
            written(Path(place), turn, size) for turn in range(options.turns) for size in SIZES
        ]
        answer(predictor, cases[0])  # caches of kernels
        seconds = np.array([answer(predictor, case) for case in cases])
        medians = np.median(seconds.reshape(options.turns, len(SIZES), -1), axis=0)
        for n, (width, height) in enumerate(SIZES):
            row: dict[str, object] = {"megapixels": round(width * height / 1e6, 1)}
            for column, seconds_of, smallest in zip(COLUMNS, medians[n], medians[0], strict=True):
                row[column] = round(float(1000 * seconds_of), 1)
                row[f"{column}_ratio"] = round(float(seconds_of / smallest), 2)
            alike = cases[n :: len(SIZES)][: options.agreement]
            pairs = np.array([compared(predictor, case, zoom) for case in alike])
            means = pairs.mean(0).round(4).tolist()
            row |= dict(zip(("agreement", "iou_difference"), means, strict=True))
            row |= {"model": options.model, "zoom": options.zoom}
            print({**row, **provenance("cpu")}, flush=True)


def written(folder: Path, number: int, size: tuple[int, int]) -> Case:
    """Enlarge a sample photograph, and write it."""
    photos = SamplePhotos()
    sample = photos[number % len(photos)]
    path = folder / f"{number}_{size[0]}.jpg"
    picture = cv2.resize(sample.image, size, interpolation=cv2.INTER_CUBIC)
    Image.fromarray(picture).save(path, quality=92)
    truth = cv2.resize(np.uint8(sample.mask == 1), size, interpolation=cv2.INTER_NEAREST) > 0
    return Case(path, truth, tuple(clicks_of(truth)))


def clicks_of(truth: np.ndarray) -> list[Click]:
    """Return clicks deep inside of an object, each far from those before, and one outside."""
    clicks = []
    small = cv2.resize(np.uint8(truth), None, fx=0.25, fy=0.25, interpolation=cv2.INTER_NEAREST)
    for positive in (True, True, True, False):
        depth = cv2.distanceTransform(np.pad(small if positive else 1 - small, 1), cv2.DIST_L2, 5)
        y, x = np.unravel_index(int(depth[1:-1, 1:-1].argmax()), small.shape)
        clicks.append(Click(4.0 * x, 4.0 * y, positive))
        cv2.circle(small, (int(x), int(y)), max(3, min(small.shape) // 30), 0, cv2.FILLED)
    return clicks


def answer(predictor: Predictor, case: Case) -> list[float]:
    """Return the seconds of the columns; of the further clicks, the median."""
    began = [time.process_time()]
    predictor.set_image(case.path)
    began.append(time.process_time())
    for click in case.clicks:
        mask = predictor.predict([click])
        began.append(time.process_time())
    mask.binary  # noqa: B018 (computes it)
    began.append(time.process_time())
    setting, first, *further, full = np.diff(began)
    return [setting, first, float(np.median(further)), full]


def compared(predictor: Predictor, case: Case, zoom: str | None) -> tuple[float, float]:
    """Return the IoU of the mask with that at full size, and the difference of their IoUs."""
    predictor.set_image(case.path)
    for click in case.clicks:
        mask = predictor.predict([click]).binary
    state: InteractionState = begin(image_tensor(np.array(Image.open(case.path))))
    loop = build_loop(predictor.model, zoom)
    for click in case.clicks:
        (state,) = loop.step([state], [click])
    exact = state.probability > 0.5
    return iou(mask, exact), iou(mask, case.truth) - iou(exact, case.truth)


if __name__ == "__main__":
    main()
