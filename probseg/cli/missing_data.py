"""Data sets that a configuration names and that are not there: found before Lightning is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import yaml

from probseg.cli.configs import SUFFIXES, named_configs, with_shipped_configs
from probseg.cli.own_folder import FOLDER
from probseg.data.published import PUBLISHED, PUBLISHED_PATHS, SOURCES
from probseg.errors import DataError
from probseg.texts import read_yaml

LATER = ("--data", FOLDER, "--print_config", "--help", "-h")
"""Beginnings of options with which the configuration alone does not say what data are opened."""

_NAMES = {path.rpartition(".")[2]: name for name, path in PUBLISHED_PATHS.items()}


def check_data(arguments: Sequence[str]) -> None:
    """Open the published data sets of a configuration that have no folder, for their error.

    All others, and what options change, are opened after the options are parsed.

    Args:
        arguments: Verb and options.

    Raises:
        DatasetNotFoundError: If there is no such folder.
        UsageError: If another argument of the data set is wrong.
    """
    files = list(named_configs(with_shipped_configs(arguments)).values())
    if len(files) != 1 or any(argument.startswith(LATER) for argument in arguments):
        return
    content = _read(files[0])
    data = content.get("data") if isinstance(content, dict) else None
    for name, options in _datasets(data, files[0].parent):
        if SOURCES[name].folder(options.get("root")).is_dir():
            continue
        dataset = PUBLISHED[name]
        if options.keys() <= signature(dataset).parameters.keys():  # else the parser reports it
            dataset(**options)


def _datasets(value: Any, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: ANN401
    """Yield names and arguments of the published data sets in a part of a configuration."""
    if isinstance(value, str) and value.endswith(SUFFIXES):
        path = folder / value
        yield from _datasets(_read(path), path.parent)
    elif isinstance(value, list):
        for element in value:
            yield from _datasets(element, folder)
    elif isinstance(value, dict):
        package, _, kind = str(value.get("class_path")).rpartition(".")
        if kind in _NAMES and package in ("", "probseg.data"):
            yield _NAMES[kind], dict(value.get("init_args") or {})
        else:
            for element in value.values():
                yield from _datasets(element, folder)


def _read(path: Path) -> Any:  # noqa: ANN401 (content of a configuration)
    """Return the content of a configuration; None of what the parser cannot read either."""
    try:
        return read_yaml(path)
    except (DataError, yaml.YAMLError):  # which the parser reports
        return None
