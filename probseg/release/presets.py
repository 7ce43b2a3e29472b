"""A network as a preset and changes to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probseg.errors import UsageError
from probseg.models import list_presets, override, read_preset, task_of
from probseg.models.build import Description


def as_variant(description: Description, preset: str) -> dict[str, Any]:
    """Return the changes that make a network of a preset.

    Args:
        description: The network.
        preset: Name of the preset.

    Returns:
        Arguments for `probseg.models.override`, which give exactly the description.

    Raises:
        UsageError: If there is no such preset, or nothing can be added to it that gives the
            network.
    """
    task = task_of(description)
    if preset not in list_presets(task):
        msg = (
            f"`preset` {preset!r}: there is none of this name for {task} segmentation; name the "
            "model after the preset that it is a variant of, or give the name of one"
        )
        raise UsageError(msg)
    base = read_preset(preset, task)
    changes = _changes(base["init_args"], description["init_args"])
    if changes is None or override(base, changes) != description:
        msg = (
            f"`preset` {preset!r}: the network cannot be described as a variant of it, which has "
            "arguments that the network lacks; give the name of another preset"
        )
        raise UsageError(msg)
    return changes


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the changes from old to new arguments; None if one would have to be removed."""
    if not old.keys() <= new.keys():
        return None
    changes = {}
    for key, value in new.items():
        before = old.get(key)
        if key in old and before == value:
            continue
        changes[key] = value
        if isinstance(before, dict) and isinstance(value, dict):
            changes[key] = _change(before, value)
            if changes[key] is None:
                return None
    return changes


def _change(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any] | None:
    """Return what `override` makes a new part, or other dictionary, of an old one."""
    if "class_path" not in old:  # their entries are merged
        changed = {key: value for key, value in new.items() if old.get(key) != value}
        return changed if old.keys() <= new.keys() else None
    if old["class_path"] != new.get("class_path"):
        return new
    changes = _changes(old.get("init_args") or {}, new.get("init_args") or {})
    return new if changes is None else changes
