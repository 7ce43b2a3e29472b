"""The samples of a training: their order, their seeds, and mixtures of data sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler

from probseg.data.base import InteractiveDataset
from probseg.data.selection import object_weights
from probseg.errors import DataError
from probseg.seeds import CROP, ORDER, SET, mix_seeds

RETRIES = 10  # number of attempts to replace an unreadable sample


class DrawnSample(NamedTuple):
    """One sample to load, from the sampler."""

    number: int  # of the sample
    seed: int  # of the crop's random numbers, in [0, 2**63)
    # numbers of samples of the same epoch that take its place, one after the other, if it cannot be
    # read
    instead: tuple[int, ...] = ()


class Order(Protocol):
    """The samples of an epoch, in order."""

    def __len__(self) -> int:
        """Return the number of samples of every epoch."""

    def indices(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return the numbers of an epoch's samples, shape `(len(self),)`."""


class Shuffled:
    """All samples in random order."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def indices(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return a permutation; see `Order`."""
        return np.random.default_rng(mix_seeds(ORDER, seed, epoch)).permutation(self.count)


class TrainingSampler(DistributedSampler[DrawnSample]):
    """Distributes the samples of an epoch, each with a seed, over the processes.

    The global batch is a run of neighbours in the epoch's order, of which each process gets its
    part: with the same global batch, one process and several train on the same crops. The seed of a
    crop is made of the run's seed, the epoch and its position in it. Samples after the last whole
    global batch are left out.

    Lightning leaves a sampler of this base class as it is, and calls `set_epoch`.
    """

    def __init__(
        self, order: Order, *, seed: int, batch_size: int, processes: int = 1, rank: int = 0
    ) -> None:
        super().__init__(order, num_replicas=processes, rank=rank, seed=seed)  # type: ignore[arg-type]
        self.order = order
        self.batch_size = batch_size
        self.first_batch = 0

    def go_to(self, epoch: int, batch: int) -> None:
        """Start at a batch of an epoch; later epochs start at their first batch."""
        self.epoch, self.first_batch = epoch, batch

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch."""
        if epoch != self.epoch:
            self.go_to(epoch, 0)

    def __iter__(self) -> Iterator[DrawnSample]:
        """Yield the samples of this process, batch after batch."""
        indices = self.order.indices(self.seed, self.epoch)
        together = self.batch_size * self.num_replicas
        for batch in range(self.first_batch, len(self.order) // together):
            first = batch * together + self.rank * self.batch_size
            for position in range(first, first + self.batch_size):
                seed = mix_seeds(CROP, self.seed, self.epoch, position)
                others = (mix_seeds(seed, attempt) % len(indices) for attempt in range(RETRIES))
                instead = tuple(int(indices[other]) for other in others)
                yield DrawnSample(int(indices[position]), seed, instead)

    def __len__(self) -> int:
        return len(self.order) // (self.batch_size * self.num_replicas) * self.batch_size


Indices = npt.NDArray[np.int64]


class MixedOrder:
    """Objects of several data sets, with a fixed number of each per epoch; an `Order`.

    The objects of a set without weights are used evenly: the numbers of uses of any two differ by
    at most one, in each epoch and from the first epoch to the end of any. Where an epoch takes a
    part of a set, the next one continues with unused objects.

    Of a set with weights per object (see `Selected`) an epoch's objects are drawn with replacement,
    in proportion to the weights, by systematic sampling (Madow and Madow 1944): of an object that
    should have 2.3 samples in an epoch, it has 2 or 3, and 2.3 on average over the epochs.

    An epoch is a function of the run's seed and its number alone.

    `proportions` are the shares of the sets in an epoch, by default their numbers of objects,
    rounded by largest remainders. Indices count through the sets as if they were joined.
    """

    def __init__(
        self,
        sets: Sequence[InteractiveDataset],
        proportions: Sequence[float] | None = None,
        samples_per_epoch: int | None = None,
    ) -> None:
        names = [of.name for of in sets]
        self.sizes = [len(of) for of in sets]
        if 0 in self.sizes:
            raise DataError(f"{names[self.sizes.index(0)]}: has no object; leave it out of `train`")
        self.weights = [object_weights(of) for of in sets]
        shares = self.sizes if proportions is None else proportions
        if len(shares) != len(names) or not all(0 < share < math.inf for share in shares):
            raise DataError(
                "`proportions` must have a positive number for each data set of `train` "
                f"({len(names)}: {', '.join(names) or 'none'}), got {list(shares)}; null takes all "
                "objects of all sets; leave a set that is not wanted out of `train`"
            )
        self.samples = sum(self.sizes) if samples_per_epoch is None else samples_per_epoch
        self.counts = largest_remainders(self.samples, shares)
        for name, count, share in zip(names, self.counts, shares, strict=True):
            if count < 1:
                raise DataError(
                    f"{name}: its share {share} of {sum(shares)} gives none of the {self.samples} "
                    "samples of an epoch; raise `samples_per_epoch` or its proportion, or leave "
                    "the data set out of `train`"
                )

    def __len__(self) -> int:
        return self.samples

    def indices(self, seed: int, epoch: int) -> Indices:
        """Return the numbers of an epoch's objects in random order, shape `(len(self),)`."""
        parts = []
        first = 0
        for number, size in enumerate(self.sizes):
            count, weights = self.counts[number], self.weights[number]
            set_seed = mix_seeds(SET, seed, number)
            if weights is None:
                part = evenly(size, count, set_seed, epoch)
            else:
                part = systematic(weights, count, mix_seeds(set_seed, epoch))
            parts.append(first + part)
            first += size
        return np.random.default_rng(mix_seeds(ORDER, seed, epoch)).permutation(
            np.concatenate(parts)
        )


def largest_remainders(total: int, shares: Sequence[float]) -> list[int]:
    """Split a number in proportion to shares, rounding the largest remainders up."""
    exact = [Fraction(share) for share in shares]  # floats would round 0.1 + 0.2
    whole = sum(exact)
    quotas = [total * share / whole for share in exact]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: counts[i] - quotas[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def evenly(size: int, count: int, seed: int, epoch: int) -> Indices:
    """Draw objects so that the numbers of uses of any two differ by at most one.

    This holds for each epoch, and for the sum of all epochs up to any.
    """
    times, rest = divmod(count, size)
    if 2 * rest <= size:
        once_more = _hand(size, rest, seed, epoch)
    else:  # choosing who is left out keeps hands below half a pack, as `_pack` needs them
        left_out = _hand(size, size - rest, seed, epoch)
        once_more = np.delete(np.arange(size), left_out)
    return np.concatenate([np.tile(np.arange(size), times), once_more])


def _hand(size: int, hand: int, seed: int, number: int) -> Indices:
    """Deal `hand` different cards from consecutive shuffled packs, each until it is empty."""
    if hand == 0:
        return np.arange(0)
    pack, first = divmod(number * hand, size)
    cards = _pack(size, hand, seed, pack)[first : first + hand]
    if len(cards) < hand:
        more = _pack(size, hand, seed, pack + 1)[: hand - len(cards)]
        cards = np.concatenate([cards, more])
    return cards


def _pack(size: int, hand: int, seed: int, pack: int) -> Indices:
    """Return a shuffled pack; its first cards complete the hand begun by the last pack.

    To have no card twice, those that are in this hand already come later, but before the cards that
    begin a hand at this pack's end: these have to be known without looking at the packs before.
    """
    begun, begins = pack * size % hand, (pack + 1) * size % hand
    in_hand = _shuffled(size, seed, pack - 1)[size - begun :] if begun else np.arange(0)
    cards, end = np.split(_shuffled(size, seed, pack), [size - begins])
    late = np.isin(cards, in_hand)
    return np.concatenate([cards[~late], cards[late], end])


def _shuffled(size: int, seed: int, pack: int) -> Indices:
    return np.random.default_rng(mix_seeds(seed, pack)).permutation(size)


def systematic(weights: npt.NDArray[np.float64], count: int, seed: int) -> Indices:
    """Draw with replacement in proportion to weights, by systematic sampling.

    The objects, in random order, divide a line in proportion to their weights, and at equal
    distances along it, from a random beginning, an object is drawn (Madow and Madow 1944).
    """
    random = np.random.default_rng(seed)
    order = random.permutation(np.flatnonzero(weights))
    ends = np.cumsum(weights[order] / weights.max())
    points = (np.arange(count) + random.random()) * (ends[-1] / count)
    numbers: Indices = order[np.searchsorted(ends[:-1], points, side="right")]
    return numbers
