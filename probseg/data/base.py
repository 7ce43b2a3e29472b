"""Base classes of the data sets of objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from probseg.data.published import Source
from probseg.types import Sample


class Named:
    """Base of everything with a name in results.

    Attributes:
        name: Name of the data set as it appears in tables and log names.
    """

    name: str

    @classmethod
    def display_name(cls, arguments: Mapping[str, Any]) -> str:
        """Return the `name` of a data set with these arguments, without reading its files."""
        parameter = signature(cls).parameters.get("name")
        return cls.name if parameter is None else str(arguments.get("name", parameter.default))


class InteractiveDataset(Named, Dataset[Sample], ABC):
    """Base of the data sets: a sequence of objects, each with its image and mask.

    Attributes:
        licence: Licence or terms of use, as far as they are known.
    """

    licence: ClassVar[str] = "yours"

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
        """Pixels of each object, shape `(len(self),)`; None where they are not known."""
        return None

    def object_name(self, index: int) -> str:
        """Return the name of an object (`Sample.name`), where possible without reading its files.

        Args:
            index: Number of the object.
        """
        return self[index].name


class PublishedDataset(InteractiveDataset):
    """Base of the published data sets, which can be listed, fetched and checked.

    Attributes:
        source: Where it comes from, and the size of the complete set.
    """

    source: ClassVar[Source]

    @classmethod
    def complete(cls, root: Path, split: str | None = None) -> InteractiveDataset:
        """Build the data set with all objects of a folder."""
        options: dict[str, Any] = {"root": root, **cls.source.options}
        if split is not None:
            options["split"] = split
        return cls(**options)
