"""Options and files of `--config`: what of them can be checked before slow imports."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from probseg.errors import UnknownNameError, UsageError
from probseg.paths import configs_dir

SUFFIXES = (".yaml", ".yml")


GROUPS = (
    *("ckpt_path", "config", "data", "evaluation", "model", "seed_everything"),
    *("semantic_evaluation", "trainer", "verbose", "weights_only"),
)
"""Keys of configurations: options of fit, validate or test up to their first dot."""

_OTHERS = ("folder", "help", "print_config")
"""Options that are no keys."""


def check_options(arguments: Sequence[str]) -> None:
    """Check the names of options up to their first dot; the parser knows what they may go on with.

    Args:
        arguments: Verb and options.

    Raises:
        UnknownNameError: If there is no such option; the message lists the nearest ones.
    """
    for argument in arguments:
        name = re.split(r"[.=+]", argument.removeprefix("--"))[0]
        if argument.startswith("--") and name not in (*GROUPS, *_OTHERS):
            kind = f"probseg {arguments[0]} option"
            raise UnknownNameError(kind, name, (*GROUPS, *_OTHERS))


def with_shipped_configs(arguments: Sequence[str]) -> list[str]:
    """Point paths `configs/...` that do not exist here to the files that ship with probseg."""

    def found(argument: str) -> str:
        option, equals, value = argument.rpartition("=")
        path = Path(value)
        if path.parts[:1] != ("configs",) or path.suffix != ".yaml" or path.exists():
            return argument
        shipped = configs_dir().joinpath(*path.parts[1:])
        return f"{option}{equals}{shipped}" if shipped.exists() else argument

    return [found(argument) for argument in arguments]


def check_configs(arguments: Sequence[str]) -> None:
    """Check that configurations exist and have known keys, and that the files they name exist.

    Args:
        arguments: Verb and options.

    Raises:
        UsageError: If one is missing or empty, is no text, has an unknown key, or names a file that
            does not exist.
    """
    for path in named_configs(with_shipped_configs(arguments)).values():
        if path.is_file():
            _check_content("--config", path, arguments[0])
        elif path.is_dir():
            own = path / "config.yaml"
            hint = f"; did you mean {own}?" if own.is_file() else ""
            msg = f"--config {path}: is a folder, expected a YAML file{hint}"
            raise UsageError(msg)
        elif path.suffix in SUFFIXES:
            msg = f"--config {path}: does not exist{_nearest(path)}"
            raise UsageError(msg)


def named_configs(arguments: Sequence[str]) -> dict[int, Path]:
    """Return the files that `--config` names, by the places of the last arguments about them."""
    files = {}
    for place, (argument, following) in enumerate(pairwise([*arguments, ""])):
        option, equals, value = argument.partition("=")
        if option in ("-c", "--config"):
            files[place if equals else place + 1] = Path(value if equals else following)
    return files


def _check_content(option: str, path: Path, verb: str) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        msg = f"{option} {path}: must be YAML in UTF-8, got bytes that are no text: {error}"
        raise UsageError(msg) from error
    if not text.strip():
        msg = f"{option} {path}: must have settings, got an empty file"
        raise UsageError(msg)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:  # which the parser reports
        return
    for key in content if isinstance(content, dict) else ():
        if key not in GROUPS:
            unknown = UnknownNameError("key", str(key), GROUPS)
            msg = f"{option} {path}: {unknown}"
            raise UsageError(msg)
    for key, named in _named_files(content):
        if not (path.parent / named).exists() and not Path(named).exists():
            msg = (
                f"{option} {path}: `{key}: {named}` is looked for relative to this file, and "
                f"{path.parent / named} does not exist; `probseg {verb} --config ORIGINAL "
                "--print_config > mine.yaml` writes a configuration that can be moved"
            )
            raise UsageError(msg)


def _named_files(content: Any, key: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield the files that parts of a configuration are in, with the key of each part."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _named_files(value, f"{key}.{name}" if key else str(name))
    elif isinstance(content, str) and content.endswith(SUFFIXES):
        yield key, content


def _nearest(path: Path) -> str:
    """Return a proposal of a configuration of nearly the same name, or nothing."""
    folder = path.parent
    if not folder.is_dir() and folder.parts[:1] == ("configs",):
        folder = configs_dir().joinpath(*folder.parts[1:])
    known = [other.name for other in folder.glob("*.yaml")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, known, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""
