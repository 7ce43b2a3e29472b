"""What a card says of a training: told by its author, or by the files of the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from probseg.errors import UsageError
from probseg.zoo.index import Entry
from probseg.zoo.trained import Trained

TRAINING = "training.yaml"
"""File of a model folder with all settings of its training, where no shorter recipe is told."""

_Fact = TypeVar("_Fact", int, str)


@dataclass(frozen=True)
class Facts:
    """What a card says that no file of the run knows.

    Args:
        description: One sentence on the model.
        data: What the weights were trained on, one line per data set, with its licence.
        license: Licence of the weights, as the hub names it: ``apache-2.0``, ``other``.
        hardware: What the model was trained on.
        hours: For how long.
        limits: What the model is not good at, one line each.
        recipe: Command that trains the model; None for that of the run's own settings, which are
            then published as ``training.yaml``.
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
    """Return what is known of a published model, for publishing it again."""
    return Facts(
        description=entry.description,
        data=entry.data,
        license=entry.license,
        hardware=entry.hardware,
        hours=entry.hours,
        limits=entry.limits,
        recipe=entry.recipe,
        seed=entry.seed,
        commit=entry.commit,
    )


def own_recipe(trained: Trained) -> str:
    """Return the command that trains by the settings of the run itself, `TRAINING`.

    Args:
        trained: What the run left.

    Raises:
        UsageError: If they are not known, or no use elsewhere.
    """
    if trained.config is None:
        msg = (
            f"recipe: {trained.source} has no config.yaml of its run; give the command that trains "
            "the model among the facts"
        )
        raise UsageError(msg)
    for where, value in _texts(yaml.safe_load(trained.config)):
        if Path(value).is_absolute():
            msg = (
                f"recipe: the run's setting {where} is {value}, a place of one machine; give the "
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


def agreed(what: str, told: _Fact | None, known: _Fact | None) -> _Fact:
    """Return a fact that the run may know, too.

    Args:
        what: Named in the error.
        told: What the facts say, which may be the beginning of a longer text; None for nothing.
        known: What the run says; None for nothing.

    Raises:
        UsageError: If nobody knows it, or the two differ.
    """
    fact = told if known is None else known
    if fact is None:
        msg = f"{what}: the run does not tell it; give it among the facts"
        raise UsageError(msg)
    same = told in (None, fact) or (isinstance(told, str) and str(fact).startswith(told))
    if not same:
        msg = f"{what}: the facts say {told!r}, the run says {known!r}; leave it out of the facts"
        raise UsageError(msg)
    return fact
