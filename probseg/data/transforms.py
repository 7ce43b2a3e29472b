"""Training augmentation: crops whose scale, position and colours are functions of a seed."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import albumentations as A
import cv2
import numpy as np
import numpy.typing as npt

from probseg.errors import DataError, require
from probseg.geometry import mask_box, padded_crop
from probseg.types import IGNORE, Sample

Picture = npt.NDArray[np.uint8]
Pair = tuple[Picture, Picture]  # image (H, W, 3) and mask or labels (H, W)


class Augmentation:
    """Random changes of an image and its mask by a transform, whose draws follow a generator.

    Without one, changes of colours, sharpness and noise. Independently of each other: brightness
    and contrast in 60 % of the cases, hue, saturation and value in 50 %, all colours become grey in
    5 %, and 15 % are blurred, compressed or noisy.
    """

    def __init__(self, transform: A.BasicTransform | A.BaseCompose | None = None) -> None:
        self.transform = (
            transform
            if transform is not None
            else A.Compose(
                [
                    A.RandomBrightnessContrast(0.25, 0.25, p=0.6),
                    A.HueSaturationValue(10, 25, 10, p=0.5),
                    A.ToGray(p=0.05),
                    A.OneOf(
                        [
                            A.GaussianBlur(),
                            A.ImageCompression(quality_range=(50, 90)),
                            A.GaussNoise(),
                        ],
                        p=0.15,
                    ),
                ]
            )
        )

    def __call__(self, image: Picture, mask: Picture, generator: np.random.Generator) -> Pair:
        """Return changed copies; as they were if nothing of the object would be left."""
        # Not by `set_random_seed`: all transforms would draw the same numbers.
        python_random = random.Random(int(generator.integers(2**63)))
        self.transform.set_random_state(generator, python_random)
        changed = self.transform(image=image, mask=mask)
        new, labels = changed["image"], changed["mask"]
        fits = [isinstance(of, np.ndarray) and of.dtype == np.uint8 for of in (new, labels)]
        fits += [new.shape == image.shape, labels.shape == mask.shape]
        expected = f"a transform that keeps arrays of uint8 and their size, {mask.shape}"
        require(all(fits), "augmentation", expected, f"{new.dtype} of {new.shape}")
        return (new, labels) if (labels == 1).any() else (image, mask)


ATTEMPTS = 4  # number of attempts to draw a crop that contains part of its object
ROTATED = 0.3  # fraction of the object crops that are rotated
MAX_TURN = 15.0  # largest angle in degrees, to either side


class Part(NamedTuple):
    """A part of a photograph, halved or not."""

    mask: Picture  # of the part, halved
    rows: slice  # of the photograph
    columns: slice
    step: int  # sides of a pixel of the part, in pixels of the photograph
    height: int  # of the photograph

    def cut(self, image: Picture) -> Picture:
        """Cut the part out of its photograph, which `read_image` may have reduced."""
        coarse = self.height // image.shape[0]
        rows, columns = (slice(s.start // coarse, s.stop // coarse) for s in self[1:3])
        if self.step == coarse:
            return image[rows, columns].copy()
        size = self.mask.shape[::-1]
        part: Picture = cv2.resize(image[rows, columns], size, interpolation=cv2.INTER_AREA)
        return part


LARGE = 2_000_000  # pixels from which on a photograph is cut before crops are made of it
SMALLEST_CROP = 32  # least side of a training crop, in pixels


class TrainingCrop:
    """Crops an object with padding, changes its scale and colours, and fits it to a fixed size.

    One crop in two is mirrored, three in ten are turned by up to 15 degrees, and an `Augmentation`
    changes them in the end. Outside the photograph the image is black and the mask ignored.
    Labels are never blended.

    `scale` is the size of the padded crop relative to `size`; above 1 only a part of it, always
    with some of the object, is seen. The share of the crop that the object's box takes is log-
    uniform between the limits of `padding`, fractions of its longer side: small objects in large
    surroundings are as frequent as large ones.
    """

    def __init__(
        self,
        size: int = 256,
        scale: tuple[float, float] = (0.6, 1.4),
        padding: tuple[float, float] = (0.1, 0.8),
        augmentation: A.BasicTransform | A.BaseCompose | None = None,
    ) -> None:
        check_scale(scale)
        in_order = "(smallest, largest) with 0 <= smallest <= largest"
        require(0 <= padding[0] <= padding[1], "padding", in_order, padding)
        self.size = size
        self.scale = scale
        self.padding = padding
        self.augmentation = Augmentation(augmentation)

    def __call__(self, sample: Sample, seed: int) -> Pair:
        """Return a crop `(size, size, 3)` in other colours and its mask `(size, size)`, uint8."""
        generator = np.random.default_rng(seed)
        return self.augmentation(*self.cut(sample, generator), generator)

    def cut(self, sample: Sample, generator: np.random.Generator) -> Pair:
        """Cut out a crop in the colours of the photograph; see `__call__`."""
        if not (sample.mask == 1).any():
            raise DataError(
                f"{sample.name} of {sample.dataset}: the mask has no pixel of the object"
            )
        # A margin p for which 1 + 2 p, crop over object, is log-uniform
        nearest, farthest = (math.log1p(2 * padding) for padding in self.padding)
        padding = math.expm1(generator.uniform(nearest, farthest)) / 2
        box, size = mask_box(sample.mask), sample.mask.shape
        x0, y0, x1, y1 = padded_crop(box, size, padding=padding, min_padding=4)
        image, mask = sample.image[y0:y1, x0:x1], sample.mask[y0:y1, x0:x1]
        longest = max(mask.shape)
        # A strip of a photograph would become less than a pixel wide.
        too_thin = self.size * self.scale[0] * min(mask.shape) < 2 * longest
        for _ in range(0 if too_thin else ATTEMPTS):
            factor = self.size / longest * generator.uniform(*self.scale)
            image_part, mask_part = self._fit(*rescale(image, mask, factor), generator)
            if generator.random() < ROTATED:  # around the centre
                angle, side = generator.uniform(-MAX_TURN, MAX_TURN), (self.size, self.size)
                turn = cv2.getRotationMatrix2D(2 * ((self.size - 1) / 2,), angle, 1.0)
                image_part = cv2.warpAffine(image_part, turn, side, flags=cv2.INTER_LINEAR)
                nearest_pixel = {"flags": cv2.INTER_NEAREST, "borderValue": IGNORE}
                mask_part = cv2.warpAffine(mask_part, turn, side, **nearest_pixel)
            if (mask_part == 1).any():
                return image_part, mask_part
        # Reduced, a line falls between the pixels: a part of it at its own size.
        return self._fit(sample.image, sample.mask, generator)

    def part(self, mask: Picture) -> Part | None:
        """Return what crops of an object can show of a large photograph; None of others.

        Crops are the same, unless all of them are less than half as large as in the photograph:
        then it is halved before, and once more where they are less than a quarter, and so on.
        """
        if mask.size < LARGE or not (mask == 1).any():
            return None
        box, size = mask_box(mask), mask.shape
        # As much as the largest padding shows, and a window around each pixel of the object.
        x0, y0, x1, y1 = padded_crop(box, size, padding=self.padding[1], min_padding=self.size)
        near = padded_crop(box, size, padding=self.padding[0], min_padding=4)
        factor = self.size * self.scale[1] / max(near[2] - near[0], near[3] - near[1])
        step = 2 ** int(math.log2(1 / factor)) if factor < 0.5 else 1
        rows, columns = (  # between multiples of the step, of which few may be left at an edge
            slice(first // step * step, min(-(-last // step), side // step) * step)
            for first, last, side in ((y0, y1, size[0]), (x0, x1, size[1]))
        )
        small = mask[rows, columns][step // 2 :: step, step // 2 :: step]
        if step > 1 and not (small == 1).any():  # a line that falls between the pixels
            return Part(mask[y0:y1, x0:x1].copy(), slice(y0, y1), slice(x0, x1), 1, size[0])
        return Part(small.copy(), rows, columns, step, size[0])

    def _fit(self, image: Picture, mask: Picture, generator: np.random.Generator) -> Pair:
        """Crop or pad to the size, with some of the object if any is left; mirror one in two."""
        places = np.flatnonzero(mask == 1)
        shown: tuple[int | None, int | None] = (None, None)
        if places.size:
            row, column = divmod(int(places[generator.integers(places.size)]), mask.shape[1])
            shown = (row, column)
        return cut_window(image, mask, (self.size, self.size), generator, shown)


def check_scale(scale: tuple[float, float]) -> None:
    """Raise a ValueError unless a smallest and a largest factor are positive and in order."""
    in_order = "(smallest, largest) with 0 < smallest <= largest"
    require(0 < scale[0] <= scale[1], "scale", in_order, scale)


def rescale(image: Picture, labels: Picture, factor: float) -> Pair:
    """Resize both, the labels by their nearest pixels."""
    height, width = (max(1, int(side * factor)) for side in labels.shape)
    image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    # Plain INTER_NEAREST takes another centre of a pixel than INTER_LINEAR.
    labels = cv2.resize(labels, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
    return image, labels


def cut_window(
    image: Picture,
    labels: Picture,
    size: tuple[int, int],
    generator: np.random.Generator,
    shown: tuple[int | None, int | None] = (None, None),
) -> Pair:
    """Cut a window `(H, W)` out of an image and its labels at a random place; mirror one in two.

    It is padded outside of the image, and contains the row and column `shown`, if any.
    """
    corner = []
    for length, window, place in zip(labels.shape, size, shown, strict=True):
        if length <= window:  # padded
            corner.append(-int(generator.integers(window - length, endpoint=True)))
        elif place is None:
            corner.append(int(generator.integers(length - window, endpoint=True)))
        else:
            before = place - int(generator.integers(window))
            corner.append(min(max(before, 0), length - window))
    top, left = corner
    rows = slice(max(top, 0), top + size[0])
    columns = slice(max(left, 0), left + size[1])
    image, labels = image[rows, columns], labels[rows, columns]
    above, before = max(-top, 0), max(-left, 0)
    below, behind = size[0] - above - labels.shape[0], size[1] - before - labels.shape[1]
    border = (above, below, before, behind, cv2.BORDER_CONSTANT)
    image = cv2.copyMakeBorder(image, *border, value=(0, 0, 0))
    labels = cv2.copyMakeBorder(labels, *border, value=IGNORE)
    if generator.random() < 0.5:
        image, labels = cv2.flip(image, 1), cv2.flip(labels, 1)
    return image, labels
