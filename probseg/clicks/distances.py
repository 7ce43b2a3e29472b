"""Distances of pixels to regions: by OpenCV on processors, by PyTorch on other devices."""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def distance_to(region: Tensor) -> Tensor:
    """City-block distance of each pixel to the nearest pixel of a region.

    Args:
        region: Boolean, shape `(B, H, W)`.

    Returns:
        Distances in pixels, int32, shape `(B, H, W)`: 0 in the region, and at least `H + W`
        everywhere where it is empty.
    """
    height, width = region.shape[1:]
    if region.device.type == "cpu":
        return _by_opencv(~region, cv2.DIST_L1).clamp(max=height + width).int()
    return _by_minima(region)


def eroded(region: Tensor, margin: int) -> Tensor:
    """Return the pixels whose square neighbourhood lies in a region.

    Args:
        region: Boolean, shape `(B, H, W)`. Pixels beyond the image's border are outside.
        margin: Pixels from the centre of the square to its sides, at least 1.

    Returns:
        Boolean, shape `(B, H, W)`.
    """
    if region.device.type == "cpu":
        return _by_opencv(F.pad(region, (1, 1, 1, 1)), cv2.DIST_C)[:, 1:-1, 1:-1] > margin
    return _by_maxima(region, margin)


def _by_opencv(inside: Tensor, metric: int) -> Tensor:
    """Return the distance of pixels `(B, H, W)` to the nearest one outside; huge without any."""
    distances = [
        cv2.distanceTransform(one, metric, 3) for one in inside.contiguous().numpy().view(np.uint8)
    ]
    return torch.from_numpy(np.stack(distances)) if distances else inside.float()


def _by_minima(region: Tensor) -> Tensor:
    """Return the same as `distance_to`: distances in rows, then in columns."""
    height, width = region.shape[1:]
    distance = torch.where(region, 0, height + width).int()
    return _spread(_spread(distance, dim=2), dim=1)


def _by_maxima(region: Tensor, margin: int) -> Tensor:
    """Return the same as `eroded`."""
    outside = F.pad((~region).float().unsqueeze(1), [margin] * 4, value=1.0)
    return F.max_pool2d(outside, 2 * margin + 1, stride=1).squeeze(1) == 0


def _spread(distance: Tensor, dim: int) -> Tensor:
    """Let distances `(B, H, W)` grow by 1 for each step along a dimension."""
    steps = torch.arange(distance.shape[dim], dtype=distance.dtype, device=distance.device)
    steps = steps[:, None] if dim == 1 else steps
    before = (distance - steps).cummin(dim).values + steps
    after = (distance + steps).flip(dim).cummin(dim).values.flip(dim) - steps
    return torch.minimum(before, after)
