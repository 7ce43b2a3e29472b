"""Objects that their images show, and models that are plain functions, for tests of interaction."""

from __future__ import annotations

import numpy as np
import torch

from probseg.models import Segmenter
from probseg.models.network import OneStep, SegmenterModel
from probseg.types import IGNORE, Sample
from support.fakes import Pixels


def toy_sample(size: tuple[int, int] = (61, 83), seed: int = 0) -> Sample:
    """An object that the image shows: its red channel is the mask; a rim of it is ignored.

    It has a stroke on the object and one on the background, and a mask to correct: the object moved
    by a few pixels.
    """
    y, x = np.ogrid[: size[0], : size[1]]
    generator = np.random.default_rng(seed)
    cy, cx = generator.uniform(0.3, 0.7, 2) * size
    ry, rx = generator.uniform(0.15, 0.3, 2) * size
    radius = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2
    mask = np.where(radius < 0.8, 1, np.where(radius < 1, IGNORE, 0)).astype(np.uint8)
    image = generator.integers(0, 255, (*size, 3), dtype=np.uint8)
    image[..., 0] = np.where(mask == 1, 255, 0)
    strokes = np.full(size, IGNORE, np.uint8)
    strokes[0] = 0
    strokes[round(cy)] = np.where(mask[round(cy)] == 1, 1, IGNORE)
    initial = np.roll(mask == 1, (2, -5), axis=(0, 1))
    return Sample(image, mask, f"object {seed}", "Toy", scribbles=strokes, initial=initial)


def plain_sample(mask: Pixels, name: str = "plain") -> Sample:
    """A mask and the image that shows it, with strokes and a mask to correct."""
    image = np.repeat(np.where(mask == 1, 255, 0).astype(np.uint8)[..., None], 3, axis=2)
    strokes = np.full(mask.shape, IGNORE, np.uint8)
    strokes[::2, ::3] = mask[::2, ::3]
    return Sample(image, mask, name, "Toy", scribbles=strokes, initial=np.roll(mask, 1, 1) == 1)


def as_logits(inside: torch.Tensor) -> torch.Tensor:
    """Logits `(1, 1, H, W)` that are sure of a mask."""
    return torch.where(inside, 9.0, -9.0)[None, None]


@OneStep
def sees_the_truth(image, prompts):
    return as_logits(image[0, 0] > 0.5)


@OneStep
def sees_nothing(image, prompts):
    return as_logits(torch.zeros(image.shape[2:], dtype=torch.bool))


@OneStep
def sees_everything(image, prompts):
    return as_logits(torch.ones(image.shape[2:], dtype=torch.bool))


def paints_disks(radius: float) -> OneStep:
    """A model that believes each click within a radius, the last one most."""

    @OneStep
    def predict(image, prompts):
        y, x = torch.meshgrid(*map(torch.arange, image.shape[2:]), indexing="ij")
        inside = torch.zeros(image.shape[2:], dtype=torch.bool)
        for (column, row), label in zip(prompts.points[0], prompts.labels[0], strict=True):
            inside[(x - column) ** 2 + (y - row) ** 2 <= radius**2] = bool(label)
        return as_logits(inside)

    return predict


@OneStep
def shades(image, prompts):
    """Logits that hang on every pixel of the image, every click and the box, and on their order."""
    height, width = image.shape[2:]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    logits = 3 * image[0].mean(dim=0) - 1.6 + 0.3 * x / width
    for n, ((column, row), label) in enumerate(
        zip(prompts.points[0], prompts.labels[0], strict=True), start=1
    ):
        near = torch.exp(-((x - column).abs() + 2 * (y - row).abs()) / (4 + n))
        logits = logits + (4 * label - 2) * near
    if not prompts.boxes.isnan().any():
        x0, y0, x1, y1 = prompts.boxes[0]
        logits = logits + torch.where((x >= x0) & (x < x1) & (y >= y0) & (y < y1), 0.5, -0.7)
    return logits[None, None]


class Spy:
    """A model that remembers what it was asked.

    Attributes:
        encoded: Sizes `(H, W)` of the images of each call of `encode_each`.
        decoded: Prompts of each call of `decode_each`.
    """

    def __init__(self, model):
        self.model = SegmenterModel(model) if isinstance(model, Segmenter) else model
        self.encoded = []
        self.decoded = []

    def batch_key(self, size):
        return self.model.batch_key(size)

    def encode_each(self, images):
        self.encoded.append([tuple(image.shape[1:]) for image in images])
        return self.model.encode_each(images)

    def decode_each(self, encoded, prompts):
        self.decoded.append(list(prompts))
        return self.model.decode_each(encoded, prompts)
