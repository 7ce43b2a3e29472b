"""Methods without learnt weights, evaluated by clicks like the networks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import cv2
import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from skimage.color import rgb2lab
from skimage.segmentation import random_walker
from torch import Tensor

from probseg.clicks.annotators import BoolMap
from probseg.clicks.propagated import GUESS_RADIUS, SEED_RADIUS
from probseg.geometry import Box
from probseg.ops import ValuePropagation, probabilistic_attention
from probseg.types import Click, Prompts, Sample

# probabilities are kept this far from 0 and 1, so that logits are finite: at most 13.8
EPSILON = 1e-6

# part of the largest distance to the contour from which on a pixel is in the core of a shape
CORE = 0.6

OBJECT, BACKGROUND = 1, 2  # labels of the seeds; 0 has none


class ClassicalModel(ABC):
    """A segmentation method without learnt weights, evaluated like a network.

    Subclasses segment one image. The same prompts always give the same answer, in any order and
    any batch.
    """

    @abstractmethod
    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Segment one image.

        Images of one call are segmented in threads: the method must not change what they share.

        Args:
            image: RGB, uint8, shape `(H, W, 3)`.
            clicks: All clicks so far, at whole pixels of the image; there may be none.
            box: The annotator's box, at least one pixel of the image, or None.
            previous: Probability that was answered before, or that the annotator began with,
                shape `(H, W)`; None where it is not handed on.

        Returns:
            Probability of the object in [0, 1], float32, shape `(H, W)`. What it says about
            the pixels that were clicked does not count.
        """

    def batch_key(self, size: tuple[int, int]) -> tuple[()]:
        """Return the same for all sizes `(H, W)`: they may come in one call."""
        return ()

    def encode_each(self, images: Sequence[Tensor]) -> list[Image]:
        """Turn images in [0, 1], float, `(3, H, W)`, into RGB uint8 `(H, W, 3)`."""
        return [
            (image * 255).round().clamp(0, 255).byte().permute(1, 2, 0).cpu().numpy().copy()
            for image in images
        ]

    def decode_each(
        self, encoded: Sequence[Image], prompts: Sequence[Prompts]
    ) -> tuple[list[Tensor], None]:
        """Answer the prompts on each image.

        A clicked pixel has the label of its last click. Clicks outside of the image, as under a
        zoom, are left out; boxes are cut to the image.

        Returns float32 logits `(H, W)` of each image, on the device of its prompts, which come as a
        batch of 1; and no quality.
        """
        with ThreadPoolExecutor() as threads:
            return list(threads.map(self._answer, encoded, prompts)), None

    def _answer(self, image: Image, prompts: Prompts) -> Tensor:
        height, width = image.shape[:2]
        # A zoom that shrinks scales the last column to between the last pixel's centre and the
        # width; clicks outside of the image are left out.
        rows = zip(prompts.points[0].tolist(), prompts.labels[0].tolist(), strict=True)
        clicks = tuple(
            Click(min(math.floor(x + 0.5), width - 1), min(math.floor(y + 0.5), height - 1), on > 0)
            for (x, y), on in rows
            if on >= 0 and -0.5 <= x < width and -0.5 <= y < height
        )
        box: Box | None = None
        corners = prompts.boxes[0].tolist()
        if not any(map(math.isnan, corners)):
            limits = (width, height) * 2
            x0, y0, x1, y1 = (
                min(max(round(corner), 0), limit)
                for corner, limit in zip(corners, limits, strict=True)
            )
            box = (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None
        previous = prompts.previous
        before = None if previous is None else previous[0, 0].float().cpu().numpy()
        probability = self.segment(image, clicks, box, before).astype(np.float64)
        for click in clicks:
            probability[int(click.y), int(click.x)] = click.positive
        logits = torch.from_numpy(probability).logit(eps=EPSILON)
        return logits.to(prompts.points.device, torch.float32)


class BoxFilled(ClassicalModel):
    """The filled box: the lower bound of every curve.

    Without a box, disks of a tenth of the image's longer side around the positive clicks, as far as
    no negative click is nearer; a previous mask takes the place of both. Each click paints a
    disk of a fiftieth of the longer side. Nothing is object before the first positive click
    where there is no box.
    """

    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Draw the prompts; see `ClassicalModel.segment`."""
        return make_scene(image, clicks, box, previous).guess.astype(np.float32)


class ColourMixture(ClassicalModel):
    """Value propagation (Gabbur et al., 2021, Eqs. 23 and 24) between pixels of like colour.

    Each pixel of the reduced image is a query and a unit of the mixture: its key is its colour and
    its place, its initial value depends on the prompts alone, not on the image (see
    `make_scene`). The pixels of disks around the clicks are
    observed, +1 and -1, and propagate to the units; then each pixel reads out its value from all
    units. A probability is the value's place between -1 and 1.

    What it reaches is what `probseg.ops.probabilistic_attention` does on raw pixels. The scales
    were chosen by a small random search on photographs with other objects than the test sets'.
    """

    working_size = 64  # longer side in pixels; the time grows with its fourth power
    colour_scale = 6.0  # standard deviation of a unit, in CIE Lab
    position_scale = 0.1  # standard deviation of a unit, as a fraction of the longer side
    value_precision = 0.5  # beta of the units
    # The weight of an observation is shared by all the units that explain it: theta is small.
    propagation = ValuePropagation(3, prior_precision=5e-3)
    begin = 1.0, -0.5  # values of probable object and of all others

    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Segment one image; see `ClassicalModel.segment`."""
        scene = make_scene(image, clicks, box, previous, self.working_size)
        height, width = scene.guess.shape
        y, x = np.mgrid[:height, :width]
        places = np.stack([x, y], axis=-1) / (self.position_scale * max(height, width))
        features = np.concatenate([rgb2lab(scene.image) / self.colour_scale, places], axis=-1)
        tokens = torch.from_numpy(features.astype(np.float32)).view(1, 1, -1, 5)
        begun = np.where(scene.guess, *self.begin)
        values = torch.from_numpy(begun.astype(np.float32)).view(1, 1, -1, 1)
        observed = torch.from_numpy(scene.seeds.astype(np.float32)).view(1, 1, -1, 1)
        with torch.no_grad():  # threads do not inherit it
            answer = probabilistic_attention(
                tokens,
                tokens,
                values,
                query_precision=1.0,
                value_precision=self.value_precision,
                log_prior="uniform",
                value_propagation=self.propagation,
                fixed_values=observed,
                fixed_mask=observed[0, :, :, 0] != 0,  # (1, h w)
                clamp_fixed=True,
            )
        inferred = answer.values.view(scene.guess.shape).numpy()
        # Means of values in [-1, 1] leave it by rounding only.
        return scene.enlarged(((inferred + 1) / 2).clip(0, 1))


class OpenCVGrabCut(ClassicalModel):
    """GrabCut: a Gaussian mixture of colours for object and background each, and a minimum cut.

    Every answer starts from the prompts, not from the answer before. Disks around the clicks are
    certain. With a box, its inside is probably object, and what is outside by more than a tenth of
    its longer side is certainly background, but for positive clicks there: boxes are drawn by
    hand. Without one, disks of a tenth of the image's longer side around the positive clicks are
    probably object. A previous mask takes the place of the box's inside or of the disks. All the
    rest is probably background, and so are the outermost pixels of the image where all would be
    object.

    Of an answer to clicks alone, the connected parts with a positive click are kept; with a box or
    a previous mask, the object may have parts that nobody clicked on. Where there is no object
    or no background to begin with, or the image has a single colour, the mixtures have nothing to
    tell apart, and the answer depends on the prompts alone.

    The answer is binary: its probabilities are 0 and 1, but for the enlarged contour.
    """

    working_size = 256  # longer side in pixels
    iterations = 3  # of fitting the mixtures and cutting

    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Segment one image; see `ClassicalModel.segment`."""
        scene = make_scene(image, clicks, box, previous, self.working_size)
        labels = np.where(scene.guess, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
        labels[scene.outside] = cv2.GC_BGD
        if scene.guess.all():
            labels[border(scene.guess.shape)] = cv2.GC_PR_BGD
        labels[scene.seeds > 0] = cv2.GC_FGD
        labels[scene.seeds < 0] = cv2.GC_BGD
        begun = labels & 1 == 1  # GC_FGD and GC_PR_FGD are odd
        colours = scene.image.reshape(-1, 3)
        mask = scene.guess
        if begun.any() and not begun.all() and (colours != colours[0]).any():
            mask = self._cut(scene.image, labels)
        if box is None and previous is None:  # the parts with a positive click
            _, parts = cv2.connectedComponents(mask.astype(np.uint8), connectivity=8)
            mask = np.isin(parts, np.unique(parts[(scene.seeds > 0) & mask]))
        return scene.enlarged(mask)

    def _cut(self, image: Image, labels: npt.NDArray[np.uint8]) -> BoolMap:
        """Return the object, bool, shape `(h, w)`."""
        cv2.setRNGSeed(0)  # of k-means, for this thread alone
        labels, _, _ = cv2.grabCut(
            np.ascontiguousarray(image[..., ::-1]),  # BGR
            labels,
            None,
            np.zeros((1, 65)),
            np.zeros((1, 65)),
            self.iterations,
            cv2.GC_INIT_WITH_MASK,
        )
        return np.asarray(labels & 1 == 1)


class RandomWalker(ClassicalModel):
    """The probability that a walk from a pixel, which avoids edges, ends at the object's seeds.

    Seeds are disks around the clicks and, with a box, what is outside by more than a tenth of its
    longer side, but for positive clicks there. Where there is no such place, the outermost pixels
    of the image are background, but for those within a tenth of its longer side of a positive
    click: a walk has to be able to end there. The core of a box is object, but for disks of that
    size around negative clicks.

    Seeds are facts, and a previous mask is none: it is not used. Where there is no seed of the
    object or of the background, and where the image has a single colour, the answer is what
    the prompts alone say.
    """

    working_size = 96  # longer side in pixels
    beta = 4000.0  # how much walks avoid edges of CIE Lab / 100, see scikit-image's `random_walker`

    def segment(
        self, image: Image, clicks: tuple[Click, ...], box: Box | None, previous: FloatMap | None
    ) -> FloatMap:
        """Segment one image; see `ClassicalModel.segment`."""
        scene = make_scene(image, clicks, box, None, self.working_size)
        size = scene.guess.shape
        labels = np.zeros(size, dtype=np.uint8)
        labels[scene.outside] = BACKGROUND
        if not scene.outside.any():
            labels[border(size) & (scene.to_object > scene.guess_radius)] = BACKGROUND
        if scene.inside is not None:
            # Padded, since the border of the image ends the box, too.
            padded = np.pad(scene.inside, 1).astype(np.uint8)
            depth = cv2.distanceTransform(padded, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[1:-1, 1:-1]
            core = depth >= max(CORE * depth.max(), 1)
            labels[core & (scene.to_background > scene.guess_radius)] = OBJECT
        labels[scene.seeds > 0] = OBJECT
        labels[scene.seeds < 0] = BACKGROUND
        colours = rgb2lab(scene.image) / 100  # (h, w, 3)
        walks = colours.std() > 0 and {OBJECT, BACKGROUND, 0} <= set(labels.flat)
        if not walks:
            return scene.enlarged(scene.guess)
        of_object, _ = random_walker(
            colours, labels, beta=self.beta, mode="bf", return_full_prob=True, channel_axis=-1
        )
        # Solvers overshoot by rounding.
        return scene.enlarged(of_object.clip(0, 1))


class Baseline(L.LightningModule):
    """Task through which the callback `InteractiveEvaluation` evaluates a baseline.

    `probseg test` and `probseg validate` only: there is nothing to train, and no checkpoint.

    Args:
        model: The baseline.
    """

    def __init__(self, model: ClassicalModel) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = model

    def validation_step(self, batch: list[Sample], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Do nothing: the callback does."""

    def test_step(self, batch: list[Sample], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Do nothing: the callback does."""


Image = npt.NDArray[np.uint8]
FloatMap = npt.NDArray[np.float32]
Number = TypeVar("Number", np.uint8, np.float32)

# boxes are drawn by hand: what is further outside than this part of their longer side is not of the
# object
BOX_SLACK = 0.1

HALF_DIAGONAL = 0.5**0.5  # every point of a pixel is at most this far from its centre


class Scene(NamedTuple):
    """Input of a method; maps have shape `(h, w)`.

    Seeds are 1 on the object, -1 on the background and 0 where no click is near; where two disks
    meet, a pixel belongs to the nearest click. The guess is the probable object from the prompts
    alone, without the image, seeds included.
    """

    image: Image  # RGB, (h, w, 3)
    seeds: npt.NDArray[np.int8]
    guess: BoolMap
    inside: BoolMap | None  # of the box
    outside: BoolMap  # of the box by more than `BOX_SLACK`; nowhere without one
    to_object: npt.NDArray[np.float64]  # pixels to the nearest positive click, or infinity
    to_background: npt.NDArray[np.float64]  # to the nearest negative click
    size: tuple[int, int]  # (H, W) before the reduction

    @property
    def guess_radius(self) -> float:
        """`GUESS_RADIUS` in pixels of the reduced image."""
        height, width = self.image.shape[:2]
        return GUESS_RADIUS * float(max(height, width))

    def enlarged(self, values: npt.NDArray[np.bool_] | npt.NDArray[np.floating]) -> FloatMap:
        """Return a map `(h, w)` at the given size `(H, W)`, float32."""
        return _resized(values.astype(np.float32), self.size)


def make_scene(
    image: Image,
    clicks: Iterable[Click],
    box: Box | None,
    previous: FloatMap | None,
    longest: int | None = None,
) -> Scene:
    """Reduce an image `(H, W, 3)` to a longer side in pixels, and draw its prompts.

    The guess is where the probability `previous`, `(H, W)`, is above 1/2; without it, the inside
    of the box; without a box, disks around the positive clicks, as far as no negative click is
    nearer.
    """
    height, width = size = image.shape[0], image.shape[1]
    scale = 1.0 if longest is None else min(1.0, longest / max(size))
    small = max(1, round(height * scale)), max(1, round(width * scale))
    clicks = [
        Click((c.x + 0.5) * small[1] / width - 0.5, (c.y + 0.5) * small[0] / height - 0.5, sign)
        for c, sign in ((click, click.positive) for click in clicks)
    ]
    to_object = _distance((c for c in clicks if c.positive), small)
    to_background = _distance((c for c in clicks if not c.positive), small)
    inside, outside = None, np.zeros(small, dtype=np.bool_)
    if box is not None:
        inside = _box_map(box, size, small)
        x0, y0, x1, y1 = box  # slices end at the border of the image, but must not begin before it
        slack = math.ceil(BOX_SLACK * max(x1 - x0, y1 - y0))
        larger = max(0, x0 - slack), max(0, y0 - slack), x1 + slack, y1 + slack
        outside = ~_box_map(larger, size, small)
    nearest = to_object <= to_background
    if previous is not None:
        guess = _resized(previous, small) > 0.5
    elif inside is not None:
        guess = inside
    else:
        guess = (to_object <= GUESS_RADIUS * max(small)) & nearest
    radius = max(SEED_RADIUS * max(small), HALF_DIAGONAL)
    seeds = np.zeros(small, dtype=np.int8)
    seeds[(to_background <= radius) & ~nearest] = -1
    seeds[(to_object <= radius) & nearest] = 1
    guess = (guess | (seeds > 0)) & (seeds >= 0)
    return Scene(
        _resized(image, small), seeds, guess, inside, outside, to_object, to_background, size
    )


def border(size: tuple[int, int]) -> BoolMap:
    """Return a map `(h, w)` that is True at the outermost pixels of an image."""
    edge = np.ones(size, dtype=np.bool_)
    edge[1:-1, 1:-1] = False
    return edge


def _box_map(box: Box, size: tuple[int, int], small: tuple[int, int]) -> BoolMap:
    """Return where at least half of a pixel is inside the box, bool, shape `small`."""
    inside = np.zeros(size, dtype=np.float32)
    x0, y0, x1, y1 = box
    inside[y0:y1, x0:x1] = 1
    return np.asarray(_resized(inside, small) >= 0.5)


def _distance(clicks: Iterable[Click], size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Return the distance in pixels to the nearest click, infinite without one."""
    y, x = np.ogrid[: size[0], : size[1]]
    distance = np.full(size, np.inf)
    for click in clicks:
        np.minimum(distance, np.hypot(x - click.x, y - click.y), out=distance)
    return distance


def _resized(values: npt.NDArray[Number], size: tuple[int, int]) -> npt.NDArray[Number]:
    """Return an image or a map at the size `(h, w)`; areas are averaged where it shrinks."""
    if values.shape[:2] == size:
        return values
    shrinks = size[0] * size[1] < values.shape[0] * values.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    resized = cv2.resize(values, (size[1], size[0]), interpolation=method)
    return np.asarray(resized, dtype=values.dtype)
