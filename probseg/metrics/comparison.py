"""Tests for paired scores of two results on the same objects, and their correction.

Objects of one photograph are no independent evidence. The tests therefore take the photograph of
each object, and what they rank or flip are photographs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

DECIMALS = 12
"""Number of decimals of differences, so that rounding errors break no tie."""

EXACT_RANKS = 200
"""Largest number of nonzero differences for which the signed-rank test is exact."""


class SignedRank(NamedTuple):
    """Result of Wilcoxon's signed-rank test.

    Args:
        p: Two-sided p-value, in (0, 1].
        direction: Sign of the ranks' sum: 1 where positive differences outweigh negative ones.
        n: Number of photographs.
        zeros: Differences that are zero.
        ties: Differences, not zero, whose size another one has too.
    """

    p: float
    direction: int
    n: int
    zeros: int
    ties: int


class Discordance(NamedTuple):
    """Result of McNemar's test.

    Args:
        p: Two-sided p-value, in [0, 1]; 0 only where it is too small for float64.
        only_first: Objects of which only the first statement is true.
        only_second: Objects of which only the second statement is true.
    """

    p: float
    only_first: int
    only_second: int


def signed_rank(differences: Floats, photos: Sequence[str]) -> SignedRank:
    """Test whether paired differences are symmetric about zero (Wilcoxon, 1945).

    What is ranked are the photographs' mean differences. Zeros take part in the ranking and then
    count for neither side (Pratt, 1959); equal sizes share their mean rank. Up to `EXACT_RANKS`
    differences other than zero the p-value is exact given the ranks: it counts all ways to change
    signs, with zeros and ties too. Beyond, it is scipy's normal approximation with both corrected.

    Args:
        differences: One per object, shape `(objects,)`.
        photos: Photograph of each object.

    Raises:
        ValueError: If there is no difference, or one is NaN or infinite.
    """
    differences = np.asarray(differences, dtype=np.float64)
    if differences.ndim != 1 or not np.isfinite(differences).all():
        msg = (
            "`differences` must be finite numbers of shape (objects,), got shape "
            f"{differences.shape}" + (" with NaN or infinity" if differences.ndim == 1 else "")
        )
        raise ValueError(msg)
    index, n_photos = _photo_index(photos, len(differences))
    means = np.bincount(index, weights=differences) / np.bincount(index)
    means = np.round(means, DECIMALS)
    some = means != 0
    counts = np.unique(np.abs(means[some]), return_counts=True)[1]
    doubled = np.rint(2 * stats.rankdata(np.abs(means))).astype(np.int64)  # mean ranks are halves
    signed = np.where(means > 0, doubled, -doubled)[some]
    if len(signed) <= EXACT_RANKS:
        p = _sign_flip(signed)
    else:
        p = float(stats.wilcoxon(means, zero_method="pratt").pvalue)
    return SignedRank(
        p=p,
        direction=int(np.sign(signed.sum())),
        n=n_photos,
        zeros=int((~some).sum()),
        ties=int(counts[counts > 1].sum()),
    )


def mcnemar(first: Bools, second: Bools, photos: Sequence[str]) -> Discordance:
    """Test whether two statements are true equally often of the same objects (McNemar, 1947).

    The exact version: given the objects of which just one statement is true, either is as likely
    the true one, so their number is binomial. Where a photograph has several such objects, they
    change sides together, and the p-value counts all ways to do so.

    Args:
        first: Whether the first statement is true, bool, shape `(objects,)`.
        second: Whether the second one is.
        photos: Photograph of each object.

    Raises:
        ValueError: If there is no object, or the lengths differ.
    """
    signs = np.asarray(first, dtype=np.int64) - np.asarray(second, dtype=np.int64)
    index, n_photos = _photo_index(photos, len(signs))
    net = np.zeros(n_photos, dtype=np.int64)
    np.add.at(net, index, signs)
    return Discordance(
        p=_sign_flip(net), only_first=int((signs > 0).sum()), only_second=int((signs < 0).sum())
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's step-down procedure (1979).

    The i-th smallest of m, `i = 0 ... m - 1`, is multiplied by `m - i`, and none may be below
    that of a smaller one, nor above 1. The chance of even one false alarm among all tests then
    stays at the level that the corrected values are held against, however the tests depend on each
    other.

    Args:
        p_values: Each in [0, 1].

    Returns:
        Corrected p-values in the order given.

    Raises:
        ValueError: If a value is outside [0, 1].
    """
    given = np.asarray(p_values, dtype=np.float64)
    if not ((given >= 0) & (given <= 1)).all():
        msg = f"`p_values` must be in [0, 1], got {given.tolist()}"
        raise ValueError(msg)
    order = np.argsort(given, kind="stable")
    factors = np.arange(len(given), 0, -1)
    corrected = np.empty_like(given)
    corrected[order] = np.minimum(1, np.maximum.accumulate(factors * given[order]))
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
    """Return the number of each object's photograph, and how many photographs there are."""
    if n_objects == 0 or len(photos) != n_objects:
        msg = (
            f"`photos` must hold one per object and at least one, got {len(photos)} for {n_objects}"
        )
        raise ValueError(msg)
    _, index = np.unique(list(photos), return_inverse=True)
    return index, int(index.max()) + 1
