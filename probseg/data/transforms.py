"""Training augmentation. The only module that knows albumentations."""

from __future__ import annotations

import os
from typing import Any

# Without this, importing albumentations asks a server for its latest version.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import albumentations as A
import cv2
import numpy as np

from probseg.clicks.boxes import mask_box, padded_crop
from probseg.types import IGNORE, Sample, SemanticSample

ATTEMPTS = 4
"""How often a crop is drawn anew because nothing of its object was left."""


class TrainingCrop:
    """Crops an object with padding, changes its scale and look, and fits it to a fixed size.

    What lies outside the photograph is black in the image and ignored in the mask.

    Args:
        size: Side of the square result in pixels.
        scale: Smallest and largest size of the padded crop relative to ``size``; above 1 only a
            part of it, always with some of the object, is seen.
        padding: Smallest and largest margin around the object, as fractions of the longer side of
            its box.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        size: int = 256,
        scale: tuple[float, float] = (0.6, 1.4),
        padding: tuple[float, float] = (0.1, 0.8),
    ) -> None:
        if size < 32:
            msg = f"size must be at least 32 pixels, got {size}"
            raise ValueError(msg)
        if not 0 < scale[0] <= scale[1]:
            msg = f"scale must be (smallest, largest) with 0 < smallest <= largest, got {scale}"
            raise ValueError(msg)
        if not 0 <= padding[0] <= padding[1]:
            msg = (
                f"padding must be (smallest, largest) with 0 <= smallest <= largest, got {padding}"
            )
            raise ValueError(msg)
        self.padding = padding
        self.smallest = size * scale[0]
        self.unreduced = A.Compose(_fit(size))
        self.transform = A.Compose(
            [
                A.LongestMaxSize(size, interpolation=cv2.INTER_LINEAR),
                A.RandomScale((scale[0] - 1, scale[1] - 1), interpolation=cv2.INTER_LINEAR, p=1),
                *_fit(size),
                A.Rotate(15, border_mode=0, fill=0, fill_mask=IGNORE, p=0.3),
                A.RandomBrightnessContrast(0.25, 0.25, p=0.6),
                A.HueSaturationValue(10, 25, 10, p=0.5),
                A.ToGray(p=0.05),
                A.OneOf(
                    [A.GaussianBlur(), A.ImageCompression(quality_range=(50, 90)), A.GaussNoise()],
                    p=0.15,
                ),
            ]
        )

    def __call__(self, sample: Sample, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Cut out a crop.

        Args:
            sample: The object.
            seed: Of all randomness, in [0, 2**63).

        Returns:
            Image ``(size, size, 3)`` and mask ``(size, size)``, both uint8.
        """
        self.transform.set_random_seed(seed % 2**32)
        self.unreduced.set_random_seed(seed % 2**32)
        padding = np.random.default_rng(seed).uniform(*self.padding)
        x0, y0, x1, y1 = padded_crop(
            mask_box(sample.mask), sample.mask.shape, padding=padding, min_padding=4
        )
        # A strip of a photograph would become less than a pixel wide.
        too_thin = self.smallest * min(x1 - x0, y1 - y0) < 2 * max(x1 - x0, y1 - y0)
        for _ in range(0 if too_thin else ATTEMPTS):
            done = self.transform(image=sample.image[y0:y1, x0:x1], mask=sample.mask[y0:y1, x0:x1])
            if (done["mask"] == 1).any():
                break
        else:  # reduced, a line falls between the pixels: a part of it at its own size
            done = self.unreduced(image=sample.image, mask=sample.mask)
        return done["image"], done["mask"]


def _fit(size: int) -> list[Any]:
    """Cut or fill up to a square of that size with a part of the object, and flip it."""
    return [
        A.PadIfNeeded(size, size, position="random", border_mode=0, fill=0, fill_mask=IGNORE),
        A.CropNonEmptyMaskIfExists(size, size, ignore_values=[IGNORE]),
        A.HorizontalFlip(p=0.5),
    ]


class SemanticCrop:
    """Changes the scale of a photograph, cuts a fixed size out of it, and mirrors one in two.

    What lies outside the photograph is black in the image and ignored in the labels, so that it
    plays no part in the loss. Labels are never blended. The network fills whole photographs up
    with the mean colour instead: by less than its stride, on two sides, and what is predicted there
    is cut off. In both cases filled pixels only surround those that count; no class is learnt for
    black, and a strip of a few pixels has little to say in evaluation.

    Args:
        size: Side of the square result in pixels, or its height and width.
        scale: Smallest and largest factor by which the photograph is scaled first.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, size: int | tuple[int, int] = 513, scale: tuple[float, float] = (0.5, 2.0)
    ) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        if min(height, width) < 32:
            msg = f"size must be at least 32 pixels, got {size}"
            raise ValueError(msg)
        if not 0 < scale[0] <= scale[1]:
            msg = f"scale must be (smallest, largest) with 0 < smallest <= largest, got {scale}"
            raise ValueError(msg)
        self.transform = A.Compose(
            [
                A.RandomScale(
                    (scale[0] - 1, scale[1] - 1),
                    interpolation=cv2.INTER_LINEAR,
                    # Plain INTER_NEAREST takes another centre of a pixel than INTER_LINEAR.
                    mask_interpolation=cv2.INTER_NEAREST_EXACT,
                    p=1,
                ),
                A.PadIfNeeded(
                    height, width, position="random", border_mode=0, fill=0, fill_mask=IGNORE
                ),
                A.RandomCrop(height, width),
                A.HorizontalFlip(p=0.5),
            ]
        )

    def __call__(self, sample: SemanticSample, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Cut out a crop.

        Args:
            sample: The photograph.
            seed: Of all randomness, in [0, 2**63).

        Returns:
            Image ``(height, width, 3)`` and labels ``(height, width)``, both uint8.
        """
        self.transform.set_random_seed(seed % 2**32)
        done = self.transform(image=sample.image, mask=sample.labels)
        return done["image"], done["mask"]
