"""Which classes a checkpoint may name: the parser imports what it finds in its settings."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from probseg.errors import WeightsError

TRUSTED = ("probseg", "torch", "lightning")
"""Packages whose classes any checkpoint may name."""

PARSED = "hyper_parameters"
"""Settings in a checkpoint that the parser reads, and that replace those of the user."""

ALIASES = (
    "the settings in the checkpoint have YAML aliases, which training does not write, and which a "
    "few lines can unfold to any length; use another checkpoint"
)

SETTINGS = (PARSED, "datamodule_hyper_parameters")
"""Where a checkpoint names classes."""

INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"
"""What Lightning itself writes there besides classes."""


def check_names(checkpoint: Mapping[str, Any], allowed: Mapping[str, Any], source: Path) -> None:
    """Raise unless the settings in a checkpoint name trusted classes only.

    Nothing is imported for it but parts of the trusted packages. All texts count that could be read
    as an import path, whatever the argument is called: the parser decides by the type of the
    argument. It also takes a text for settings in YAML, and the path of a file for the file.

    Args:
        checkpoint: What the file holds.
        allowed: The settings of the user, who may name any class.
        source: The file, for the error.

    Raises:
        WeightsError: If another class is named.
    """
    named_by_user = set(_texts(allowed))
    for part in SETTINGS:
        for text in _texts(checkpoint.get(part, {})):
            if text in named_by_user:
                continue
            if part == PARSED and _is_file(text):
                msg = (
                    f"{source}: its settings name the file {text}, which would be read as more "
                    "settings; name it in your own configuration to allow it"
                )
                raise WeightsError(msg)
            if _is_import_path(text) and not _is_harmless(text):
                msg = (
                    f"{source}: names the class {text}; it would be imported, which runs its code. "
                    f"Only classes of {', '.join(TRUSTED)} are taken from a checkpoint: name it in "
                    "your own configuration, or on the command line, to allow it"
                )
                raise WeightsError(msg)


def _texts(settings: Any) -> Iterator[str]:  # noqa: ANN401 (any plain value)
    """Yield the texts in nested settings, those inside texts that are YAML too."""
    if isinstance(settings, Mapping):
        for value in settings.values():
            yield from _texts(value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _texts(value)
    elif isinstance(settings, str):
        yield settings
        try:
            if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(settings)):
                raise WeightsError(ALIASES)  # a few lines of which unfold to any length
            inner = yaml.safe_load(settings)
        except yaml.YAMLError:  # no settings, then
            return
        if inner != settings:
            yield from _texts(inner)
    elif inspect.isroutine(settings) or isinstance(settings, type):  # as the parser keeps some
        yield f"{settings.__module__}.{settings.__qualname__}"


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user, or a null character
        return False


def _is_import_path(text: str) -> bool:
    parts = text.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _is_harmless(path: str) -> bool:
    """Say whether an import path is that of something trusted, or of nothing."""
    package = path.partition(".")[0]
    if path == INSTANTIATOR:
        return True
    if package not in TRUSTED:
        try:
            return importlib.util.find_spec(package) is None  # e.g. of a model's name with its tag
        except ValueError:  # as for __main__, which is imported already
            return False
    try:
        found = pkgutil.resolve_name(path)
    except (ImportError, AttributeError):  # there is nothing to import
        return True
    if str(getattr(found, "__module__", "")).partition(".")[0] != package:
        return False  # what its modules have imported from elsewhere
    return isinstance(found, type) or (package == "probseg" and inspect.isfunction(found))
