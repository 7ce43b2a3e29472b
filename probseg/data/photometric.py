"""Photometric augmentation of training crops: colours, blur, noise and compression.

The only module that knows albumentations.
"""

from __future__ import annotations

import os
import random

# Without this, importing albumentations asks a server for its latest version.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import albumentations as A
import numpy as np
import numpy.typing as npt


class PhotometricAugmentation:
    """Random changes of colours, sharpness and noise.

    Independently of each other: brightness and contrast in 60 % of the cases, hue, saturation and
    value in 50 %, all colours become grey in 5 %, and 15 % are blurred, compressed or noisy.
    """

    def __init__(self) -> None:
        self.transform = A.Compose(
            [
                A.RandomBrightnessContrast(0.25, 0.25, p=0.6),
                A.HueSaturationValue(10, 25, 10, p=0.5),
                A.ToGray(p=0.05),
                A.OneOf(
                    [A.GaussianBlur(), A.ImageCompression(quality_range=(50, 90)), A.GaussNoise()],
                    p=0.15,
                ),
            ]
        )

    def __call__(
        self, image: npt.NDArray[np.uint8], generator: np.random.Generator
    ) -> npt.NDArray[np.uint8]:
        """Return an augmented copy of a photograph: RGB, uint8, shape `(H, W, 3)`."""
        # Not by `set_random_seed`: all transforms would draw the same numbers.
        own = random.Random(int(generator.integers(2**63)))
        self.transform.set_random_state(generator, own)
        changed: npt.NDArray[np.uint8] = self.transform(image=image)["image"]
        return changed
