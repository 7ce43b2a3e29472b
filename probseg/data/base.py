"""What every data set of objects offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch.utils.data import Dataset

from probseg.types import Sample


class InteractiveDataset(Dataset[Sample], ABC):
    """Base of the data sets: a sequence of objects, each with its image and mask.

    Attributes:
        name: Name of the data set as it appears in tables and log names.
    """

    name: str

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of objects."""

    @abstractmethod
    def __getitem__(self, index: int) -> Sample:
        """Return one object of one image."""
