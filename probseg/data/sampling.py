"""The samples of a training, with their order and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler

from probseg.seeds import CROP, ORDER, mixed

RETRIES = 10
"""Number of attempts to replace an unreadable sample."""


class Draw(NamedTuple):
    """One sample to load, from the sampler.

    Args:
        number: Of the sample.
        seed: Of the crop's random numbers, in [0, 2**63).
        instead: Numbers of samples of the same epoch that take its place, one after the other, if
            it cannot be read.
    """

    number: int
    seed: int
    instead: tuple[int, ...] = ()


class Order(Protocol):
    """The samples of an epoch, in order."""

    def __len__(self) -> int:
        """Return the number of samples of every epoch."""

    def indices(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return the numbers of an epoch's samples, shape `(len(self),)`."""


class Shuffled:
    """All samples in random order.

    Args:
        count: Number of samples.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        """Return the number of samples of an epoch."""
        return self.count

    def indices(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return a permutation; see `Order`."""
        return np.random.default_rng(mixed(ORDER, seed, epoch)).permutation(self.count)


class TrainingSampler(DistributedSampler[Draw]):
    """Distributes the samples of an epoch, each with a seed, over the processes.

    The global batch is a run of neighbours in the epoch's order, of which each process gets its
    part: with the same global batch, one process and several train on the same crops. The seed of a
    crop is made of the run's seed, the epoch and its position in it. Samples after the last whole
    global batch are left out.

    Lightning leaves a sampler of this base class as it is, and calls `set_epoch`.

    Args:
        order: The samples of each epoch.
        seed: Of the run.
        batch_size: Samples per batch and process.
        processes: Number of processes.
        rank: Number of this process.
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

    def __iter__(self) -> Iterator[Draw]:
        """Yield the samples of this process, batch after batch."""
        indices = self.order.indices(self.seed, self.epoch)
        together = self.batch_size * self.num_replicas
        for batch in range(self.first_batch, len(self.order) // together):
            first = batch * together + self.rank * self.batch_size
            for position in range(first, first + self.batch_size):
                seed = mixed(CROP, self.seed, self.epoch, position)
                others = (mixed(seed, attempt) % len(indices) for attempt in range(RETRIES))
                instead = tuple(int(indices[other]) for other in others)
                yield Draw(int(indices[position]), seed, instead)

    def __len__(self) -> int:
        """Return the number of samples of a whole epoch for this process."""
        return len(self.order) // (self.batch_size * self.num_replicas) * self.batch_size
