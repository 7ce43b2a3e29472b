"""Facts about a training for its card: from the author, or from the files of the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from probseg.errors import UsageError
from probseg.zoo.index import Entry
from probseg.zoo.trained import Trained

TRAINING = "training.yaml"
"""File of a model folder with all settings of its training, where the author gives no recipe."""

_Fact = TypeVar("_Fact", int, str)


@dataclass(frozen=True)
class Facts:
    """Facts for the card that are in no file of the run.

    Args:
        description: One sentence on the model.
        data: Training data, one line per data set, with its licence.
        license: Licence of the weights, as the hub names it: `apache-2.0`, `other`.
        hardware: Training hardware.
        hours: For how long.
        limits: Weaknesses of the model, one line each.
        recipe: Command that trains the model; None for that of the run's own settings, which are
            then published as `training.yaml`.
        seed: Seed of the training; None for that of the run.
        commit: Commit of probseg that it was trained with; None for that of the run.
    """

    description: str
    data: list[str]
    license: str
    hardware: str
    hours: float
    limits: list[str]
    recipe: str | None = None
    seed: int | None = None
    commit: str | None = None


def facts_of(entry: Entry) -> Facts:
    """Return the facts of a published model, for publishing it again."""
    return Facts(**{field.name: getattr(entry, field.name) for field in fields(Facts)})


def own_recipe(trained: Trained) -> str:
    """Return the command that trains by the settings of the run itself, `TRAINING`.

    Args:
        trained: The trained network.

    Raises:
        UsageError: If they are not known, or no use elsewhere.
    """
    if trained.config is None:
        msg = (
            f"`recipe`: {trained.source} has no config.yaml of its run; give the command that "
            "trains the model among the facts"
        )
        raise UsageError(msg)
    for where, value in _texts(yaml.safe_load(trained.config)):
        if Path(value).is_absolute():
            msg = (
                f"`recipe`: the run's setting {where} is {value}, a place of one machine; give the "
                "command that trains the model among the facts"
            )
            raise UsageError(msg)
    return f"probseg fit --config {TRAINING}"


def _texts(settings: Any, where: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield the texts in nested settings with their names."""
    if isinstance(settings, dict | list):
        pairs = settings.items() if isinstance(settings, dict) else enumerate(settings)
        for key, value in pairs:
            yield from _texts(value, f"{where}.{key}".lstrip("."))
    elif isinstance(settings, str):
        yield where, settings


def confirmed(name: str, given: _Fact | None, recorded: _Fact | None) -> _Fact:
    """Return a fact after comparing the author's value with the recorded one.

    Args:
        name: Of the fact, for the error.
        given: The author's value, possibly an abbreviation of a recorded text; None without one.
        recorded: The value in the files of the run; None without one.

    Raises:
        UsageError: If both are None, or they differ.
    """
    fact = given if recorded is None else recorded
    if fact is None:
        msg = f"`{name}` must be among the facts, as the run does not record it; add it"
        raise UsageError(msg)
    same = given in (None, fact) or (isinstance(given, str) and str(fact).startswith(given))
    if not same:
        msg = (
            f"`{name}` must be {recorded!r}, as the run recorded, got {given!r} among the facts; "
            "leave it out of the facts"
        )
        raise UsageError(msg)
    return fact
