"""Strokes of a brush that snap to contours, against the same strokes as they are painted.

    python benchmarks/snapping.py

Objects of GrabCut and `objects/val.txt` get simulated clicks. The middle line of the largest wrong
region is then painted once plain and once snapped, with brushes of several radii, and with lines
that are displaced. Tables of the IoU after one stroke and after more are printed. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import distance_transform_edt
from skimage.graph import MCP_Geometric
from skimage.morphology import skeletonize

from probseg.clicks.annotators import error_maps, largest_error_click
from probseg.clicks.boxes import mask_box
from probseg.clicks.centres import BoolMap
from probseg.data import GrabCut, ImageMaskFolder
from probseg.data.datamodule import spread
from probseg.interact.predictor import Predictor
from probseg.interact.session import Session
from probseg.interact.snapping import snapped
from probseg.interact.steps import Stroke, islands
from probseg.metrics import iou
from probseg.types import Sample

FACTORS = (0.7, 1.0, 1.5, 2.0, 3.0)
"""Radius of the brush by half the width of the wrong region."""
DISPLACED = (0, 2, 4)
"""Pixels that a line is beside the middle of the region, in a random direction."""
STROKES = (1, 3)
"""Strokes in turn after which IoUs are reported; fewer where no wide region is left."""
NARROWEST = 1.5
"""Half width in pixels of the narrowest region that is painted."""
MARGIN = 0.1
"""Points of IoU by which a mask must be better or worse to count as such."""
COLUMNS = (
    "set",
    "strokes",
    "displaced",
    "brush",
    "before",
    "plain",
    "snapped",
    "snapped - plain",
    "better, %",
    "worse, %",
    "snapped - best plain",
)


class Line(NamedTuple):
    """The middle line of a wrong region.

    Args:
        points: Corners `(x, y)`, continuous as in `Stroke`, float64, shape `(N, 2)`.
        half_width: Of the region along the line, in pixels.
        positive: Whether the region is missed object; otherwise it is false alarm.
    """

    points: npt.NDArray[np.float64]
    half_width: float
    positive: bool


class Way(NamedTuple):
    """How an object is painted.

    Args:
        factor: See `FACTORS`.
        displaced: See `DISPLACED`.
        snaps: Whether the strokes snap.
    """

    factor: float
    displaced: int
    snaps: bool


class Painted(NamedTuple):
    """IoUs of an object.

    Args:
        dataset: Its set.
        before: After the first clicks.
        clicked: After one more click, two more and so on, shape `(N,)`.
        ious: After one stroke, two and so on, shape `(N,)`, for each way.
    """

    dataset: str
    before: float
    clicked: npt.NDArray[np.float64]
    ious: dict[Way, npt.NDArray[np.float64]]


def next_line(mask: BoolMap, truth: npt.NDArray[np.uint8]) -> Line | None:
    """Return the middle line of the largest wrong region that is wide enough; None without one."""
    wrong = [
        (int(region.sum()), positive, region)
        for errors, positive in zip(error_maps(mask, truth), (True, False), strict=True)
        for region in islands(errors)
    ]
    for _, positive, region in sorted(wrong, key=lambda one: -one[0]):
        x0, y0, x1, y1 = mask_box(region)
        points, half_width = middle(region[y0:y1, x0:x1])
        if half_width >= NARROWEST:
            return Line(points + np.array([x0, y0]), half_width, positive)
    return None


def middle(region: BoolMap) -> tuple[npt.NDArray[np.float64], float]:
    """Return the middle line of a region, and half its width along the line.

    The line is the longest path along the skeleton through the widest place, as far as the region
    is at least half as wide as there.
    """
    padded = np.pad(region, 1)
    depth = distance_transform_edt(padded) - 0.5
    skeleton = skeletonize(padded)
    widest = np.unravel_index(int((depth * skeleton).argmax()), depth.shape)
    kept = skeleton & (depth >= depth[widest] / 2)
    costs, end = np.where(kept, 1.0, -1.0), widest
    for _ in range(2):  # the place farthest from any is an end, that farthest from it the other
        paths = MCP_Geometric(costs)
        length, _ = paths.find_costs([end])
        end = np.unravel_index(int(np.where(np.isinf(length), -1, length).argmax()), length.shape)
    path = np.array(paths.traceback(end))
    return path[:, ::-1] - 0.5, float(np.median(depth[tuple(path.T)]))


def measured(predictor: Predictor, sample: Sample, clicks: int, seed: int) -> Painted | None:
    """Click on an object and paint it in all ways; None where nothing is wide enough."""
    predictor.set_image(sample.image)
    session, score = predictor.session, 0.0
    scores = [score := click(session, sample, score) for _ in range(clicks + max(STROKES))]
    begun = min(clicks, len(session.steps))
    session.move_to(begun)
    if next_line(session.answer.state.probability > 0.5, sample.mask) is None:
        return None
    ious = {}
    for way in (Way(*one) for one in product(FACTORS, DISPLACED, (False, True))):
        session.move_to(begun)
        ious[way] = painted(session, sample, way, seed)
    return Painted(sample.dataset, scores[clicks - 1], np.array(scores[clicks:]), ious)


def click(session: Session, sample: Sample, score: float) -> float:
    """Add a click and return the IoU after it; without an error it stays what it was."""
    mask = session.answer.state.probability > 0.5
    clicked = largest_error_click(mask, sample.mask, session.clicks)
    if clicked is None:
        return score
    session.add(clicked)
    return iou(session.answer.state.probability > 0.5, sample.mask)


def painted(session: Session, sample: Sample, way: Way, seed: int) -> npt.NDArray[np.float64]:
    """Return the IoUs after each stroke."""
    generator = np.random.default_rng(seed)  # the same directions for all ways
    ious = np.zeros(max(STROKES))
    for stroke in range(max(STROKES)):
        probability = session.answer.state.probability
        line = next_line(probability > 0.5, sample.mask)
        angle = generator.uniform(0, 2 * math.pi)
        if line is not None:
            shift = way.displaced * np.array([math.cos(angle), math.sin(angle)])
            points = tuple((float(x), float(y)) for x, y in line.points + shift)
            drawn = Stroke(points, way.factor * line.half_width, line.positive)
            session.add(snapped(drawn, sample.image, probability) if way.snaps else drawn)
        ious[stroke] = iou(session.answer.state.probability > 0.5, sample.mask)
    return ious


def report(objects: Sequence[Painted]) -> None:
    """Print rows for each set and for all objects."""
    print("| " + " | ".join(COLUMNS) + " |\n|" + " --: |" * len(COLUMNS))
    for name in (*dict.fromkeys(one.dataset for one in objects), "both"):
        some = [one for one in objects if name in (one.dataset, "both")]
        before = np.array([one.before for one in some])
        for stroke, displaced in product(STROKES, DISPLACED):
            after = {
                (factor, snaps): np.array(
                    [100 * one.ious[Way(factor, displaced, snaps)][stroke - 1] for one in some]
                )
                for factor, snaps in product(FACTORS, (False, True))
            }
            best = max((after[factor, False] for factor in FACTORS), key=np.mean)
            for factor in FACTORS:
                plain, snap = after[factor, False], after[factor, True]
                cells = [name, f"{stroke}", f"{displaced}", f"{factor:g}"]
                cells += [f"{100 * before.mean():.1f}", f"{plain.mean():.1f}", f"{snap.mean():.1f}"]
                cells += [paired(snap - plain), f"{100 * np.mean(snap - plain > MARGIN):.0f}"]
                cells += [f"{100 * np.mean(plain - snap > MARGIN):.0f}", paired(snap - best)]
                print("| " + " | ".join(cells) + " |")
        clicked = 100 * np.mean([one.clicked for one in some], axis=0)
        further = ", ".join(f"{score:.1f}" for score in clicked)
        print(f"\n{name}, {len(some)} objects: IoU after further clicks {further}\n", flush=True)


def paired(differences: npt.NDArray[np.float64]) -> str:
    """Return mean and standard error."""
    return f"{differences.mean():.2f} ± {differences.std(ddof=1) / len(differences) ** 0.5:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--objects", type=int, help="most of each set; all by default")
    parser.add_argument("--clicks", type=int, default=2, help="before the first stroke")
    options = parser.parse_args()
    if options.clicks < 1 or (options.objects is not None and options.objects < 2):
        parser.error("`--clicks` must be at least 1 and `--objects` at least 2")
    torch.set_num_threads(1)
    begun = time.perf_counter()
    predictor = Predictor.from_pretrained(options.model)
    objects: list[Painted] = []
    for dataset in (GrabCut(), ImageMaskFolder("objects", split="val.txt", name="objects")):
        samples = spread(dataset, options.objects)
        found = [measured(predictor, samples[n], options.clicks, n) for n in range(len(samples))]
        objects += [one for one in found if one is not None]
        print(f"{dataset.name}: {len(found)} objects, {found.count(None)} without a wide region")
    print(f"{time.perf_counter() - begun:.0f} s")
    report(objects)


if __name__ == "__main__":
    main()
