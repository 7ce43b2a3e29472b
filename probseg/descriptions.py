"""Objects from plain data: nested dictionaries of `class_path` and `init_args`, as in YAML.

Classes are looked up in a table by the last part of their path, and nothing is imported: a
description fetched from elsewhere cannot run code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from probseg.errors import UnknownNameError

RECOMMENDED = "lite2_unet_prop"  # network of the zoo that is used where none is named

_Plain = bool | int | float | str | list[Any] | dict[str, Any] | None
Changes = dict[str, dict[str, _Plain] | _Plain]
"""Changes to a description, as `probseg.models.override` takes them. The command line reads this
type: for `Any` instead it would build the described parts, and leave numbers as text."""

# takes a class's name and its arguments, whose parts are built, and returns the object
Make = Callable[[str, dict[str, Any]], Any]


def class_name(description: Mapping[str, Any]) -> str:
    """Return the last part of a description's `class_path`; an empty text without one."""
    path = description.get("class_path")
    return path.split(".")[-1] if isinstance(path, str) else ""


def is_description(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value describes an object."""
    return isinstance(value, dict) and "class_path" in value


def build_described(
    description: Mapping[str, Any],
    classes: Mapping[str, Callable[..., Any]],
    kind: str,
    make: Make | None = None,
) -> Any:  # noqa: ANN401 (an object of one of the classes)
    """Build a described object, and first the objects among its arguments."""
    if "class_path" not in description:
        raise ValueError(
            f"a {kind} must be {{'class_path': ..., 'init_args': {{...}}}}, got "
            f"{dict(description)}; name its class"
        )
    name = class_name(description)
    if name not in classes:
        raise UnknownNameError(kind, str(description["class_path"]), classes)
    arguments = {
        key: build_described(value, classes, kind, make) if is_description(value) else value
        for key, value in (description.get("init_args") or {}).items()
    }
    return classes[name](**arguments) if make is None else make(name, arguments)
