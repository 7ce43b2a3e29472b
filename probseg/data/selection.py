"""Subsets of a data set, and weights of its objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from probseg.data.base import InteractiveDataset
from probseg.data.layout import match_names, names_to_leave_out
from probseg.errors import DataError, require
from probseg.paths import find_data
from probseg.texts import read_lines
from probseg.types import Sample

_Key = TypeVar("_Key")


class Selected(InteractiveDataset):
    """Some objects of a data set, by their size and name, with weights for training.

    Objects have the names of their samples, e.g. `2008_000002#1` in SBD. The part before
    the last `#` names the photograph, or the mask where a photograph has several.

    RITM (Sofiiuk, Petrov and Konushin 2021) draws the objects of SBD in proportion to
    `(1 - score) ** 1.25`, with a score of each object that its code comes with. For the same, or
    for scores of one's own such as the IoU that a model reaches, write for each object of the
    training split a line with its name, a tab and this number.

    Args:
        dataset: The data set to choose from.
        min_area: Objects with fewer pixels are left out.
        exclude: Text file whose first column (up to a tab) holds names of objects, or of
            photographs of which all objects are left out. It may have names of other sets, too,
            which a warning in the log counts.
        weights: Text file with lines of an object's name, a tab, and how often training draws it in
            relation to others: a number, 0 for never. It has all objects that are not left out, and
            may have these, too. Without, all are used equally often.
        hold_out: Leaves out about one of this number of photographs, with all its objects, so that
            settings can be chosen on photographs that no network was trained on. A photograph's
            name alone decides (`is_held_out`): it is left out of every data set that has it.
        held_out: Keeps just those photographs that the same number leaves out as `hold_out`.

    Relative paths that do not exist are looked for in `$PROBSEG_DATA` (or `./data`). Weights
    count in training alone: validations and tests use each object once.

    Raises:
        DataError: If areas are asked for that the data set does not know, no object is left,
            `hold_out` or a list leaves no object out, or a list cannot be read, or has unknown
            names or unusable weights.
        ValueError: If `hold_out` or `held_out` is below 2.

    Attributes:
        name: That of the data set.
        weights: float64, shape `(len(self),)`; None without.
    """

    def __init__(
        self,
        dataset: InteractiveDataset,
        min_area: int | None = None,
        exclude: Path | str | None = None,
        weights: Path | str | None = None,
        hold_out: int | None = None,
        held_out: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.name = dataset.name
        chosen, areas = np.ones(len(dataset), dtype=bool), dataset.areas
        if min_area is not None:
            if areas is None:
                raise DataError(
                    f"`min_area` must be null, got {min_area}: {dataset.name} does not know the "
                    "areas of its objects; use an argument of the data set itself"
                )
            chosen &= areas >= min_area
        if exclude is not None:
            names = [dataset.object_name(index) for index in range(len(dataset))]
            photos = [name.rpartition("#")[0] for name in names]
            known = ((name, None) for name in dict.fromkeys(chain(names, filter(None, photos))))
            listed = names_to_leave_out(find_data(exclude), "exclude", known, dataset.name)
            pairs = zip(names, photos, strict=True)
            chosen &= [name not in listed and photo not in listed for name, photo in pairs]
        if hold_out is not None:
            left_out = _held_out(dataset, "hold_out", hold_out)
            if not left_out.any():
                raise DataError(
                    f"hold_out={hold_out} leaves out no photograph of {self.name}, of "
                    f"{len(dataset)} objects: it goes by their names, and they are few; choose a "
                    "smaller number, or set it to null"
                )
            chosen &= ~left_out
        if held_out is not None:
            chosen &= _held_out(dataset, "held_out", held_out)
        self.chosen = np.flatnonzero(chosen)
        if not len(self.chosen):
            raise DataError(
                f"{self.name}: none of its {len(dataset)} objects is left, with min_area={min_area}"
                f", exclude={exclude}, hold_out={hold_out}, held_out={held_out}; choose fewer "
                "restrictions"
            )
        self.weights = object_weights(dataset)
        if self.weights is not None:
            self.weights = self.weights[self.chosen]
        if weights is not None:
            self.weights = _read_weights(find_data(weights), dataset, chosen)[self.chosen]

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Sample:
        """Return one of the selected objects."""
        return self.dataset[int(self.chosen[index])]

    def image_file(self, index: int) -> Path | None:
        """Return the file of a selected object's image; see the base class."""
        return self.dataset.image_file(int(self.chosen[index]))

    def read_masks(self, indices: Iterable[int]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the masks of selected objects; see the base class."""
        return self.dataset.read_masks(int(self.chosen[index]) for index in indices)

    @property
    def areas(self) -> npt.NDArray[np.int64] | None:
        """Pixels of each object; None where the data set does not know them."""
        areas = self.dataset.areas
        return None if areas is None else areas[self.chosen]

    def object_name(self, index: int) -> str:
        """Return the name of a selected object."""
        return self.dataset.object_name(int(self.chosen[index]))


def object_weights(dataset: Dataset[Sample]) -> npt.NDArray[np.float64] | None:
    """Return the relative frequency of each object in training; None if all are equal."""
    return dataset.weights if isinstance(dataset, Selected) else None


def is_held_out(photo: str, count: int) -> bool:
    """Return whether a photograph is held out from training, about one in `count`.

    Its name alone decides, by its SHA-256 modulo `count`: not the data set, its order or the
    part of it that is read.
    """
    return checksum(photo) % count == 0


def checksum(name: str) -> int:
    """Return the SHA-256 of a name as a number."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")


def held_out(places: Mapping[_Key, float], fraction: float | None = None) -> list[_Key]:
    """Return what is held out for validation, about a `fraction`, of two or more that have a place.

    By default that is 15 %, and of less than 160 names about 24, up to a third. The places, in
    [0, 1), are checksums of names: what was trained on stays there when others are added, but for
    the last one that validation needs.
    """
    if fraction is None:
        fraction = min(1 / 3, max(0.15, 24 / len(places)))
    ordered = sorted(places, key=places.__getitem__)
    count = sum(place < fraction for place in places.values())
    return ordered[: min(max(1, count), len(ordered) - 1)]


def _held_out(dataset: InteractiveDataset, argument: str, count: int) -> npt.NDArray[np.bool_]:
    """Return True for objects whose photograph is held out."""
    require(count >= 2, argument, "at least 2, which is one photograph in two", count)
    names = (dataset.object_name(index) for index in range(len(dataset)))
    photos = [name.rpartition("#")[0] or name for name in names]
    chosen = {photo: is_held_out(photo, count) for photo in set(photos)}
    return np.array([chosen[photo] for photo in photos])


def _read_weights(
    path: Path, dataset: InteractiveDataset, chosen: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Read the weights of all objects; those that are not chosen may be missing, and get 0."""
    names = [dataset.object_name(index) for index in range(len(dataset))]
    matches, unknown = match_names(path, "weights", ((name, None) for name in names))
    listed: dict[str, float] = {}
    for number, line in read_lines(path, "check the `weights` argument"):
        text, name = line.partition("\t")[2], matches.get(number)
        with suppress(ValueError):
            if 0 <= (weight := float(text)) < float("inf") and name not in listed:
                listed |= {} if name is None else {name: weight}
                continue
        fault = f"{name!r} was listed before"
        if name not in listed:
            fault = f"expected an object's name, a tab and a finite number >= 0, got {text!r}"
        raise DataError(f"{path}, line {number}: {fault}; give each object one weight")
    weights = np.array([listed.get(name, 0.0) for name in names])
    missing = [name for name, use in zip(names, chosen, strict=True) if use and name not in listed]
    all_zero = [] if weights[chosen].any() else names
    for what, wrong, hint in (
        (f"has no weight for objects of {dataset.name}", missing, "add them, or 0"),
        (f"has names that no object of {dataset.name} has", unknown, "remove them"),
        ("has 0 for all objects", all_zero, "raise the weights of some"),
    ):
        if wrong:
            raise DataError(f"{path}: {what}: {wrong[:3]} ({len(wrong)} in all); {hint}")
    return weights
