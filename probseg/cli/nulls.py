"""Null in options: the parser turns it into text where an argument takes texts, too."""

from __future__ import annotations

from typing import Any

from jsonargparse import Namespace


def restore_nulls(node: Namespace | dict[str, Any] | list[Any]) -> None:
    """Replace the text `None` by None at any depth of a part of a configuration, in place.

    `--model.model.changes.head '{normalisation: null}'` becomes the text. No argument of a network
    takes it.

    Args:
        node: The part.
    """
    values: Any = vars(node) if isinstance(node, Namespace) else node
    for key, value in list(enumerate(values) if isinstance(values, list) else values.items()):
        if value == "None":
            values[key] = None
        elif isinstance(value, Namespace | dict | list):
            restore_nulls(value)
