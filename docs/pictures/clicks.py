"""Clicks at work: a model of the zoo on photographs that come with scikit-image.

`python docs/pictures/clicks.py [MODEL]`. A simulated annotator clicks on the centre of the
largest error, as in the protocol `ritm`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from style import INK, WIDTH, save, show

import probseg
from probseg.clicks.annotators import BoolMap, largest_error_click
from probseg.data import SamplePhotos
from probseg.descriptions import RECOMMENDED
from probseg.evaluation import get_protocol
from probseg.formats.colours import CLICK_COLOURS, CLICK_MARKERS
from probseg.metrics import iou
from probseg.types import Sample

OBJECTS = ("cat", "coffee/cup", "rocket")
SHOWN = (1, 2, 3, 5)

Step = tuple[BoolMap, tuple[probseg.Click, ...]]
"""A mask and the clicks that led to it."""


def main(model: str = RECOMMENDED) -> None:
    predictor = probseg.Predictor.from_pretrained(model)
    photos = SamplePhotos()
    samples = {sample.name: sample for sample in (photos[i] for i in range(len(photos)))}
    shapes = [samples[name].mask.shape for name in OBJECTS]
    figure, rows = plt.subplots(
        len(OBJECTS),
        len(SHOWN),
        figsize=(WIDTH, 1.1 + WIDTH / len(SHOWN) * sum(h / w for h, w in shapes)),
        height_ratios=[h / w for h, w in shapes],
        layout="constrained",
    )
    for row, name in zip(rows, OBJECTS, strict=True):
        _interact(predictor, samples[name], row)
    save(figure, "../clicks")


def _interact(predictor: probseg.Predictor, sample: Sample, row: np.ndarray) -> None:
    """Click on an object, and draw some of the answers."""
    for k, (answer, clicks) in enumerate(interaction(predictor, sample, max(SHOWN)), start=1):
        if k in SHOWN:
            _draw(row[SHOWN.index(k)], sample, answer, clicks, k)


def interaction(predictor: probseg.Predictor, sample: Sample, count: int) -> Iterator[Step]:
    """Click on an object, and yield the answer to each click, with all clicks so far."""
    predictor.set_image(sample.image)
    answer: BoolMap = np.zeros(sample.mask.shape, dtype=np.bool_)
    clicks: tuple[probseg.Click, ...] = ()
    for _ in range(count):
        click = largest_error_click(answer, sample.mask, clicks)
        if click is not None:
            clicks += (click,)
            mask = predictor.predict(clicks=[click])
            answer = mask.probability > get_protocol("ritm").threshold
        yield answer, clicks


def _draw(
    axes: Axes, sample: Sample, answer: BoolMap, clicks: tuple[probseg.Click, ...], k: int
) -> None:
    picture = sample.image.astype(np.float64) / 255
    picture[~answer] = 0.35 * picture[~answer] + 0.6  # what is not the object fades
    score = 100 * float(iou(answer, sample.mask))
    show(axes, picture, f"{k} click{'s' * (k > 1)}: IoU {score:.0f}")
    axes.contour(answer, levels=[0.5], colors=[INK], linewidths=0.9)
    for click in clicks:
        colour, marker = CLICK_COLOURS[click.positive], CLICK_MARKERS[click.positive]
        axes.plot(click.x, click.y, marker, ms=5, mfc=colour, mec="white", mew=0.9)


if __name__ == "__main__":
    main(*sys.argv[1:])
