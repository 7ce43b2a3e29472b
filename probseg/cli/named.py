"""What a command line names: the parser finds short names among imported classes only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import yaml

import probseg.backbones
import probseg.data
import probseg.heads
from probseg.cli.configs import SUFFIXES
from probseg.errors import DataError
from probseg.kinds import KINDS, TASKS, TaskName, find
from probseg.texts import read_yaml

WORD = re.compile(r"[\w.]+")

LAZY = (probseg.backbones, probseg.data, probseg.heads)
"""Packages of the trunk whose classes are imported when they are asked for."""

OF_WINGS = {
    name: path
    for kind in ("class", "part", "data_module", "semantic_dataset")
    for name, path in KINDS[kind].items()
}
"""Paths of the classes of wings that configurations may name, by their short names."""


def names_in(arguments: Sequence[str]) -> set[str]:
    """Return the words of a command line and of all configurations that it reads.

    Args:
        arguments: Verb and options.

    Returns:
        Options without their dashes, keys of configurations, classes and other values; all classes
        if one of the options asks for help, which lists them.
    """
    words: set[str] = set()
    texts = [(argument, Path()) for argument in arguments]
    seen: set[Path] = set()
    while texts:
        text, folder = texts.pop()
        words.update(WORD.findall(text))
        value = text.rpartition("=")[2]
        if value.endswith(SUFFIXES):
            files = {Path(value), folder / value} - seen
            seen |= files
            texts += [(inner, path.parent) for path in files for inner in _texts_in(path)]
    if any("help" in word.split(".") for word in words):
        words.update(OF_WINGS, *(package.__all__ for package in LAZY))
    return words


def import_named(words: Set[str]) -> None:
    """Import classes of lazy packages and of wings.

    Args:
        words: Among them the short names of the classes.
    """
    for package in LAZY:
        for name in words & set(package.__all__):
            getattr(package, name)
    for name in words & OF_WINGS.keys():
        find(OF_WINGS[name])


def named_tasks(words: Set[str]) -> list[TaskName]:
    """Return the tasks whose evaluation has options on a command line.

    Args:
        words: Of the command line, see `names_in`.

    Returns:
        Interactive segmentation, and other tasks if something of their package or their option is
        named.
    """
    paths = [OF_WINGS.get(word, word) for word in words]
    return [
        task
        for task, facts in TASKS.items()
        if task == "interactive"
        or any(path.startswith((f"{facts.package}.", facts.option)) for path in paths)
    ]


def _texts_in(path: Path) -> Iterator[str]:
    """Yield all keys and texts of a configuration; none of what the parser cannot read either."""
    try:
        content = read_yaml(path)
    except (DataError, yaml.YAMLError):  # which the parser reports
        return
    yield from _texts(content)


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 (content of a configuration)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from (str(key), *_texts(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value
