"""Segmentation of a pixel grid by a minimum cut."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Indices = npt.NDArray[np.int32]

STEPS = 256
"""Integer steps per unit cost."""

LARGEST_COST = 1e6
"""Largest cost that fits into 32 bits."""

NEIGHBOURS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""Offsets (rows, columns) to the later half of the eight neighbours."""


def minimum_cut(advantage: Floats, image: Floats, smoothness: float) -> npt.NDArray[np.bool_]:
    """Divide an image into object and background at the least cost.

    A background pixel of positive advantage costs its advantage, an object pixel of negative
    advantage costs its magnitude, and each divided pair of the eight neighbours costs
    `smoothness * exp(-b |colour difference|^2) / distance`, where `1 / b` is twice the mean of
    the squared differences (Boykov and Jolly, 2001; Rother et al., 2004). Of several cheapest
    divisions, that with the smallest object is returned.

    Args:
        advantage: How much better each pixel is as object, at most 1e6 in magnitude, shape
            `(h, w)`. Costs are rounded to multiples of 1 / 256.
        image: Colours of any scale, shape `(h, w, C)`.
        smoothness: Cost of a division between pixels of one colour, at most 1e6.

    Returns:
        The object, shape `(h, w)`.

    Raises:
        ValueError: If a number is out of range or not finite.
    """
    # Takes a seventh of a second to import, and networks without a cut import this module.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    largest = float(np.abs(advantage).max(initial=0.0))
    if not (largest <= LARGEST_COST and 0 <= smoothness <= LARGEST_COST):
        msg = (
            f"`advantage` and `smoothness` must be finite and at most {LARGEST_COST:g}, "
            f"`smoothness` not negative, got advantages up to {largest:g} and smoothness "
            f"{smoothness:g}"
        )
        raise ValueError(msg)
    height, width = advantage.shape
    pixels = height * width
    source, sink = pixels, pixels + 1
    one, other, costs = _edges(image, smoothness)
    gains = np.rint(STEPS * advantage).astype(np.int32).ravel()
    gaining = np.flatnonzero(gains > 0).astype(np.int32)
    losing = np.flatnonzero(gains < 0).astype(np.int32)
    starts = [one, other, np.full_like(gaining, source), losing]
    ends = [other, one, gaining, np.full_like(losing, sink)]
    capacities = [costs, costs, gains[gaining], -gains[losing]]
    graph = csr_matrix(
        (np.concatenate(capacities), (np.concatenate(starts), np.concatenate(ends))),
        shape=(pixels + 2, pixels + 2),
    )
    left = graph - maximum_flow(graph, source, sink, method="dinic").flow
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    found = np.zeros(pixels + 2, dtype=np.bool_)
    found[reached] = True
    return found[:pixels].reshape(height, width)


def _edges(image: Floats, smoothness: float) -> tuple[Indices, Indices, Indices]:
    """Return the two pixels of each pair of neighbours, and the cost to divide them, in steps."""
    height, width = image.shape[:2]
    numbers = np.arange(height * width, dtype=np.int32).reshape(height, width)
    ones, others, squares, lengths = [], [], [], []
    for down, right in NEIGHBOURS:
        first = slice(0, height - down), slice(max(0, -right), width - max(0, right))
        second = slice(down, height), slice(max(0, right), width - max(0, -right))
        ones.append(numbers[first].ravel())
        others.append(numbers[second].ravel())
        squares.append(np.square(image[first] - image[second]).sum(axis=-1).ravel())
        lengths.append(np.full(ones[-1].shape, math.hypot(down, right)))
    one, other, square, length = map(np.concatenate, (ones, others, squares, lengths))
    usual = 2 * square.mean() if square.any() else 1.0
    costs = smoothness * np.exp(-square / usual) / length
    return one, other, np.rint(STEPS * costs).astype(np.int32)
