"""First masks of objects, proposed from the finished photographs of their folder.

    python benchmarks/first_guess.py $PROBSEG_DATA/objects_more mandarin_ pig_

The objects of a few finished photographs of a set teach a map of log-odds of cells; seeds of the
map are clicked on for the network, and those answers are proposed whose value is above a cutoff.
Everything is chosen on the finished photographs, each of which is proposed on by the others. A
proposal that fits an object takes one act instead of the object's clicks, one that fits none takes
one act to dismiss. A table is printed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.clicks.annotators import largest_error_click
from probseg.clicks.centres import BoolMap, deepest
from probseg.evaluation import get_protocol
from probseg.images import read_image
from probseg.interact import InteractionLoop, image_tensor
from probseg.interact.photograph import Photograph
from probseg.interact.session import build_loop, encode_image, prepared
from probseg.interact.zoom import ZOOMS
from probseg.masks import object_mask, read_labels
from probseg.metrics import iou
from probseg.ops.em import logistic_em
from probseg.types import IGNORE, Click
from probseg.zoo import create_interactive

SIDE = 320
"""Longer side in pixels that photographs are reduced to."""
CELL = 8
"""Side of a cell in pixels."""
ENOUGH, ACCEPTED, NOISE = 0.85, 0.8, 0.5
"""IoU to which objects are clicked; from which proposals are accepted; below which they are noise.
"""
FINISHING = (0, 1)
"""Acts that finish a clicked object; the act that accepts a proposal finishes it as well."""
MOST_CLICKS = 10
MOST_SEEDS = 40
"""Most clicks for proposals on a photograph."""
PRIOR, STEPS = 100.0, 5
"""Precision of the prior of the classifier's weights, and its EM steps."""
THRESHOLD = get_protocol("ritm").threshold
COLUMNS = (
    "set",
    "way",
    "finishing acts",
    "objects",
    "acts an object",
    "proposals accepted, % of objects",
    "between",
    "noise",
    "objects not proposed",
    "acts saved an object",
    "acts fewer, %",
    "the same against clicks to the lower IoU",
)


@dataclass
class Photo:
    """A photograph with its objects, and all answers to clicks on it so far.

    Args:
        image: RGB, uint8, shape `(H, W, 3)`.
        labels: uint8, shape `(H, W)`: 0 background, 1 to 254 objects, 255 ignored.
        loop: Answers clicks.
    """

    image: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]
    loop: InteractionLoop
    answers: dict[tuple[int, int], Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = encode_image(self.loop.model, Photograph.of(image_tensor(self.image)))
        numbers = np.unique(self.labels)
        numbers = numbers[(numbers > 0) & (numbers != IGNORE)]
        self.objects = [object_mask(self.labels, int(number)) for number in numbers]

    @cached_property
    def cells(self) -> Cells:
        """What is known of the cells."""
        (encoded,) = self.state.encoded
        maps = encoded.decoder_maps
        size = [n // CELL for n in encoded.image.shape[-2:]]
        levels = [maps.features, *maps.coarser]
        resized = [
            F.interpolate(level, size, mode="bilinear", antialias=True, align_corners=False)
            for level in levels
        ]
        features = torch.cat(resized, dim=1)[0]
        height, width = self.labels.shape
        padding = (0, CELL * size[1] - width, 0, CELL * size[0] - height)
        shares = []
        for kind in (self.labels != IGNORE, (self.labels != IGNORE) & (self.labels > 0)):
            pixels = F.pad(torch.from_numpy(kind).float(), padding)
            shares.append(F.avg_pool2d(pixels[None, None], CELL).flatten())
        return Cells(features.flatten(1).T.float(), shares[0], shares[1], (size[0], size[1]))

    @cached_property
    def clicks(self) -> dict[float, list[int]]:
        """Clicks on each object by the IoU that they lead to; `MOST_CLICKS` where they do not."""
        found: dict[float, list[int]] = {ENOUGH: [], ACCEPTED: []}
        for mask in self.objects:
            state, given, reached = self.state, [], {}
            while len(given) < MOST_CLICKS and ENOUGH not in reached:
                click = largest_error_click(state.probability > THRESHOLD, mask, given)
                if click is None:
                    break
                given.append(click)
                (state,) = self.loop.step([state], [click])
                score = iou(state.probability > THRESHOLD, mask)
                for target in found:
                    if score >= target:
                        reached.setdefault(target, len(given))
            for target, clicks in found.items():
                clicks.append(reached.get(target, MOST_CLICKS))
        return found

    def answer(self, x: int, y: int) -> Answer:
        """Return the network's answer to a click."""
        if (x, y) not in self.answers:
            (state,) = self.loop.step([self.state], [Click(x, y)])
            quality = state.answer.quality
            assert quality is not None, "give a network with a MaskQuality"
            self.answers[x, y] = Answer(state.probability > 0.5, quality)
        return self.answers[x, y]

    def upsampled(self, odds: Tensor) -> npt.NDArray[np.float32]:
        """Return values of the cells `(N,)` for all pixels, float32, shape `(H, W)`."""
        maps = odds.float().view(1, 1, *self.cells.size)
        maps = F.interpolate(maps, scale_factor=CELL, mode="bilinear", align_corners=False)
        height, width = self.labels.shape
        return maps[0, 0, :height, :width].numpy()


class Answer(NamedTuple):
    """A mask, bool, shape `(H, W)`, and the IoU that the network predicts for it."""

    mask: BoolMap
    quality: float


class Cells(NamedTuple):
    """The cells of a photograph.

    Args:
        features: Of the network, independent of clicks, `(N, D)`.
        seen: Share of a cell's pixels that are not ignored, `(N,)`.
        inside: Share that is on an object, `(N,)`.
        size: Rows and columns of cells.
    """

    features: Tensor
    seen: Tensor
    inside: Tensor
    size: tuple[int, int]


class Judged(NamedTuple):
    """Proposals on a photograph, the most valuable first, and how they fit its objects.

    Args:
        values: Shape `(P,)`.
        ious: With the objects, shape `(P, O)`.
    """

    values: npt.NDArray[np.float64]
    ious: npt.NDArray[np.float64]


class Outcome(NamedTuple):
    """What proposals on a photograph are worth.

    Args:
        accepted: Numbers of the objects that are accepted.
        middle: Number of proposals that fit an object with an IoU from `NOISE` to `ACCEPTED`.
        noise: Number of proposals to dismiss.
        missed: Number of objects that no proposal fits with an IoU of `NOISE`.
    """

    accepted: list[int]
    middle: int
    noise: int
    missed: int


Rule = Callable[[Tensor], Tensor]
"""Log-odds or another score of cells, `(N,)`, from their features, `(N, D)`."""


def prototypes(cells: Sequence[Cells]) -> Rule:
    """Return the cosine with the mean feature of objects, minus that with the mean elsewhere."""
    features, mean, spread = _standardised(cells)
    inside = torch.cat([one.inside for one in cells])
    outside = torch.cat([one.seen - one.inside for one in cells])
    means = [F.normalize((w[:, None] * features).sum(0), dim=0) for w in (inside, outside)]
    direction = means[0] - means[1]
    return lambda features: F.normalize((features - mean) / spread, dim=1) @ direction


def classifier(cells: Sequence[Cells]) -> Rule:
    """Return the log-odds of a classifier, learnt by the EM of `AdaptiveClassifier`."""
    features, mean, spread = _standardised(cells)
    rows = F.pad(features, (0, 1), value=1.0)
    counts = torch.cat([one.seen for one in cells])
    evidence = torch.cat([one.inside for one in cells]) - counts / 2
    prior = rows.new_zeros(rows.shape[1])
    (weights,) = logistic_em(rows[None], evidence[None], counts[None], prior, PRIOR, STEPS)
    return lambda features: (features - mean) / spread @ weights[:-1] + weights[-1]


def _standardised(cells: Sequence[Cells]) -> tuple[Tensor, Tensor, Tensor]:
    features = torch.cat([one.features for one in cells])
    mean, spread = features.mean(dim=0), features.std(dim=0).clamp(min=1e-6)
    return (features - mean) / spread, mean, spread


def regions(
    photo: Photo, odds: npt.NDArray[np.float32], threshold: float, side: float
) -> Iterator[Answer]:
    """Yield the answers to clicks on the deepest pixel of each region above the threshold."""
    _, parts, stats, _ = cv2.connectedComponentsWithStats((odds > threshold).astype(np.uint8))
    large = [n for n in range(1, len(stats)) if stats[n, cv2.CC_STAT_AREA] >= side**2 / 4]
    for number in large[:MOST_SEEDS]:
        _, centre = deepest([parts == number], [])
        yield photo.answer(centre.x, centre.y)


def peaks(
    photo: Photo, odds: npt.NDArray[np.float32], threshold: float, side: float
) -> Iterator[Answer]:
    """Yield the answers to clicks on the highest pixel above the threshold that none has covered.

    The map is smoothed by a quarter of the side of an object.
    """
    left = cv2.GaussianBlur(odds, (0, 0), side / 4)
    for _ in range(MOST_SEEDS):
        y, x = (int(n) for n in np.unravel_index(int(left.argmax()), left.shape))
        if left[y, x] <= threshold:
            return
        yield (answer := photo.answer(x, y))
        left[answer.mask] = -np.inf
        cv2.circle(left, (x, y), max(1, round(side / 3)), -math.inf, -1)


WAYS: dict[str, tuple[Callable[[Sequence[Cells]], Rule], Callable[..., Iterator[Answer]]]] = {
    "prototypes, regions": (prototypes, regions),
    "classifier, regions": (classifier, regions),
    "classifier, peaks": (classifier, peaks),
}
"""What teaches the map of scores, and where it is clicked on."""


class Proposer:
    """Proposes masks; everything is learnt from finished photographs.

    Args:
        way: Name in `WAYS`.
        finished: At least two photographs.
    """

    def __init__(self, way: str, finished: Sequence[Photo]) -> None:
        fit, self.seeds = WAYS[way]
        areas = [int((mask == 1).sum()) for photo in finished for mask in photo.objects]
        self.areas = min(areas) / 2, max(areas) * 2
        self.side = float(np.median(areas)) ** 0.5
        self.rule = fit([photo.cells for photo in finished])
        odds = [  # each photograph's from the others
            fit([other.cells for other in finished if other is not photo])(photo.cells.features)
            for photo in finished
        ]
        self.threshold = best_threshold(torch.cat(odds), [photo.cells for photo in finished])
        proposed = [self._proposed(*one) for one in zip(finished, odds, strict=True)]
        self.cutoffs = [best_cutoff(finished, proposed, acts) for acts in FINISHING]

    def outcomes(self, photo: Photo) -> list[Outcome]:
        """Return what the proposals on a photograph are worth, for each number in `FINISHING`."""
        proposed = self._proposed(photo, self.rule(photo.cells.features))
        return [outcome(proposed, cutoff) for cutoff in self.cutoffs]

    def _proposed(self, photo: Photo, odds: Tensor) -> Judged:
        """Return the proposals of all values, no two of which are half the same."""
        scores = photo.upsampled(odds)
        fewest, most = self.areas
        found = [
            (answer.quality * float((scores[answer.mask] > self.threshold).mean()), answer.mask)
            for answer in self.seeds(photo, scores, self.threshold, self.side)
            if fewest <= answer.mask.sum() <= most
        ]
        found.sort(key=lambda one: -one[0])
        kept: list[tuple[float, BoolMap]] = []
        for value, mask in found:
            shared = [(mask & other).sum() / min(mask.sum(), other.sum()) for _, other in kept]
            if max(shared, default=0) < 0.5:
                kept.append((value, mask))
        return judged(photo, kept)


def best_threshold(odds: Tensor, cells: Sequence[Cells]) -> float:
    """Return the score above which cells are most alike the objects' (largest IoU)."""
    inside = torch.cat([one.inside for one in cells])
    outside = torch.cat([one.seen - one.inside for one in cells])
    order = odds.argsort(descending=True)
    hit, wrong = inside[order].cumsum(0), outside[order].cumsum(0)
    return float(odds[order[(hit / (inside.sum() + wrong)).argmax()]])


def best_cutoff(photos: Sequence[Photo], proposed: Sequence[Judged], finishing: int) -> float:
    """Return the value from which proposals save most acts; infinity where none saves any."""
    best, most = math.inf, 0
    for cutoff in np.unique(np.concatenate([one.values for one in proposed]))[::-1]:
        gain = sum(
            saved(photo, outcome(one, cutoff), finishing)
            for photo, one in zip(photos, proposed, strict=True)
        )
        if gain > most:
            best, most = float(cutoff), gain
    return best


def judged(photo: Photo, proposals: Sequence[tuple[float, BoolMap]]) -> Judged:
    """Compare proposals with the objects, without those that are ignored for the most part."""
    known = photo.labels != IGNORE
    counted = [(value, mask & known) for value, mask in proposals if known[mask].mean() > 0.5]
    ious = [[iou(mask, truth) for truth in photo.objects] for _, mask in counted]
    values = np.array([value for value, _ in counted], np.float64)
    return Judged(values, np.array(ious, np.float64).reshape(-1, len(photo.objects)))


def outcome(proposed: Judged, cutoff: float) -> Outcome:
    """Give each proposal of at least this value its object, the best pairs first."""
    left = proposed.ious[proposed.values >= cutoff]
    accepted, middle = [], 0
    while left.size and left.max() >= NOISE:
        proposal, number = (int(n) for n in np.unravel_index(int(left.argmax()), left.shape))
        if left[proposal, number] >= ACCEPTED:
            accepted.append(number)
        else:
            middle += 1
        left[proposal], left[:, number] = -1, -1
    fitting = len(accepted) + middle
    return Outcome(accepted, middle, len(left) - fitting, proposed.ious.shape[1] - fitting)


def saved(photo: Photo, found: Outcome, finishing: int, target: float = ENOUGH) -> int:
    """Return the acts that proposals save against clicks to this IoU."""
    acts = (photo.clicks[target][number] + finishing - 1 for number in found.accepted)
    return sum(acts) - found.noise


def ratio(
    above: npt.NDArray[np.float64],
    below: npt.NDArray[np.float64],
    unit: int = 100,
    digits: int = 0,
) -> str:
    """Return the ratio of sums over photographs with its standard error, by default in per cent."""
    estimate = above.sum() / below.sum()
    rest = above - estimate * below
    error = (len(rest) / (len(rest) - 1) * (rest**2).sum()) ** 0.5 / below.sum()
    return f"{unit * estimate:.{digits}f} ± {unit * error:.{digits}f}"


def report(prefix: str, photos: Sequence[Photo], draws: Sequence[Sequence[Photo]]) -> None:
    """Print rows for each way, and for first clicks whose answers are accepted as proposals are."""
    for way in WAYS:
        proposers = [Proposer(way, finished) for finished in draws]
        found = [[proposer.outcomes(photo) for proposer in proposers] for photo in photos]
        for n, finishing in enumerate(FINISHING):
            outcomes = [[some[n] for some in own] for own in found]
            print_row([prefix, way], photos, outcomes, finishing)
    firsts = [[first_clicks(photo)] for photo in photos]
    for finishing in FINISHING:
        print_row([prefix, "first clicks"], photos, firsts, finishing)


def first_clicks(photo: Photo) -> Outcome:
    """Return what it is worth to accept answers to first clicks on the objects."""
    clicks = photo.clicks[ACCEPTED]
    accepted = [number for number, count in enumerate(clicks) if count == 1]
    return Outcome(accepted, 0, 0, len(clicks) - len(accepted))


def print_row(
    names: list[str],
    photos: Sequence[Photo],
    outcomes: Sequence[Sequence[Outcome]],
    finishing: int,
) -> None:
    """Print figures of photographs, means over the outcomes of each."""
    objects = np.array([len(photo.objects) for photo in photos], np.float64)
    counts = [
        mean(photos, outcomes, lambda _, one: len(one.accepted)),
        mean(photos, outcomes, lambda _, one: one.middle),
        mean(photos, outcomes, lambda _, one: one.noise),
        mean(photos, outcomes, lambda _, one: one.missed),
    ]
    gains, acts = {}, {}
    for target in (ENOUGH, ACCEPTED):
        gains[target] = mean(photos, outcomes, partial(saved, finishing=finishing, target=target))
        clicks = np.array([sum(photo.clicks[target]) for photo in photos])
        acts[target] = clicks + finishing * objects
    cells = [*names, f"{finishing}", f"{objects.sum():.0f}"]
    cells.append(f"{acts[ENOUGH].sum() / objects.sum():.2f}")
    cells += [ratio(count, objects) for count in counts]
    cells.append(ratio(gains[ENOUGH], objects, 1, 2))
    cells += [ratio(gains[target], acts[target]) for target in gains]
    print("| " + " | ".join(cells) + " |", flush=True)


def mean(
    photos: Sequence[Photo], found: Sequence[Sequence[Outcome]], number: Callable[..., int]
) -> npt.NDArray[np.float64]:
    """Return the mean of a number over the draws, for each photograph."""
    pairs = zip(photos, found, strict=True)
    return np.array([np.mean([number(photo, one) for one in own]) for photo, own in pairs])


def read_photos(
    folder: Path, prefix: str, count: int, loop: InteractionLoop, generator: np.random.Generator
) -> list[Photo]:
    """Read so many photographs with objects, in random order."""
    paths = sorted((folder / "images").glob(f"{prefix}*"))
    photos: list[Photo] = []
    for place in generator.permutation(len(paths)):
        image = read_image(paths[place])
        labels = read_labels(folder / "masks" / f"{paths[place].stem}.png")
        scale = min(1.0, SIDE / max(labels.shape))
        size = round(scale * labels.shape[1]), round(scale * labels.shape[0])
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        labels = cv2.resize(labels, size, interpolation=cv2.INTER_NEAREST)
        photo = Photo(image, labels, loop)
        if photo.objects and len(photos) < count:
            photos.append(photo)
        if len(photos) == count:
            return photos
    message = f"`prefixes` must have {count} photographs with objects each, {prefix} has fewer"
    raise SystemExit(message)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with `images/` and `masks/`")
    parser.add_argument("prefixes", nargs="+", help="beginning of the names of each set")
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--zoom", default="none", choices=["none", *ZOOMS])
    parser.add_argument("--finished", type=int, default=5)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--photographs", type=int, default=12, help="of each set, to propose on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = prepared(create_interactive(options.model, pretrained=True), torch.device("cpu"))
    loop = build_loop(model, None if options.zoom == "none" else options.zoom, batch_size=1)
    print("| " + " | ".join(COLUMNS) + " |\n|" + " --: |" * len(COLUMNS))
    for prefix in options.prefixes:
        generator = np.random.default_rng(0)
        count = options.photographs + 2 * options.finished
        photos = read_photos(options.folder, prefix, count, loop, generator)
        others, pool = photos[: options.photographs], photos[options.photographs :]
        draws = [
            [pool[n] for n in generator.permutation(len(pool))[: options.finished]]
            for _ in range(options.draws)
        ]
        report(prefix, others, draws)


if __name__ == "__main__":
    main()
