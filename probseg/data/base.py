"""Base classes of the data sets of objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sized
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from probseg.data.published import Source
from probseg.errors import DataError, DatasetNotFoundError
from probseg.types import Sample, check_mask, read_only


class Named:
    """Base of everything with a `name` in results, tables and log names."""

    name: str

    @classmethod
    def display_name(cls, arguments: Mapping[str, Any]) -> str:
        """Return the `name` of a data set with these arguments, without reading its files."""
        parameter = signature(cls).parameters.get("name")
        return cls.name if parameter is None else str(arguments.get("name", parameter.default))


class InteractiveDataset(Named, Dataset[Sample], ABC):
    """Base of the data sets: a sequence of objects, each with its image and mask.

    All raise a `DatasetNotFoundError` where their files are not, and a `DataError` if files are
    missing, do not pair up or cannot be used, or if no object is left. `licence` has the terms of
    use, as far as they are known. One of your own has a `name`, `__len__` and `__getitem__`.
    """

    licence: ClassVar[str] = "yours"
    _areas: npt.NDArray[np.int64]  # of data sets that know them

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of objects."""

    @abstractmethod
    def __getitem__(self, index: int) -> Sample:
        """Return one object of one image, or raise a `DataError` if its files cannot be used."""

    @property
    def areas(self) -> npt.NDArray[np.int64] | None:
        """Pixels of each object, shape `(len(self),)`; None where they are not known."""
        areas = getattr(self, "_areas", None)
        return None if areas is None else read_only(areas)

    def object_name(self, index: int) -> str:
        """Return the name of an object, where possible without reading its files."""
        return self[index].name

    def image_file(self, index: int) -> Path | None:
        """Return the file that alone is the image of an object, if `read_masks` reads the mask."""
        return None

    def read_masks(self, indices: Iterable[int]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the masks of objects that have an `image_file`; a file of several is read once."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse a first object that networks would not understand, with a `DataError`."""
        try:
            sample = self[0]
        except DataError:  # files of one object, which others replace
            return
        what = f"{type(self).__name__}.__getitem__"
        size = np.shape(sample.mask)[:2]
        for name, values, shape in (
            ("image", sample.image, (*size, 3)),
            ("mask", sample.mask, size),
        ):
            array = np.asarray(values)
            if array is not values or array.dtype != np.uint8 or array.shape != shape:
                got = f"{type(values).__name__} of {array.dtype}, shape {array.shape}"
                raise DataError(
                    f"{what}: `{name}` must be a NumPy array of uint8, shape {shape}, got {got}"
                )
        try:
            check_mask(sample.mask, f"{what}: mask")
        except ValueError as error:
            raise DataError(str(error)) from error
        if not (sample.mask == 1).any():
            raise DataError(
                f"{what}: `mask` must be 1 on the object, got no such pixel in {sample.name!r}"
            )


def refuse_none(objects: Sized, place: Path, what: str) -> None:
    """Raise a `DataError` unless a data set has objects."""
    if not len(objects):
        raise DataError(
            f"{place}: no {what}; choose fewer restrictions, or unpack the archive again"
        )


class PublishedDataset(InteractiveDataset):
    """Base of the published data sets, which can be listed, fetched and checked."""

    source: ClassVar[Source]
    root: Path

    @classmethod
    def complete(cls, root: Path, split: str | None = None) -> InteractiveDataset:
        """Build the data set with all objects of a folder."""
        options: dict[str, Any] = {"root": root, **cls.source.options}
        if split is not None:
            options["split"] = split
        return cls(**options)

    def absent(self, expected: str) -> DatasetNotFoundError:
        """Return the error for missing files, which says how to get them."""
        return DatasetNotFoundError(self.name, self.root, expected, self.source.hint(self.name))
