"""Uncertainty of means, and tests for paired scores of two results on the same objects.

Objects of one photograph are not independent evidence. All functions therefore take the photograph
of each object, and what they draw, rank or flip are photographs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

DECIMALS = 12
"""Number of decimals of differences, so that rounding errors break no tie."""

EXACT_RANKS = 200
"""Largest number of nonzero differences for which the signed-rank test is exact."""

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
    values: Floats, photos: Sequence[str], *, draws: int = 2000, seed: int = 0, level: float = 0.95
) -> Bounds:
    """Return the confidence intervals of means over objects that may share photographs.

    Photographs are drawn with replacement, each with all of its objects (pairs cluster bootstrap;
    Cameron and Miller, 2015, section VI). With `w_c` the number of times that photograph `c` was
    drawn and `s_c` the sum over its `n_c` objects, each draw's mean is `sum_c w_c s_c / sum_c w_c
    n_c`; the interval is between the quantiles `(1 - level) / 2` and `(1 + level) / 2` of the draws
    (percentile interval; Efron, 1979). It is too short for few photographs, noticeably so below
    about 30.

    Args:
        values: One or more values of each object, e.g. its means over trials, shape
            `(objects, ...)`.
        photos: Name of each object's photograph.
        draws: Number of resamples.
        seed: The same seed draws the same photographs.
        level: Share of intervals that should hold the true mean, in (0, 1).

    Returns:
        Each of shape `(...)`; NaN where all objects are of one photograph.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 0 or not values.size or not np.isfinite(values).all():
        raise ValueError(
            f"`values` must be finite numbers of shape (objects, ...), got shape {values.shape}"
            + (" with NaN or infinity" if values.size else "")
        )
    if len(photos) != len(values):
        raise ValueError(
            f"`photos` must hold one name per object, {len(values)} in all, got {len(photos)}"
        )
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
    """Return how often each cluster is drawn in resamples of equal size, `(draws, clusters)`."""
    chosen = random.integers(clusters, size=(draws, clusters))
    chosen += np.arange(draws)[:, None] * clusters
    counts = np.bincount(chosen.ravel(), minlength=draws * clusters)
    return counts.reshape(draws, clusters).astype(np.float64)


class SignedRank(NamedTuple):
    """Result of Wilcoxon's signed-rank test."""

    p: float  # two-sided, in (0, 1]
    direction: int  # sign of the ranks' sum: 1 where positive differences outweigh negative ones
    n: int  # number of photographs
    zeros: int  # differences that are zero
    ties: int  # differences, not zero, whose size occurs again


def signed_rank(differences: Floats, photos: Sequence[str]) -> SignedRank:
    """Test whether paired differences `(objects,)` are symmetric about zero (Wilcoxon, 1945).

    What is ranked are the photographs' mean differences. Zeros take part in the ranking and then
    count for neither side (Pratt, 1959); equal sizes share their mean rank. Up to `EXACT_RANKS`
    differences other than zero the p-value is exact given the ranks: it counts all ways to change
    signs, with zeros and ties too. Beyond, it is scipy's normal approximation with both corrected.
    """
    from scipy import stats  # late: takes a quarter of a second, and intervals do not need it

    differences = np.asarray(differences, dtype=np.float64)
    if differences.ndim != 1 or not np.isfinite(differences).all():
        raise ValueError(
            "`differences` must be finite numbers of shape (objects,), got shape "
            f"{differences.shape}" + (" with NaN or infinity" if differences.ndim == 1 else "")
        )
    index, n_photos = _photo_index(photos, len(differences))
    means = np.bincount(index, weights=differences) / np.bincount(index)
    means = np.round(means, DECIMALS)
    nonzero = means != 0
    counts = np.unique(np.abs(means[nonzero]), return_counts=True)[1]
    doubled = np.rint(2 * stats.rankdata(np.abs(means))).astype(np.int64)  # mean ranks are halves
    signed = np.where(means > 0, doubled, -doubled)[nonzero]
    if len(signed) <= EXACT_RANKS:
        p = _sign_flip(signed)
    else:
        p = float(stats.wilcoxon(means, zero_method="pratt").pvalue)
    return SignedRank(
        p=p,
        direction=int(np.sign(signed.sum())),
        n=n_photos,
        zeros=int((~nonzero).sum()),
        ties=int(counts[counts > 1].sum()),
    )


def mcnemar(first: Bools, second: Bools, photos: Sequence[str]) -> float:
    """Return the p-value for two statements, bool `(objects,)`, equally often true (McNemar, 1947).

    The exact version: given the objects of which just one statement is true, either is as likely
    the true one, so their number is binomial. Where a photograph has several such objects, they
    change sides together, and the p-value, two-sided, counts all ways to do so. It is 0 only where
    it is too small for float64.
    """
    signs = np.asarray(first, dtype=np.int64) - np.asarray(second, dtype=np.int64)
    index, n_photos = _photo_index(photos, len(signs))
    net = np.zeros(n_photos, dtype=np.int64)
    np.add.at(net, index, signs)
    return _sign_flip(net)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's step-down procedure (1979), in the order given.

    The i-th smallest of m, `i = 0 ... m - 1`, is multiplied by `m - i`, and none may be below
    that of a smaller one, nor above 1. The chance of even one false alarm among all tests then
    stays at the level that the corrected values are held against, however the tests depend on each
    other.
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(1, np.maximum.accumulate(factors * values[order]))
    return [float(value) for value in corrected]


def _sign_flip(signed: Integers) -> float:
    """Return the two-sided p-value of a sum whose terms keep their sizes and draw their signs.

    The sizes that draw a plus add up to some total; its probabilities are built up term by term.
    The distribution is symmetric, so twice the smaller tail is two-sided.
    """
    sizes = np.abs(signed[signed != 0])
    chances = np.zeros(int(sizes.sum()) + 1)
    chances[0] = 1.0
    for size in sizes:
        chances *= 0.5
        chances[size:] += chances[:-size].copy()
    positive = int(signed[signed > 0].sum())
    least = min(positive, int(sizes.sum()) - positive)
    return min(1.0, 2 * float(chances[: least + 1].sum()))


def _photo_index(photos: Sequence[str], n_objects: int) -> tuple[Integers, int]:
    """Return the number of each object's photograph, and the number of photographs."""
    if n_objects == 0 or len(photos) != n_objects:
        raise ValueError(
            f"`photos` must hold one per object and at least one, got {len(photos)} for {n_objects}"
        )
    _, index = np.unique(list(photos), return_inverse=True)
    return index, int(index.max()) + 1
