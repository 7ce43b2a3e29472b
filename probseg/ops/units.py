"""Few units of a mixture over the pixels of an image: where they are, and how near pixels are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.ops.attention import assign


def with_places(colours: Tensor) -> Tensor:
    """Return colours ``(B, C, h, w)`` with the places (y, x) of the pixels, in longer sides.

    Returns:
        Tokens ``(B, C + 2, h, w)``.
    """
    height, width = colours.shape[-2:]
    longer = max(height, width)
    y = torch.arange(height, device=colours.device, dtype=colours.dtype) / longer
    x = torch.arange(width, device=colours.device, dtype=colours.dtype) / longer
    places = torch.stack(torch.meshgrid(y, x, indexing="ij"))  # (2, h, w)
    return torch.cat([colours, places.expand(len(colours), -1, -1, -1)], dim=1)


def grid_units(queries: Tensor, grid: tuple[int, int], units: int, iterations: int) -> Tensor:
    """Return the keys of units that begin at the means of the cells of a grid, and adapt.

    EM on the queries with unit precision and without a prior (Gabbur et al., 2021, Eq. 16).

    Args:
        queries: Of the pixels, ``(B, G, h w, D)``.
        grid: ``(h, w)``.
        units: Units along each side.
        iterations: Of EM.

    Returns:
        Keys ``(B, G, units**2, D)``.
    """
    batch, heads, _, channels = queries.shape
    maps = queries.transpose(2, 3).reshape(batch * heads, channels, *grid)
    cells = F.adaptive_avg_pool2d(maps, units)
    keys: Tensor = cells.reshape(batch, heads, channels, -1).transpose(2, 3)
    for _ in range(iterations):
        keys = assign(queries, keys, queries, log_prior=nearness(keys)).means
    return keys


def nearness(keys: Tensor) -> Tensor:
    """Log prior ``(B, G, M)`` that makes negative half squared distances of dot products.

    Up to what is the same for all keys ``(B, G, M, D)`` of a query.
    """
    return -keys.square().sum(dim=-1) / 2
