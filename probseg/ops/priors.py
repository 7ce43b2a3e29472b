"""Log priors of pairs that are functions of the positions of query and key."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from probseg.ops.backends.interface import Block, ScoredPrior, take_block


@dataclass(frozen=True, eq=False)
class DistancePrior(ScoredPrior):
    """A prior that fades with distance, `log pi_ij = -|p_i - p_j| / length` (Eq. 40).

    Gabbur et al., 2021, Eq. 40, with the Euclidean distance of the positions as `d(i, j)` and a
    length that is 1 there. It is not normalised over the keys; posteriors do not depend on that.

    Args:
        query_positions: Coordinates of the queries, `(N, C)` for any number C of coordinates.
            They are constants, without gradient.
        key_positions: Coordinates of the keys, `(M, C)`, likewise.
        length: Distance over which the prior falls by a factor of e: positive tensor of shape
            `()`, `(G,)` or `(B, G)`.
    """

    query_positions: Tensor
    key_positions: Tensor
    length: Tensor

    def __post_init__(self) -> None:
        _check_positions(self.query_positions, self.key_positions)
        if not isinstance(self.length, Tensor) or not self.length.is_floating_point():
            raise TypeError(
                f"`length` must be a floating-point tensor, got {self.length}; wrap a number in one"
            )
        if self.length.ndim > 2:
            raise ValueError(
                f"`length` must have shape (), (G,) or (B, G), got {tuple(self.length.shape)}"
            )

    @classmethod
    def on_map(
        cls,
        height: int,
        width: int,
        length: float | Tensor = 1.0,
        device: torch.device | None = None,
    ) -> Self:
        """Build the prior of a map whose pixels are both queries and keys, row by row.

        The length is in pixels, and positions are on its device unless another one is named.
        """
        if isinstance(length, Tensor) and device is None:
            device = length.device
        positions = _pixels(height, width, device)
        number = length if isinstance(length, Tensor) else float(length)
        return cls(positions, positions, torch.as_tensor(number, device=device))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `PairwisePrior`."""
        batch, heads = self._length().shape[:2]
        return batch, heads, len(self.query_positions), len(self.key_positions)

    def block(self, block: Block) -> Tensor:
        """See `PairwisePrior`."""
        rows, columns = self.query_positions[block.rows], self.key_positions[block.columns]
        length = take_block(self._length(), block, self.length.dtype)
        # By expanded squares, distances between near positions would lose most of their digits.
        exactly = "donot_use_mm_for_euclid_dist"
        return -torch.cdist(rows, columns, compute_mode=exactly) / length

    def score(self, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """See `PairwisePrior`."""
        # Fused kernels want scalars, not vectors to be summed.
        squares = [
            (self.query_positions[row, axis] - self.key_positions[column, axis]).square()
            for axis in range(self.query_positions.shape[1])
        ]
        distance = sum(squares[1:], squares[0]).sqrt()
        if self.length.ndim == 0:
            return -distance / self.length
        # Fused kernels want plain indices into the tensor as it is; 0 where its size is 1.
        indices = (batch, head)[2 - self.length.ndim :]
        sizes = self.length.shape
        index = tuple(at if size > 1 else 0 * at for at, size in zip(indices, sizes, strict=True))
        return -distance / self.length[index]

    def _length(self) -> Tensor:
        length = self.length
        return length[(None,) * (2 - length.ndim)][..., None, None]  # (B or 1, G or 1, 1, 1)


@dataclass(frozen=True, eq=False)
class WindowPrior(ScoredPrior):
    """The structural prior of local attention: 0 inside a window around each query, else -inf.

    A query sees the keys that are at most `radius` away along every coordinate. As a prior over
    edges (Singh & Buckley, 2023, §5.1.2), it can be added to any other.

    Args:
        query_positions: Coordinates of the queries, `(N, C)` for any number C of coordinates.
        key_positions: Coordinates of the keys, `(M, C)`.
        radius: In the unit of the coordinates, 0 or more; 0 is the same place alone.

    Raises:
        ValueError: If a shape or the radius is wrong.
    """

    query_positions: Tensor
    key_positions: Tensor
    radius: float

    def __post_init__(self) -> None:
        _check_positions(self.query_positions, self.key_positions)
        if not self.radius >= 0:
            raise ValueError(
                f"`radius` must be 0 or more, got {self.radius}; 0 is the same place alone"
            )

    @classmethod
    def on_map(
        cls, height: int, width: int, radius: float, device: torch.device | None = None
    ) -> Self:
        """Build the prior of a map whose pixels are both queries and keys, row by row.

        The radius is in pixels, and positions are on the CPU unless a device is named.
        """
        positions = _pixels(height, width, device)
        return cls(positions, positions, radius)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `PairwisePrior`."""
        return 1, 1, len(self.query_positions), len(self.key_positions)

    @property
    def numbers_per_pair(self) -> int:
        """See `PairwisePrior`: the differences of the coordinates."""
        return self.query_positions.shape[1]

    def block(self, block: Block) -> Tensor:
        """See `PairwisePrior`."""
        rows, columns = self.query_positions[block.rows], self.key_positions[block.columns]
        seen = ((rows[:, None] - columns).abs() <= self.radius).all(-1)  # (n, m)
        return torch.where(seen, 0.0, -math.inf)[None, None]

    def score(self, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """See `PairwisePrior`."""
        del batch, head
        # Fused kernels want scalars, not vectors to be compared.
        seen = [
            (self.query_positions[row, axis] - self.key_positions[column, axis]).abs()
            <= self.radius
            for axis in range(self.query_positions.shape[1])
        ]
        return torch.where(functools.reduce(torch.logical_and, seen), 0.0, -math.inf)


def _pixels(height: int, width: int, device: torch.device | None) -> Tensor:
    """Return row and column of each pixel of a map, row by row, `(H * W, 2)`."""
    rows = torch.arange(height, dtype=torch.float32, device=device)
    columns = torch.arange(width, dtype=torch.float32, device=device)
    return torch.cartesian_prod(rows, columns).reshape(-1, 2)


def _check_positions(query_positions: Tensor, key_positions: Tensor) -> None:
    for name, positions in (("query_positions", query_positions), ("key_positions", key_positions)):
        if positions.ndim != 2 or not positions.is_floating_point() or not positions.shape[1]:
            raise ValueError(
                f"`{name}` must be floating point of shape (tokens, coordinates >= 1), got "
                f"{positions.dtype} {tuple(positions.shape)}"
            )
        if positions.requires_grad:
            raise ValueError(
                f"`{name}` must not require a gradient, which positions do not get; detach them"
            )
    if query_positions.shape[1] != key_positions.shape[1]:
        raise ValueError(
            "`query_positions` and `key_positions` must have the same number of coordinates, got "
            f"{query_positions.shape[1]} and {key_positions.shape[1]}"
        )
