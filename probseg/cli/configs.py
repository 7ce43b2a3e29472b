"""Options and files of `--config`: what of them can be checked before slow imports."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from probseg.errors import UnknownNameError, UsageError
from probseg.paths import configs_dir
from probseg.texts import read_yaml

SUFFIXES = (".yaml", ".yml")


GROUPS = (
    *("ckpt_path", "config", "data", "evaluation", "model", "seed_everything"),
    *("semantic_evaluation", "trainer", "verbose", "weights_only"),
)
"""Keys of configurations: options of fit, validate or test up to their first dot."""

_OTHERS = ("folder", "help", "print_config")
"""Options that are no keys."""


def check_options(arguments: Sequence[str]) -> None:
    """Check the names of options up to their first dot, and of the trainer's up to the second.

    The parser knows what the others may go on with.

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
        if argument.startswith("--trainer."):
            of_trainer = re.split(r"[.=+]", argument)[1]
            for unknown in _unknown_of_trainer("option", [of_trainer]):
                raise unknown


def _unknown_of_trainer(kind: str, names: Iterable[Any]) -> list[UnknownNameError]:
    known = trainer_arguments()
    dashes = "--" if kind == "option" else ""
    return [
        UnknownNameError(kind, f"{dashes}trainer.{name}", [f"trainer.{own}" for own in known])
        for name in names
        if known and name not in known
    ]


def _unknown_keys(content: Any) -> list[UnknownNameError]:  # noqa: ANN401
    """Find unknown keys of a configuration, as far as `check_options` knows them."""
    if not isinstance(content, dict):
        return []
    unknown = [UnknownNameError("key", str(key), GROUPS) for key in content if key not in GROUPS]
    trainer = content.get("trainer")
    return unknown + _unknown_of_trainer("key", trainer if isinstance(trainer, dict) else ())


@cache
def trainer_arguments() -> tuple[str, ...]:
    """Return the names of the arguments of Lightning's trainer; none if they cannot be found.

    They are read from its source: to import it takes seconds.
    """
    package = find_spec("lightning")
    folders = [] if package is None else package.submodule_search_locations or []
    for path in (Path(folder, "pytorch", "trainer", "trainer.py") for folder in folders):
        tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
        kinds = [one for one in tree.body if isinstance(one, ast.ClassDef)]
        members = [one for kind in kinds if kind.name == "Trainer" for one in kind.body]
        for made in members:
            if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                return tuple(one.arg for one in made.args.args[1:] + made.args.kwonlyargs)
    return ()


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
        content = read_yaml(path)
    except yaml.YAMLError:  # which the parser reports
        return
    for unknown in _unknown_keys(content):
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
