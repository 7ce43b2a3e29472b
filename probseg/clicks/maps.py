"""Click maps: prompts as image channels."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from probseg.types import Prompts

ClickEncoding = Literal["disk", "distance"]
BoxEncoding = Literal["corners", "either", "filled"]


def squared_distances(points: Tensor, size: tuple[int, int]) -> Tensor:
    """Squared distances of all pixels `(..., H, W)` to points `(..., 2)`; NaN gives NaN."""
    height, width = size
    x = torch.arange(width, device=points.device, dtype=points.dtype)
    y = torch.arange(height, device=points.device, dtype=points.dtype)
    dx = x - points[..., 0, None]  # (..., W)
    dy = y - points[..., 1, None]  # (..., H)
    return dx.square().unsqueeze(-2) + dy.square().unsqueeze(-1)


def disk_map(points: Tensor, valid: Tensor, size: tuple[int, int], radius: float) -> Tensor:
    """Union of binary disks around the valid points: points `(B, S, 2)` to 0 and 1, `(B, H, W)`.

    Binary disks serve better than distance maps (Benenson et al. 2019; Gabbur et al. 2021, C.1). A
    pixel belongs to the disk if its centre is at most `radius` pixels away.
    """
    height, width = size
    reach = math.ceil(radius)
    steps = torch.arange(-reach, reach + 1, device=points.device)
    corner = points.nan_to_num(0.0).floor().long()  # NaN is not drawn: its distances are NaN below
    columns, rows = (corner[..., None] + steps).unbind(dim=2)  # (B, S, K) each
    dx, dy = columns - points[..., 0, None], rows - points[..., 1, None]
    inside = dx.square().unsqueeze(-2) + dy.square().unsqueeze(-1) <= radius**2  # (B, S, K, K)
    inside &= ((columns >= 0) & (columns < width)).unsqueeze(-2)
    inside &= ((rows >= 0) & (rows < height)).unsqueeze(-1)
    inside &= valid[..., None, None]
    pixels = rows.unsqueeze(-1) * width + columns.unsqueeze(-2)
    pixels = pixels.where(inside, height * width)  # places outside of a disk, behind the last pixel
    drawn = points.new_zeros(len(points), height * width + 1)
    drawn.scatter_(1, pixels.flatten(1), 1.0)
    return drawn[:, :-1].view(-1, height, width)


def click_pixels(prompts: Prompts, size: tuple[int, int]) -> Tensor:
    """Draw the pixel nearest to each click alone: positive and negative, `(B, 2, H, W)`."""
    last = prompts.points.new_tensor([size[1] - 1.0, size[0] - 1.0])
    points = torch.minimum(prompts.points.float().round(), last.float())  # of the last pixel's half
    signs = [disk_map(points, prompts.labels == sign, size, radius=0.0) for sign in (1, 0)]
    return torch.stack(signs, dim=1)


def distance_map(points: Tensor, valid: Tensor, size: tuple[int, int], radius: float) -> Tensor:
    """Closeness to the nearest valid point, `1 - tanh(distance / radius)`, `(B, H, W)`.

    1 on a point, 0 far from all, and without points.
    """
    distances = squared_distances(points, size).sqrt()
    closeness = 1 - torch.tanh(distances / radius)
    closeness = torch.where(valid[..., None, None], closeness, 0.0)
    none = closeness.new_zeros(closeness.shape[0], 1, *size)  # max over S works for S = 0
    return torch.cat([closeness, none], dim=1).amax(dim=1)


def filled_box_map(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes `(B, 4)` drawn as filled rectangles, `(B, H, W)`; NaN rows draw nothing.

    A box whose borders lie inside pixels, as after a change of the image's size, is rounded to
    whole pixels and stays at least one pixel wide.
    """
    height, width = size
    x0, y0, x1, y1 = boxes.round().unsqueeze(-1).unbind(dim=1)  # each (B, 1)
    x0, y0 = x0.clamp(max=width - 1), y0.clamp(max=height - 1)
    x1, y1 = torch.maximum(x1, x0 + 1), torch.maximum(y1, y0 + 1)
    x = torch.arange(width, device=boxes.device)
    y = torch.arange(height, device=boxes.device)
    columns = (x >= x0) & (x < x1)  # (B, W)
    rows = (y >= y0) & (y < y1)  # (B, H)
    return (rows.unsqueeze(-1) & columns.unsqueeze(-2)).to(boxes.dtype)


def box_corners(boxes: Tensor) -> Tensor:
    """Top-left and bottom-right pixel of each box, `(B, 4)` to `(B, 2, 2)`."""
    corners = boxes.reshape(-1, 2, 2)
    return torch.stack([corners[:, 0], corners[:, 1] - 1], dim=1)  # x1, y1 are outside the box


def either_corners(boxes: Tensor) -> Tensor:
    """Pixels at the ends of one of the two diagonals of each box, `(B, 4)` to `(B, 2, 2)`.

    An annotator may click on either (Gabbur et al. 2021, C.1). Which one is a property of the box,
    so that all answers to it see the same: that of `box_corners` where the sum of its rounded
    coordinates is even, the other where it is odd.
    """
    corners = box_corners(boxes)
    rising = torch.stack([corners[..., 0], corners[..., 1].flip(1)], dim=-1)
    odd = boxes.round().sum(dim=1) % 2 == 1
    return torch.where(odd[:, None, None], rising, corners)


class ClickMaps(nn.Module):
    """Draws prompts as three channels: box, positive clicks, negative clicks.

    Args:
        clicks: `"disk"` for binary disks, `"distance"` for a smooth closeness map.
        radius: Radius of the disks, or length scale of the closeness, in pixels.
        box: `"corners"` draws the two corner clicks that give the box, top-left and bottom-right;
            `"either"` those or the other two, as in Gabbur et al. (2021, C.1), see
            `either_corners`; `"filled"` fills the rectangle.
    """

    channels = 3

    def __init__(
        self, clicks: ClickEncoding = "disk", radius: float = 8.0, box: BoxEncoding = "corners"
    ) -> None:
        super().__init__()
        if radius <= 0:
            raise ValueError(f"`radius` must be a positive number of pixels, got {radius}")
        for name, value, known in (
            ("clicks", clicks, get_args(ClickEncoding)),
            ("box", box, get_args(BoxEncoding)),
        ):
            if value not in known:
                *others, last = map(repr, known)
                raise ValueError(f"`{name}` must be {', '.join(others)} or {last}, got {value!r}")
        self.clicks: ClickEncoding = clicks
        self.radius = radius
        self.box: BoxEncoding = box

    def forward(self, prompts: Prompts, size: tuple[int, int]) -> Tensor:
        """Draw the prompts.

        Args:
            prompts: Clicks and boxes of `B` images.
            size: `(H, W)` of the images in pixels.

        Returns:
            Maps with values in `[0, 1]`, float32, shape `(B, 3, H, W)`.
        """
        draw = disk_map if self.clicks == "disk" else distance_map
        points = prompts.points.float()
        boxes = prompts.boxes.float()
        if self.box == "filled":
            box_map = filled_box_map(boxes, size)
        else:
            present = ~boxes.isnan().any(dim=1, keepdim=True)  # (B, 1)
            corners = either_corners(boxes) if self.box == "either" else box_corners(boxes)
            box_map = draw(corners, present.expand(-1, 2), size, self.radius)
        positive = draw(points, prompts.labels == 1, size, self.radius)
        negative = draw(points, prompts.labels == 0, size, self.radius)
        return torch.stack([box_map, positive, negative], dim=1)  # (B, 3, H, W)
