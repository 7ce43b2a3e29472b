"""Whether exported graphs answer as the network does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from skimage.data import astronaut
from torch import Tensor

from probseg.export.runner import ClassRunner, Runner
from probseg.interact.predictor import Predictor
from probseg.metrics import iou
from probseg.models import Network, Segmenter
from probseg.types import Click

Questions = list[tuple[list[tuple[float, float, bool]], tuple[float, float, float, float] | None]]

STEPS: Questions = [
    ([(0.5, 0.5, True)], None),
    ([(0.1, 0.15, False)], None),
    ([(0.62, 0.41, True), (0.9, 0.8, False)], None),
    ([], (0.2, 0.25, 0.81, 0.9)),
    ([(0.45, 0.6, True)], None),
    ([(0.02, 0.97, False)], None),
]
"""Clicks and box of each question about an image, in shares of its sides."""

BOX_ALONE = STEPS[3:4]


class Parity(NamedTuple):
    """Differences between the answers of exported graphs and of the network.

    Args:
        answers: Number of answers compared.
        largest_logit: Largest absolute logit of the network.
        logit_difference: Largest absolute difference of two logits.
        pixels: Number of pixels of all masks.
        differing_pixels: Those that one calls object and the other background.
        mean_iou: IoU of the two masks of an answer, in the mean, or of a class over all images.
    """

    answers: int
    largest_logit: float
    logit_difference: float
    pixels: int
    differing_pixels: int
    mean_iou: float


def measure(model: Segmenter, runner: Runner) -> Parity:
    """Compare the answers to clicks and boxes on images of odd sizes, and on a photograph.

    Masks are compared without a zoom and with the recommended one, logits without: a zoom chooses
    among several.

    Args:
        model: In evaluation mode, without refinement.
        runner: Of the exported graphs.
    """
    zoom = runner.zoom
    expected: list[Tensor] = []

    def remember(*hooked: Any) -> None:  # noqa: ANN401
        expected.append(hooked[-1][0, 0])

    runner.zoom, predictor = None, Predictor(model, zoom=None)
    hook = predictor.model.head.register_forward_hook(remember)
    plain = [pair for image in _images() for pair in _compared(predictor, runner, image, STEPS)]
    hook.remove()
    runner.zoom, predictor = zoom, Predictor(model)
    series = STEPS, BOX_ALONE  # which may be answered in two steps
    zoomed = [pair for image in _images() for pair in _compared(predictor, runner, image, *series)]
    logits = [(logits.numpy(), pair.logits) for logits, pair in zip(expected, plain, strict=True)]
    return Parity(
        answers=len(plain + zoomed),
        largest_logit=max(float(np.abs(ours).max()) for ours, _ in logits),
        logit_difference=max(float(np.abs(ours - theirs).max()) for ours, theirs in logits),
        pixels=sum(pair.pixels for pair in plain + zoomed),
        differing_pixels=sum(pair.differing for pair in plain + zoomed),
        mean_iou=float(np.mean([pair.iou for pair in plain + zoomed])),
    )


@torch.inference_mode()
def measure_classes(model: Network, runner: ClassRunner) -> Parity:
    """Compare the logits of all classes, and the classes, on the same images."""
    pairs = []
    for image in _images():
        pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
        pairs.append((model(pixels)[0].numpy(), runner.logits(image)))
    ours, theirs = (np.concatenate([two[n].argmax(0).ravel() for two in pairs]) for n in (0, 1))
    ious = [iou(theirs == n, (ours == n).astype(np.uint8)) for n in np.unique(ours)]
    return Parity(
        answers=len(pairs),
        largest_logit=max(float(np.abs(one).max()) for one, _ in pairs),
        logit_difference=max(float(np.abs(one - other).max()) for one, other in pairs),
        pixels=ours.size,
        differing_pixels=int((ours != theirs).sum()),
        mean_iou=float(np.mean(ious)),
    )


class _Pair(NamedTuple):
    """Logits of the exported graphs, and two masks compared."""

    logits: npt.NDArray[np.float32]
    pixels: int
    differing: int
    iou: float


def _compared(
    predictor: Predictor, runner: Runner, image: npt.NDArray[np.uint8], *series: Questions
) -> Iterator[_Pair]:
    height, width = image.shape[:2]
    for steps in series:
        predictor.set_image(image)
        runner.set_image(image)
        for clicks, box in steps:
            asked = [(x * width, y * height, positive) for x, y, positive in clicks]
            drawn = None
            if box is not None:
                drawn = (box[0] * width, box[1] * height, box[2] * width, box[3] * height)
            mask = predictor.predict([Click(*click) for click in asked], drawn).binary
            other = runner.predict(asked, drawn) > 0.5
            assert runner.answer is not None, "just given"
            overlap = iou(other, mask.astype(np.uint8))
            yield _Pair(runner.answer.logits, mask.size, int((mask != other).sum()), overlap)


def _images() -> Iterator[npt.NDArray[np.uint8]]:
    """Yield noise of odd sizes, and a photograph that most networks reduce."""
    generator = np.random.default_rng(0)
    for size in ((97, 143), (211, 85)):
        coarse = generator.integers(0, 256, (size[0] // 8 + 1, size[1] // 8 + 1, 3), np.uint8)
        smooth = coarse.repeat(8, axis=0).repeat(8, axis=1)[: size[0], : size[1]]
        yield smooth ^ generator.integers(0, 16, smooth.shape, np.uint8)
    yield astronaut()[:401, :477]
