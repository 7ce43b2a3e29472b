"""A small mixture over colours and positions of pixels, and one step of value propagation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import check_least
from probseg.ops.attention import assign_checked, attend_checked

Scales = Sequence[tuple[float, float]]
"""Pairs `(colour, position)`, one per space: factors of RGB in [0, 1] and of positions in units of
the longer side, the inverse standard deviations of a unit."""


class PixelMixture(nn.Module):
    """A mixture over colours and positions of pixels in each of several spaces.

    Units start at the means of grid cells and adapt to the image by EM (Gabbur et al., 2021, Eq.
    16, without a prior).

    Args:
        units: Units along each side of the grid, `units**2` in all.
        key_iterations: Number of EM iterations of the units.
        scales: Factors of colours and positions, a pair for each space.
        stride: Side of the square of pixels that are averaged to one query.

    Raises:
        ValueError: If a number is below 1, `scales` is empty, or a pair has a negative number or
            two zeros.
    """

    def __init__(self, units: int, key_iterations: int, scales: Scales, stride: int) -> None:
        super().__init__()
        numbers = {"units": units, "key_iterations": key_iterations, "stride": stride}
        for name, number in numbers.items():
            check_least(name, number)
        if not scales or any(min(pair) < 0 or max(pair) <= 0 for pair in scales):
            raise ValueError(
                "`scales` must be pairs of numbers >= 0 for colours and places, not both 0, such "
                f"as (22.0, 8.0), got {list(scales)}"
            )
        self.units, self.key_iterations, self.stride = units, key_iterations, stride
        colour, place = torch.tensor([list(pair) for pair in scales]).float().unbind(dim=1)
        factors = torch.stack([colour] * 3 + [place] * 2, dim=1)  # (G, 5)
        self.register_buffer("factors", factors, persistent=False)

    factors: Tensor

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """Adapt the units to images `(B, 3, H, W)`, RGB in [0, 1].

        Return queries of the pixels `(B, G, h w, 5)`, in units of the scales; keys of the units
        `(B, G, units**2, 5)`; and the grid `(h, w)`.
        """
        colours = F.avg_pool2d(image.float(), self.stride, ceil_mode=True)  # (B, 3, h, w)
        grid = (colours.shape[-2], colours.shape[-1])
        tokens = with_places(colours).flatten(2).transpose(1, 2)[:, None]  # (B, 1, h w, 5)
        queries = tokens * self.factors[:, None]
        return queries, grid_units(queries, grid, self.units, self.key_iterations), grid

    def enlarge(self, maps: Tensor, image: Tensor) -> Tensor:
        """Enlarge maps `(B, C, h, w)` of the queries to the pixels of an image, `(B, C, H, W)`.

        The last row and column of the grid may lie beyond the image in part.
        """
        size = [self.stride * side for side in maps.shape[-2:]]
        large = F.interpolate(maps, size, mode="bilinear", align_corners=False)
        return large[..., : image.shape[-2], : image.shape[-1]]


def propagated(queries: Tensor, keys: Tensor, observed: Tensor) -> Tensor:
    """Average observed values `(B, C, h, w)` over similar pixels, in each space `(B, G, C, h, w)`.

    One step of value propagation without a prior (Gabbur et al., 2021, Eqs. 23 and 24), and the
    read-out.
    """
    spaces = queries.shape[1]
    values = observed.flatten(2).transpose(1, 2)[:, None].expand(-1, spaces, -1, -1).contiguous()
    prior = (nearness(keys),)
    means = assign_checked(queries, keys, values, prior).means  # (B, G, M, C)
    read = attend_checked(queries, keys, means, prior).values  # (B, G, h w, C)
    return read.transpose(2, 3).reshape(*read.shape[:2], *observed.shape[1:])


def with_places(colours: Tensor) -> Tensor:
    """Append positions (y, x), in units of the longer side, to colours: `(B, C + 2, h, w)`."""
    height, width = colours.shape[-2:]
    longer = max(height, width)
    y = torch.arange(height, device=colours.device, dtype=colours.dtype) / longer
    x = torch.arange(width, device=colours.device, dtype=colours.dtype) / longer
    places = torch.stack(torch.meshgrid(y, x, indexing="ij"))  # (2, h, w)
    return torch.cat([colours, places.expand(len(colours), -1, -1, -1)], dim=1)


def grid_units(queries: Tensor, grid: tuple[int, int], units: int, iterations: int) -> Tensor:
    """Fit keys `(B, G, units**2, D)` to the queries `(B, G, h w, D)`, from the means of grid cells.

    EM with unit precision and without a prior (Gabbur et al., 2021, Eq. 16).
    """
    batch, heads, _, channels = queries.shape
    maps = queries.transpose(2, 3).reshape(batch * heads, channels, *grid)
    cells = F.adaptive_avg_pool2d(maps, units)
    keys: Tensor = cells.reshape(batch, heads, channels, -1).transpose(2, 3)
    for _ in range(iterations):
        keys = assign_checked(queries, keys, queries, (nearness(keys),)).means
    return keys


def nearness(keys: Tensor) -> Tensor:
    """Return the log prior `(B, G, 1, M)` that turns dot products into `-|q - k|² / 2`.

    Up to a constant of each query, for keys `(B, G, M, D)`.
    """
    return -keys.square().sum(dim=-1).unsqueeze(-2) / 2
