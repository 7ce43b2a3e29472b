"""What every data set of objects offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
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
        """Return one object of one image.

        Raises:
            DataError: If its files cannot be used.
        """

    @property
    def areas(self) -> npt.NDArray[np.int64] | None:
        """Pixels of each object, shape ``(len(self),)``; None where they are not known."""
        return None

    def object_name(self, index: int) -> str:
        """Return what `Sample.name` of an object is; data sets that know do not read it for that.

        Args:
            index: Number of the object.
        """
        return self[index].name
