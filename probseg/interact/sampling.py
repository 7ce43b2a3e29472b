"""Maps and images between the pixels of an image, of a part of it, and of a reduced copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.clicks.boxes import Box
from probseg.models.encoded import Size


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
    """Return the pixels of an image that `count` samples of an interval lie on, corners aligned.

    Args:
        first: First pixel of the interval.
        length: Its number of pixels.
        count: Number of samples.

    Returns:
        float64, shape `(count,)`, from `first` to `first + length - 1`.
    """
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

    Returns:
        In samples, float64, shape `(n, 2)`.
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
    """Interpolate maps bilinearly on a grid of rows and columns.

    Args:
        maps: float, shape `(C, H, W)`.
        columns: Positions in pixels of the maps, centres being whole numbers, shape `(w,)`.
        rows: Likewise, shape `(h,)`.
        padding: "border" repeats the outermost pixels outside of the maps, "zeros" is 0 there.

    Returns:
        Shape `(C, h, w)`.
    """
    y, x = (
        2 * at.to(maps) / max(1, length - 1) - 1
        for at, length in zip((rows, columns), maps.shape[-2:], strict=True)
    )
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
    return F.grid_sample(maps[None], grid[None], "bilinear", padding, align_corners=True)[0]
