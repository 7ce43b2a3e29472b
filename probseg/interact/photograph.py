"""A photograph with reduced copies, and where its pixels lie in boxes that are resized.

With the copies, the cost of a click does not grow with the photograph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.clicks.boxes import Box
from probseg.errors import DataError
from probseg.images import read_image, read_reduced
from probseg.models.network import Size, reduced

LARGE = 2000
"""Most pixels of the longer side of a photograph that is shown to the model as it is."""

LEVELS = (LARGE, 1000, 500)
"""Longer sides in pixels of the reduced copies of a larger one."""

SHOWN = 1000
"""Longer side in pixels at which the model sees a larger one, or a crop of it, as a whole."""


@dataclass(frozen=True, eq=False)
class Photograph:
    """An image on the device of the model, with reduced copies where it is large.

    Args:
        size: `(H, W)`.
        levels: RGB, uint8, shape `(3, h, w)` each, the finest first: the image alone, or with
            copies of which each has at most half the sides of the one before.
        read: Reads the image at full size where the first level is a copy; None where it is not.
    """

    size: Size
    levels: tuple[Tensor, ...]
    read: Callable[[], Tensor] | None = None

    @classmethod
    def of(cls, image: Tensor) -> Photograph:
        """Return an image, RGB, uint8, `(3, H, W)`, that is always shown as it is."""
        return cls((image.shape[1], image.shape[2]), (image,))

    @cached_property
    def full(self) -> Tensor:
        """The image at full size, RGB, uint8, shape `(3, H, W)`; read when first asked for."""
        return self.levels[0] if self.read is None else self.read()

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.levels[0].device

    @property
    def is_large(self) -> bool:
        """Whether the model sees reduced copies."""
        return len(self.levels) > 1

    @property
    def nbytes(self) -> int:
        """Bytes of the copies, and of the image at full size if it is in memory."""
        read = [self.full] if self.read is not None and "full" in vars(self) else []
        return sum(level.nbytes for level in (*self.levels, *read))

    def view_size(self, box: Box) -> Size:
        """Return `(h, w)` at which the model sees a box of the image without a zoom."""
        return reduced(box_size(box), SHOWN if self.is_large else None)

    def shown(self, box: Box, size: Size) -> Tensor:
        """Cut a box out and resize it to `(h, w)`: RGB in [0, 1], float32, shape `(3, h, w)`.

        Of a large photograph, the pixels come from the smallest copy that has enough of them.
        """
        x0, y0, x1, y1 = box
        height, width = box_size(box)
        copies = self.levels[1:] if self.read is None else self.levels
        for level in copies[::-1]:
            scale_y, scale_x = level.shape[1] / self.size[0], level.shape[2] / self.size[1]
            if (box_size(box), tuple(level.shape[1:])) == (self.size, size):
                return level.float() / 255
            if height * scale_y < size[0] or width * scale_x < size[1]:
                continue
            return _resampled(
                level,
                (positions(x0, width, size[1]) + 0.5) * scale_x - 0.5,
                (positions(y0, height, size[0]) + 0.5) * scale_y - 0.5,
            )
        part = self.full[:, y0:y1, x0:x1]
        if part.dtype == torch.uint8:
            part = part.float() / 255
        return fitted(part, size)


def image_tensor(image: npt.NDArray[np.uint8], device: torch.device | str = "cpu") -> Tensor:
    """Turn RGB uint8 `(H, W, 3)` into a tensor uint8 `(3, H, W)`."""
    pixels = torch.from_numpy(image.copy(order="C"))  # views may run backwards
    return pixels.to(device).permute(2, 0, 1)


def as_photograph(image: npt.NDArray[np.uint8], device: torch.device | str = "cpu") -> Photograph:
    """Return an image, RGB, uint8, `(H, W, 3)`, with reduced copies if it is large."""
    whole = image_tensor(image, device)
    if max(whole.shape) <= LARGE:
        return Photograph.of(whole)
    size = (image.shape[0], image.shape[1])
    return Photograph(size, (whole, *_copies(image, size, device)))


def open_photograph(path: Path, device: torch.device | str = "cpu") -> Photograph:
    """Read an image file: of a large one, reduced copies; itself when a view needs its pixels.

    A DataError says that the file cannot be read: now, or by the first view that needs all pixels.
    """
    image, size = read_reduced(path, LEVELS[0])
    if max(size) <= LARGE:
        return Photograph.of(image_tensor(image, device))

    def read() -> Tensor:
        pixels = read_image(path)
        if pixels.shape[:2] != size:
            msg = f"{path}: has {pixels.shape[:2]} pixels now, {size} before; open it again"
            raise DataError(msg)
        return image_tensor(pixels, device)

    return Photograph(size, _copies(image, size, device), read)


def _copies(
    image: npt.NDArray[np.uint8], size: Size, device: torch.device | str
) -> tuple[Tensor, ...]:
    """Return the reduced copies of an image `(H, W, 3)`, of which `size` is the full size."""
    copies = []
    for longest in LEVELS:
        height, width = reduced(size, longest)
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        copies.append(image_tensor(image, device))
    return tuple(copies)


def _resampled(level: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """Interpolate a level `(3, h, w)` at these positions, to float in [0, 1]."""
    x0, y0 = (max(0, int(at[0]) - 1) for at in (columns, rows))
    part = level[:, y0 : int(rows[-1]) + 3, x0 : int(columns[-1]) + 3].float() / 255
    return sampled(part, columns - x0, rows - y0, "border")


def box_size(box: Box) -> Size:
    """Return `(H, W)` of a box."""
    return box[3] - box[1], box[2] - box[0]


def fitted(maps: Tensor, size: Size) -> Tensor:
    """Resize maps `(C, H, W)`; maps of this size are returned as they are."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    # Corners aligned, as in the code of RITM, so that its figures can be compared.
    return F.interpolate(maps[None], size, mode="bilinear", align_corners=True)[0]


def positions(first: int, length: int, count: int) -> Tensor:
    """Return pixels, float64 `(count,)`, evenly from `first` to `first + length - 1`."""
    if count == 1:
        return torch.tensor([float(first)], dtype=torch.float64)
    return torch.linspace(first, first + length - 1, count, dtype=torch.float64)


def places(
    points: npt.NDArray[np.float64], box: Box, size: Size, *, shifted: bool = False
) -> npt.NDArray[np.float64]:
    """Return where points of an image lie among the samples of a box, the inverse of `positions`.

    Args:
        points: `(x, y)` in pixels of the image, shape `(n, 2)`.
        box: In pixels of the image.
        size: `(h, w)` that the box was resized to.
        shifted: Multiply by the ratio of the sizes, as the published code does. What lies there is
            off by up to one pixel less the ratio `pixels / samples`, at the end of the box.
    """
    relative = points - np.array(box[:2])
    samples, pixels = np.array(size[::-1]), np.array(box_size(box)[::-1])
    scale = samples / pixels
    if not shifted and tuple(samples) != tuple(pixels):
        # The last sample lies on the last pixel, to all of which a click with a fraction belongs.
        # Clicks outside of the box stay outside.
        relative = np.where(relative < pixels, np.minimum(relative, pixels - 1), relative)
        scale = (samples - 1) / np.maximum(pixels - 1, 1)
    moved: npt.NDArray[np.float64] = relative * scale
    return moved


def sampled(maps: Tensor, columns: Tensor, rows: Tensor, padding: str) -> Tensor:
    """Interpolate maps `(C, H, W)` bilinearly at columns `(w,)` and rows `(h,)`, to `(C, h, w)`.

    Pixels have their centres at whole numbers. Outside of the maps, padding "border" repeats the
    outermost pixels, and "zeros" is 0.
    """
    y, x = (
        2 * at.to(maps) / max(1, length - 1) - 1
        for at, length in zip((rows, columns), maps.shape[-2:], strict=True)
    )
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
    return F.grid_sample(maps[None], grid[None], "bilinear", padding, align_corners=True)[0]
