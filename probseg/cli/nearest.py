"""The names that a mistyped option or key of a configuration may have meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module

from jsonargparse import ArgumentParser

from probseg.errors import UnknownNameError

UNKNOWN = re.compile(
    r"(?:Group '(?P<group>[\w.]+)' does not accept option|does not accept option|Option"
    r"|unrecognized arguments:) (?:'|--)(?P<name>[\w.]+)"
)
"""The parser's messages about an option that it does not know."""

OF_CLASS = re.compile(r"class_path[ =]'([\w.]+)'")


def nearest_options(message: str, options: Iterable[str]) -> str | None:
    """Return the known names nearest to an unknown one.

    Args:
        message: Of the parser of a verb, which names the unknown option, and the class that lacks
            it if it is an argument of a class.
        options: Options of the verb.

    Returns:
        A sentence; None if the message is about something else.
    """
    unknown = UNKNOWN.search(message)
    if unknown is None:
        return None
    name = unknown["name"]
    before = OF_CLASS.findall(message, 0, unknown.start())
    # The parser names the class of a callable argument, such as an optimizer, after its options.
    after = OF_CLASS.search(message.splitlines()[message.count("\n", 0, unknown.start())])
    if after is not None or before:
        name = name.partition(".")[0]
        options = _arguments(after[1] if after is not None else before[-1])
    elif unknown["group"] is not None:
        name = f"{unknown['group']}.{name}"
    return str(UnknownNameError("option", name, options))


def _arguments(path: str) -> list[str]:
    """Return the names of the arguments of a class or function."""
    module, _, name = path.rpartition(".")
    kind = getattr(import_module(module), name)
    parser = ArgumentParser()
    add = parser.add_class_arguments if isinstance(kind, type) else parser.add_function_arguments
    return list(add(kind, fail_untyped=False))
