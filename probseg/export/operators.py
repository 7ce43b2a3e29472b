"""Operators that ONNX does not have, made of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def adaptive_avg_pool2d(maps: Tensor, output_size: Sequence[int] | int) -> Tensor:
    """Average maps over a grid of cells that may overlap, as products with two matrices.

    Args:
        maps: Shape `(B, C, H, W)`.
        output_size: `(h, w)`, of any proportion to `(H, W)`; one number for both.

    Returns:
        Shape `(B, C, h, w)`.
    """
    grid = (output_size, output_size) if isinstance(output_size, int) else output_size
    rows, columns = (
        _shares(side, cells, maps) for side, cells in zip(maps.shape[2:], grid, strict=True)
    )
    return rows @ maps @ columns.mT


def _shares(length: int, cells: int, like: Tensor) -> Tensor:
    """Return the weights of the pixels of a line in the mean of each cell, `(cells, length)`."""
    cell, pixel = torch.arange(cells)[:, None], torch.arange(length)
    first, last = cell * length // cells, -(-(cell + 1) * length // cells)
    inside = (pixel >= first) & (pixel < last)
    return (inside / (last - first)).to(like)


def solve(matrix: Tensor, target: Tensor) -> Tensor:
    """Solve positive definite systems by elimination, which needs no pivots there.

    Args:
        matrix: Shape `(B, D, D)`.
        target: Shape `(B, D)`.

    Returns:
        Shape `(B, D)`.
    """
    rows = torch.cat([matrix, target[..., None]], dim=-1)  # (B, D, D + 1)
    for step in range(matrix.shape[-1]):
        pivot = rows[:, step : step + 1] / rows[:, step : step + 1, step : step + 1]
        rest = rows - rows[:, :, step : step + 1] * pivot
        rows = torch.cat([rest[:, :step], pivot, rest[:, step + 1 :]], dim=1)
    return rows[..., -1]


class Replaced(TorchFunctionMode):
    """Context in which the functions of this module take the place of PyTorch's."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call a function of PyTorch, or its replacement."""
        return _REPLACEMENTS.get(func, func)(*args, **(kwargs or {}))


_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.adaptive_avg_pool2d: adaptive_avg_pool2d,
    torch.linalg.solve: solve,
}
