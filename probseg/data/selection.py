"""Subsets of a data set, and weights of its objects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from probseg.data.base import InteractiveDataset
from probseg.data.layout import match_names, names_to_leave_out
from probseg.errors import DataError
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
        max_area: Objects with more pixels are left out.
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
        max_area: int | None = None,
        exclude: Path | str | None = None,
        weights: Path | str | None = None,
        hold_out: int | None = None,
        held_out: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.name = dataset.name
        chosen = np.ones(len(dataset), dtype=bool)
        areas = dataset.areas
        if areas is not None:
            chosen &= (areas >= (min_area or 0)) & (
                areas <= (np.inf if max_area is None else max_area)
            )
        elif min_area is not None or max_area is not None:
            raise DataError(
                f"`min_area` and `max_area` must be null, got {min_area} and {max_area}: "
                f"{dataset.name} does not know the areas of its objects; set both to null, or use "
                "an argument of the data set itself"
            )
        if exclude is not None:
            chosen &= ~_listed(dataset, find_data(exclude))
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
                f", max_area={max_area}, exclude={exclude}, hold_out={hold_out}, "
                f"held_out={held_out}; choose fewer restrictions"
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


def _listed(dataset: InteractiveDataset, path: Path) -> npt.NDArray[np.bool_]:
    """Return True for objects that a list names, themselves or by their photograph."""
    names = [dataset.object_name(index) for index in range(len(dataset))]
    photos = [name.rpartition("#")[0] for name in names]
    known = ((name, None) for name in dict.fromkeys(chain(names, filter(None, photos))))
    listed = names_to_leave_out(path, "exclude", known, dataset.name)
    pairs = zip(names, photos, strict=True)
    return np.array([name in listed or photo in listed for name, photo in pairs])


def is_held_out(photo: str, count: int) -> bool:
    """Return whether a photograph is held out from training, about one in `count`.

    Its name alone decides, by its SHA-256 modulo `count`: not the data set, its order or the
    part of it that is read.
    """
    return checksum(photo) % count == 0


def checksum(name: str) -> int:
    """Return the SHA-256 of a name as a number."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")


def held_out(places: Mapping[_Key, float], fraction: float) -> list[_Key]:
    """Return what is held out for validation, about a `fraction`, of two or more that have a place.

    The places, in [0, 1), are checksums of names: a name stays on its side when others are added,
    but for the last one that either side needs.
    """
    ordered = sorted(places, key=places.__getitem__)
    count = sum(place < fraction for place in places.values())
    return ordered[: min(max(1, count), len(ordered) - 1)]


def _held_out(dataset: InteractiveDataset, argument: str, count: int) -> npt.NDArray[np.bool_]:
    """Return True for objects whose photograph is held out."""
    if count < 2:
        raise ValueError(
            f"`{argument}` must be at least 2, which is one photograph in two, got {count}"
        )
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
        text = line.partition("\t")[2]
        try:
            weight = float(text)
        except ValueError:
            weight = float("nan")
        if not 0 <= weight < float("inf"):
            raise DataError(
                f"{path}, line {number}: expected an object's name, a tab and a finite number >= 0,"
                f" got {text!r} for the number"
            )
        name = matches.get(number)
        if name in listed:
            raise DataError(
                f"{path}, line {number}: {name!r} was listed before; give each object one weight"
            )
        if name is not None:
            listed[name] = weight
    weights = np.array([listed.get(name, 0.0) for name in names])
    missing = [name for name, use in zip(names, chosen, strict=True) if use and name not in listed]
    for what, wrong, hint in (
        (f"has no weight for objects of {dataset.name}", missing, "add them, or 0"),
        (f"has names that no object of {dataset.name} has", unknown, "remove them"),
    ):
        if wrong:
            raise DataError(f"{path}: {what}: {wrong[:3]} ({len(wrong)} in all); {hint}")
    if not weights[chosen].any():
        raise DataError(
            f"{path}: the weights of all {chosen.sum()} objects are 0; raise those of some"
        )
    return weights
