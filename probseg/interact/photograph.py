"""A photograph with reduced copies, and resized parts of it.

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

from probseg.errors import DataError
from probseg.geometry import (
    LARGE,
    LEVELS,
    SHOWN,
    Array,
    Box,
    Size,
    View,
    box_size,
    copy_samples,
    find_copy,
    shrink_to,
)
from probseg.images import read_image


@dataclass(frozen=True, eq=False)
class Photograph:
    """An image on the device of the model, with reduced copies where it is large.

    Args:
        size: `(H, W)`.
        levels: RGB, uint8, shape `(3, h, w)` each, the finest first: the image alone, or with
            copies of which each has at most half the sides of the one before.
        read: Reads the image at full size if the first level is a copy, else None.
    """

    size: Size
    levels: tuple[Tensor, ...]
    read: Callable[[], Tensor] | None = None

    @classmethod
    def from_tensor(cls, image: Tensor) -> Photograph:
        """Return an image, RGB, uint8, `(3, H, W)`, without reduced copies."""
        return cls((image.shape[1], image.shape[2]), (image,))

    @cached_property
    def full(self) -> Tensor:
        """The image at full size, RGB, uint8, shape `(3, H, W)`; read when first asked for."""
        return self.levels[0] if self.read is None else self.read()

    @property
    def device(self) -> torch.device:
        """Device of the image."""
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

    def unzoomed_view(self, box: Box) -> View:
        """Return the view of a box of the image without a zoom."""
        return View(box, shrink_to(box_size(box), SHOWN if self.is_large else None))

    def render(self, view: View) -> Tensor:
        """Cut a box out and resize it to `(h, w)`: RGB in [0, 1], float32, shape `(3, h, w)`.

        For a large photograph, the smallest copy with enough pixels is used.
        """
        (x0, y0, x1, y1), size = view
        copies = self.levels[1:] if self.read is None else self.levels
        sizes = [(level.shape[1], level.shape[2]) for level in copies]
        number = find_copy(view, self.size, sizes)
        if number is None:
            part = self.full[:, y0:y1, x0:x1]
            return resize_aligned(part.float() / 255 if part.dtype == torch.uint8 else part, size)
        level = copies[number]
        if view == View((0, 0, self.size[1], self.size[0]), sizes[number]):
            return level.float() / 255
        rows, columns = copy_samples(view, self.size, sizes[number])
        left, top = (max(0, int(at[0]) - 1) for at in (columns, rows))
        part = level[:, top : int(rows[-1]) + 3, left : int(columns[-1]) + 3].float() / 255
        return interpolate(part, columns - left, rows - top, "border")


def image_tensor(image: npt.NDArray[np.uint8], device: torch.device | str = "cpu") -> Tensor:
    """Turn RGB uint8 `(H, W, 3)` into a tensor uint8 `(3, H, W)`."""
    pixels = torch.from_numpy(image.copy(order="C"))  # views may run backwards
    return pixels.to(device).permute(2, 0, 1)


def as_photograph(image: npt.NDArray[np.uint8], device: torch.device | str = "cpu") -> Photograph:
    """Turn an image, RGB, uint8, `(H, W, 3)`, into a photograph, with copies if it is large."""
    size, whole = (image.shape[0], image.shape[1]), image_tensor(image, device)
    return Photograph(size, (whole, *_copies(image, device)))


def open_photograph(path: Path, device: torch.device | str = "cpu") -> Photograph:
    """Read an image file; a large one is dropped from memory until a view needs all its pixels.

    A DataError says that the file cannot be read now, or is gone or has changed by then.
    """
    path = path.absolute()  # the working directory may change until then
    state, image = _state(path), read_image(path)
    size, copies = (image.shape[0], image.shape[1]), _copies(image, device)
    if not copies:
        return Photograph.from_tensor(image_tensor(image, device))

    def read() -> Tensor:
        if _state(path) != state:
            raise DataError(f"{path}: is gone or has changed since it was opened; open it again")
        return image_tensor(read_image(path), device)

    return Photograph(size, copies, read)


def _state(path: Path) -> tuple[int, int] | None:
    """Return what another file or content changes; None without a file."""
    status = path.stat() if path.exists() else None
    return status and (status.st_size, status.st_mtime_ns)


def _copies(image: npt.NDArray[np.uint8], device: torch.device | str) -> tuple[Tensor, ...]:
    """Return the reduced copies of an image `(H, W, 3)`; none if it is not large."""
    size, copies = (image.shape[0], image.shape[1]), []
    for longest in LEVELS if max(size) > LARGE else ():
        height, width = shrink_to(size, longest)
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        copies.append(image_tensor(image, device))
    return tuple(copies)


def resize_aligned(maps: Tensor, size: Size) -> Tensor:
    """Resize maps `(C, H, W)`; maps of this size are returned as they are."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    # Corners aligned, as in the code of RITM, so that its figures can be compared.
    return F.interpolate(maps[None], size, mode="bilinear", align_corners=True)[0]


def interpolate(maps: Tensor, columns: Array, rows: Array, padding: str) -> Tensor:
    """Interpolate maps `(C, H, W)` bilinearly at columns `(w,)` and rows `(h,)`, to `(C, h, w)`.

    Pixels have their centres at whole numbers. Outside of the maps, padding "border" repeats the
    outermost pixels, and "zeros" is 0.
    """
    y, x = (
        2 * torch.from_numpy(at).to(maps) / max(1, length - 1) - 1
        for at, length in zip((rows, columns), maps.shape[-2:], strict=True)
    )
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
    return F.grid_sample(maps[None], grid[None], "bilinear", padding, align_corners=True)[0]
