"""Confusion counts of a semantic evaluation, in one process or several."""

from __future__ import annotations

from typing import NamedTuple

import torch

from probseg.callbacks.base import from_all_processes
from probseg.semantic.confusion import Confusion
from probseg.semantic.pictures import SemanticPicture
from probseg.semantic.scores import Counts

Place = tuple[int, int]
"""Number of the batch, and of the process: the order of photographs that processes share."""


class Counted(NamedTuple):
    """Counts and pictures of a data set.

    Args:
        confusion: Numbers of pixels, int64, shape `(C, C)`, the truth in rows.
        photographs: How many were counted.
        pictures: Of the first photographs.
    """

    confusion: Counts
    photographs: int
    pictures: list[tuple[Place, SemanticPicture]]


class Tally:
    """Counts confusions of classes, and keeps pictures: one data set, one process.

    Args:
        num_classes: Number of classes.
        device: Of the predictions.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.confusion = Confusion(num_classes, device)
        self.pictures: list[tuple[Place, SemanticPicture]] = []

    def counted(self) -> Counted:
        """Return the counts of this process."""
        return Counted(self.confusion.matrix(), self.confusion.photographs, self.pictures)


def gathered(tallies: dict[str, Tally], pictures: int) -> dict[str, Counted]:
    """Add the counts of all processes.

    Args:
        tallies: Of this process, by data set.
        pictures: Number of pictures of each data set that are kept, the first ones.

    Returns:
        The same in all processes, by data set.
    """
    mine = {name: tally.counted() for name, tally in tallies.items()}
    every: dict[str, Counted] = {}
    for part in from_all_processes(mine):
        for name, counted in part.items():
            every[name] = _sum(every[name], counted) if name in every else counted
    return {
        name: counted._replace(
            pictures=sorted(counted.pictures, key=lambda entry: entry[0])[:pictures]
        )
        for name, counted in every.items()
    }


def _sum(one: Counted, other: Counted) -> Counted:
    return Counted(
        one.confusion + other.confusion,
        one.photographs + other.photographs,
        one.pictures + other.pictures,
    )
