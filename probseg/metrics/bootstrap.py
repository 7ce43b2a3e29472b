"""Confidence intervals of the mean of clustered values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BLOCK = 4_000_000  # numbers held at once while clusters are drawn


class Interval(NamedTuple):
    """Bounds of a confidence interval."""

    low: float
    high: float


class Bounds(NamedTuple):
    """Bounds of many confidence intervals, of one shape."""

    low: Floats
    high: Floats


def clustered_bootstrap(
    values: Floats,
    photos: Sequence[str],
    *,
    draws: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Bounds:
    """Return the confidence intervals of means over objects of which some share a photograph.

    Objects of one photograph are not independent, so photographs are drawn with replacement, each
    with all of its objects (pairs cluster bootstrap; Cameron and Miller, 2015, section VI). With
    `w_c` the number of times that photograph `c` was drawn, `s_c` the sum over its `n_c`
    objects, each draw's mean is `sum_c w_c s_c / sum_c w_c n_c`; the interval is between the
    quantiles `(1 - level) / 2` and `(1 + level) / 2` of the draws (percentile interval; Efron,
    1979). It is too short for few photographs, noticeably so below about 30.

    Args:
        values: One or more values of each object, e.g. its means over trials, shape
            `(objects, ...)`.
        photos: Name of each object's photograph.
        draws: Number of resamples.
        seed: The same seed draws the same photographs.
        level: Share of intervals that should hold the true mean, in (0, 1).

    Returns:
        Each of shape `(...)`; NaN where all objects are of one photograph.

    Raises:
        ValueError: If `values` is empty or holds NaN, `photos` is of another length, or
            `draws` or `level` is out of range.
    """
    values = np.asarray(values, dtype=np.float64)
    _check(values, photos, draws, level)
    cluster = np.unique(np.asarray(photos), return_inverse=True)[1]  # (objects,)
    sizes = np.bincount(cluster)  # (clusters,)
    shape = values.shape[1:]
    if len(sizes) == 1:
        return Bounds(np.full(shape, np.nan), np.full(shape, np.nan))
    sums = np.zeros((len(sizes), *shape))
    np.add.at(sums, cluster, values)
    totals = np.column_stack([sums.reshape(len(sizes), -1), sizes])  # (clusters, features + 1)
    random = np.random.default_rng(seed)
    block = max(1, _BLOCK // len(sizes))
    drawn = np.concatenate(
        [
            draw_weights(len(sizes), min(block, draws - first), random) @ totals
            for first in range(0, draws, block)
        ]
    )  # (draws, features + 1)
    means = drawn[:, :-1] / drawn[:, -1:]
    low, high = np.quantile(means, ((1 - level) / 2, (1 + level) / 2), axis=0)
    return Bounds(low.reshape(shape), high.reshape(shape))


def draw_weights(clusters: int, draws: int, random: np.random.Generator) -> Floats:
    """Return the number of draws of each cluster in resamples of as many clusters.

    Each row is a draw from the multinomial distribution with equal probabilities.

    Returns:
        Whole numbers that sum to `clusters` in each row, shape `(draws, clusters)`.
    """
    chosen = random.integers(clusters, size=(draws, clusters))
    chosen += np.arange(draws)[:, None] * clusters
    counts = np.bincount(chosen.ravel(), minlength=draws * clusters)
    return counts.reshape(draws, clusters).astype(np.float64)


def _check(values: Floats, photos: Sequence[str], draws: int, level: float) -> None:
    if values.ndim == 0 or not values.size or not np.isfinite(values).all():
        message = (
            f"`values` must be finite numbers of shape (objects, ...), got shape {values.shape}"
            + (" with NaN or infinity" if values.size else "")
        )
        raise ValueError(message)
    if len(photos) != len(values):
        message = f"`photos` must hold one name per object, {len(values)} in all, got {len(photos)}"
        raise ValueError(message)
    if draws < 1:
        message = f"`draws` must be at least 1, got {draws}"
        raise ValueError(message)
    if not 0 < level < 1:
        message = f"`level` must be a share in (0, 1), got {level}"
        raise ValueError(message)
