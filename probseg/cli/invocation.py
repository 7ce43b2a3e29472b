"""The command line of fit, validate or test, and the configurations that it names.

Nothing here imports torch or Lightning: what can be refused at once is refused at once.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from importlib.util import find_spec
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from probseg.cli.help import EXAMPLES
from probseg.data.published import PUBLISHED, PUBLISHED_PATHS, SOURCES
from probseg.errors import DataError, UnknownNameError, UsageError, check_name
from probseg.kinds import KINDS, TASKS, TaskName
from probseg.paths import configs_dir, find_data, is_path
from probseg.texts import read_yaml, tell

SUFFIXES = (".yaml", ".yml")

# the option for any folder of images and masks as the data of a test or a validation
FOLDER = "--folder"
MINUTES = "--minutes"  # the option for the length of a training

# the argument of the data module that each verb evaluates
ROLES = {"test": "test", "validate": "val"}

GROUPS = (
    *("ckpt_path", "config", "data", "evaluation", "model", "seed_everything"),
    *("semantic_evaluation", "trainer", "verbose", "weights_only"),
)
"""Keys of configurations: options of fit, validate or test up to their first dot."""

OPTIONS = (*GROUPS, "folder", "help", "minutes", "print_config")

# beginnings of options with which the configuration alone does not say what data are opened
DEFERRING_OPTIONS = ("--data", FOLDER, "--print_config", "--help", "-h")
# arguments of the data module that a configuration may have set, for other data than a folder
OTHER_DATA = ("train", "val", "test", "val_objects", "proportions", "samples_per_epoch")

OF_WINGS = {
    name: path
    for kind in ("class", "part", "data_module", "semantic_dataset")
    for name, path in KINDS[kind].items()
}
"""Paths of the classes of wings that configurations may name, by their short names."""

_WORD = re.compile(r"[\w.]+")
_DATASETS = {path.rpartition(".")[2]: name for name, path in PUBLISHED_PATHS.items()}


class Option(NamedTuple):
    """An option `--name value` or `--name=value`: the arguments from `start` up to `stop`."""

    name: str
    value: str
    start: int
    stop: int


def read_options(arguments: Sequence[str]) -> Iterator[Option]:
    """Yield the options of a command line, in order."""
    for place, (argument, following) in enumerate(pairwise([*arguments, ""])):
        name, equals, value = argument.partition("=")
        if name.startswith("-"):
            yield Option(name, value if equals else following, place, place + 2 - len(equals))


class Invocation:
    """A command line of fit, validate or test. Each file that it names is read once.

    Paths `configs/...` that do not exist here mean the files that ship with probseg.
    """

    def __init__(self, verb: str, options: Sequence[str]) -> None:
        self.verb = verb
        self.options = with_shipped_configs(options)
        self._contents: dict[Path, Any] = {}

    def check(self) -> None:
        """Check names of options, configurations, and whether published data sets are there.

        The parser checks all else, for which it needs Lightning.
        """
        self._check_options()
        has_run = self.verb in ROLES and bool(self.options) and self.options[0][:1] != "-"
        of_run = "--data" if has_run else "--model"
        named = ("-c", "--config", of_run, FOLDER, "--print_config", "--help", "-h")
        if not any(option.startswith(named) or option.endswith("help") for option in self.options):
            raise UsageError(
                f"{FOLDER} DIR is missing: images and masks for {self.options[0]}; or --data FILE, "
                "as configs/data/benchmarks.yaml. A run's own data: --config RUN/config.yaml"
                if has_run
                else "--config FILE is missing: it says what to run, for example "
                + EXAMPLES[self.verb]
            )
        for path in self._configs(self.options):
            if path.is_file():
                self._check_config(path)
            elif path.is_dir():
                inner = path / "config.yaml"
                hint = f"; did you mean {inner}?" if inner.is_file() else ""
                raise UsageError(f"--config {path}: is a folder, expected a YAML file{hint}")
            elif path.suffix in SUFFIXES:
                folder = path.parent
                if not folder.is_dir() and folder.parts[:1] == ("configs",):
                    folder = configs_dir().joinpath(*folder.parts[1:])
                known = [other.stem for other in folder.glob("*.yaml")]
                near = difflib.get_close_matches(path.stem, known, n=1)
                hint = f"; did you mean {path.with_name(near[0])}.yaml?" if near else ""
                raise UsageError(f"--config {path}: does not exist{hint}")
        self._check_data()
        if "probseg.create_model" in self.words:  # of all files, for which it may load torch
            raise UsageError(
                "model: probseg.create_model makes networks of any task; in configurations, "
                "probseg.zoo.create_interactive takes the same arguments"
            )

    @cached_property
    def arguments(self) -> list[str]:
        """Verb and options for the parser: options that only probseg knows have become others."""
        words = self._with_budget(_in_brackets(with_run([self.verb, *self.options])))
        return self._with_whole_models(self._with_folder(words))

    @cached_property
    def words(self) -> set[str]:
        """The words of `arguments` and of all files that they name.

        Options without their dashes, keys, classes and other values; all classes of wings if an
        option asks for help, which lists them.
        """
        words: set[str] = set()
        for argument in self.arguments:
            words.update(_WORD.findall(argument))
            for key, value in self._parts(argument.rpartition("=")[2], Path()):
                words.update(key.split("."))
                if isinstance(value, str):
                    words.update(_WORD.findall(value))
        if any("help" in word.split(".") for word in words):
            words.update(OF_WINGS)
        return words

    def attentions(self) -> set[str]:
        """Return the dotted paths that are named as attentions: classes of your own."""
        given = {o.name: o.value for o in read_options(self.arguments)}
        parts = [part for value in given.values() for part in self._parts(value, Path())]
        return {
            value
            for key, value in (*given.items(), *parts)
            if key.endswith("attention") and isinstance(value, str) and "." in value
        }

    def tasks(self) -> list[TaskName]:
        """Return the tasks whose evaluation has options on this command line.

        Interactive segmentation, and other tasks if something of their package or their option is
        named.
        """
        paths = [OF_WINGS.get(word, word) for word in self.words]
        return [
            task
            for task, facts in TASKS.items()
            if task == "interactive"
            or any(path.startswith((f"{facts.package}.", facts.option)) for path in paths)
        ]

    def _content(self, path: Path) -> Any:  # noqa: ANN401 (content of a configuration)
        """Return the content of a file; None if it cannot be read, which the parser reports."""
        if path not in self._contents:
            try:
                self._contents[path] = read_yaml(path)
            except (DataError, yaml.YAMLError):
                self._contents[path] = None
        return self._contents[path]

    def _parts(self, node: Any, folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Any]:  # noqa: ANN401
        """Yield keys and values at any depth, also in the files that a configuration names.

        Their paths are relative to the folder of the configuration, or to the working directory.
        """
        for key, value in _walk(node):
            yield key, value
            if isinstance(value, str) and value.endswith(SUFFIXES):
                beside = folder / value
                path = beside if beside.is_file() else Path(value)
                if path not in above:
                    yield from self._parts(self._content(path), path.parent, (*above, path))

    @property
    def configs(self) -> list[Path]:
        """The configurations of the run, in order."""
        return self._configs(self.arguments)

    def _configs(self, arguments: Sequence[str]) -> list[Path]:
        options = read_options(arguments)
        return [Path(option.value) for option in options if option.name in ("-c", "--config")]

    def _check_options(self) -> None:
        """Check names up to their first dot, and those of the trainer up to the second.

        The parser checks the rest of their names.
        """
        for option in self.options:
            if not option.startswith("--"):
                continue
            name, *rest = re.split(r"[.=+]", option.removeprefix("--"))
            check_name(f"probseg {self.verb} option", name, OPTIONS)
            if option.startswith("--trainer."):
                for unknown in _unknown_of_trainer("option", "--", rest[:1]):
                    raise unknown

    def _check_config(self, path: Path) -> None:
        try:
            content = self._contents[path] = read_yaml(path)
        except DataError as error:
            raise UsageError(f"--config {error}") from error
        except yaml.YAMLError:  # which the parser reports
            return
        if content is None:
            raise UsageError(f"--config {path}: must have settings, got an empty file")
        if not isinstance(content, dict):
            return
        trainer = content.get("trainer")
        unknown = [
            UnknownNameError("key", str(key), GROUPS) for key in content if key not in GROUPS
        ]
        unknown += _unknown_of_trainer("key", "", trainer if isinstance(trainer, dict) else ())
        if unknown:
            raise UsageError(f"--config {path}: {unknown[0]}")
        for key, value in _walk(content):
            if "[" in key or not isinstance(value, str) or not value.endswith(SUFFIXES):
                continue
            if not (path.parent / value).exists() and not Path(value).exists():
                raise UsageError(
                    f"--config {path}: `{key}: {value}` is looked for relative to this file, and "
                    f"{path.parent / value} does not exist; `probseg {self.verb} --config ORIGINAL "
                    "--print_config > mine.yaml` writes a configuration that can be moved"
                )

    def _check_data(self) -> None:
        """Open published data sets that have no folder, for their error.

        All others, and what options change, are opened after the options are parsed.
        """
        files = self._configs(self.options)
        if len(files) != 1 or any(option.startswith(DEFERRING_OPTIONS) for option in self.options):
            return
        content = self._content(files[0])
        data = content.get("data") if isinstance(content, dict) else None
        for _, part in self._parts(data, files[0].parent):
            path = str(part.get("class_path")) if isinstance(part, dict) else ""
            package, _, kind = path.rpartition(".")
            if kind not in _DATASETS or package not in ("", "probseg.data"):
                continue
            name, arguments = _DATASETS[kind], part.get("init_args") or {}
            known = signature(PUBLISHED[name]).parameters.keys()  # the parser reports others
            there = SOURCES[name].folder(arguments.get("root")).is_dir()
            if not there and arguments.keys() <= known:
                PUBLISHED[name](**arguments)

    def _with_budget(self, arguments: list[str]) -> list[str]:
        """Replace `--minutes N` by the callback that ends a training after this time."""
        options = list(read_options(arguments))
        budgets = [option for option in options if option.name == MINUTES]
        if not budgets:
            return arguments
        if self.verb != "fit":
            raise UsageError(f"{MINUTES}: is for fit, whose time it sets")
        if "--trainer.max_epochs" in (option.name for option in options):
            raise UsageError(
                f"{MINUTES} and --trainer.max_epochs: both set the length; leave one of them out"
            )
        rest = list(arguments)
        for option in reversed(budgets):  # the last one counts
            del rest[option.start : option.stop]
        minutes = budgets[-1].value
        try:
            right = 0 < float(minutes) < math.inf
        except ValueError:
            right = False
        if not right:
            raise UsageError(f"{MINUTES} must be a finite number above 0, got {minutes!r}")
        callback = "--trainer.callbacks+=probseg.callbacks.Budget"
        return [*rest, callback, f"--trainer.callbacks.minutes={minutes}"]

    def _with_folder(self, arguments: list[str]) -> list[str]:
        """Replace `--folder DIR` by options that make all objects of DIR the data of the run.

        They come right after the configurations, whose data they replace; options such as
        `--data.eval_batch_size` still count. Without a configuration and a model, the configuration
        is that of trainings on folders, whose model is the recommended one of the zoo.
        """
        options = list(read_options(arguments))
        folders = [option for option in options if option.name == FOLDER]
        if not folders:
            return arguments
        _, folder, start, stop = folders[0]
        if self.verb not in ROLES:
            raise UsageError(
                f"{FOLDER}: is for {' and '.join(ROLES)}; a training takes --data.root DIR"
            )
        if len(folders) > 1 or not folder or folder.startswith("-"):
            values = [option.value for option in folders]
            raise UsageError(
                f"--folder must be given once, with a folder of images and masks, got {values}"
            )
        names = [option.name for option in options]
        choices = [f"--data.{name}" for name in ("root", "train", "val", "test")]
        for name in names:
            if name in ("--data", *choices) or name.startswith(tuple(f"{c}." for c in choices)):
                raise UsageError(
                    f"{FOLDER} {folder} and {name}: both choose the data; leave one of them out"
                )
        rest = [*arguments[:start], *arguments[stop:]]
        # Options of parts of a model, such as --model.optimizer, are of the recommended one.
        if not self._configs(rest) and not {"--model", "--model.class_path"} & set(names):
            rest[1:1] = ["--config", str(configs_dir() / "experiment" / "folder.yaml")]
        self._warn_of_training_data(self._configs(rest), folder)
        dataset = {"class_path": "probseg.data.ImageMaskFolder", "init_args": {"root": folder}}
        data = []
        # Cleared first: the parser would keep arguments that other data sets have, too, as `split`.
        for sets in (dict.fromkeys(OTHER_DATA), {ROLES[self.verb]: dataset}):
            module = {"class_path": "probseg.data.InteractiveDataModule", "init_args": sets}
            data.append(f"--data={json.dumps(module)}")
        configs = [option for option in read_options(rest) if option.name in ("-c", "--config")]
        after = configs[-1].stop if configs else 1
        return [*rest[:after], *data, *rest[after:]]

    def _warn_of_training_data(self, configs: Iterable[Path], folder: str) -> None:
        """Say that a run was trained on most of the folder that it is to be tested on."""
        for path in configs:
            if path.name != "config.yaml":  # as `fit` writes it
                continue
            node = self._content(path)
            for key in ("data", "init_args", "root"):
                node = node.get(key) if isinstance(node, dict) else None
            if isinstance(node, str) and find_data(node).resolve() == find_data(folder).resolve():
                tell(
                    f"probseg: {FOLDER} {find_data(folder)}: this run was trained on most of its "
                    f"photographs, and scores too well on them; without {FOLDER}, it is tested on "
                    "the others\n",
                    sys.stderr,
                )

    def _with_whole_models(self, arguments: list[str]) -> list[str]:
        """Let a file given as `--model.model` describe all of the network.

        The parser merges it into what a configuration said before: arguments of the same names
        would stay, of another backbone too. Between the two, a class without arguments clears the
        table; it must be one that makes a network of the file's kind.
        """
        whole = list(arguments)
        for option in reversed(list(read_options(arguments))):
            if option.name == "--model.model" and option.value.endswith(SUFFIXES):
                from probseg.models import task_of  # with torch

                description = self._content(Path(option.value))
                task = task_of(description) if isinstance(description, dict) else "interactive"
                whole.insert(option.start, f"--model.model={TASKS[task].variant}")
        return whole


def with_run(arguments: Sequence[str]) -> list[str]:
    """Replace the model that follows the verb, if any, by options that evaluate it.

    A folder of this name goes before a model of the zoo. Of a run, nothing of its `config.yaml`
    is used, which imports what it names: it may be a stranger's.
    """
    verb, *rest = arguments
    if verb not in ROLES or not rest or rest[0].startswith("-"):
        return list(arguments)
    model = f"./{rest[0]}" if Path(rest[0]).exists() and not is_path(rest[0]) else rest[0]
    config = str(configs_dir() / "experiment" / "folder.yaml")
    chosen = ["--model.model.name", model, "--model.model.pretrained", "true"]
    return [verb, "--config", config, *chosen, *rest[1:]]


def with_shipped_configs(arguments: Iterable[str]) -> list[str]:
    """Point paths `configs/...` that do not exist here to the files that ship with probseg.

    A preset as `--model.model` means the file of its name.
    """
    shipped: list[str] = []
    for argument in arguments:
        option, equals, value = argument.rpartition("=")
        preset = configs_dir() / "model" / f"{value}.yaml"
        if "--model.model" in (option, *shipped[-1:]) and preset.is_file():
            value = str(Path("configs", "model", preset.name))
            argument = f"{option}{equals}{value}"
        path = Path(value)
        inner = configs_dir().joinpath(*path.parts[1:])
        is_ours = path.parts[:1] == ("configs",) and path.suffix == ".yaml" and inner.exists()
        shipped.append(f"{option}{equals}{inner}" if is_ours and not path.exists() else argument)
    return shipped


def _in_brackets(arguments: Sequence[str]) -> list[str]:
    """Make protocols without brackets a list, as `--evaluation.protocols ritm,human`."""
    words = list(arguments)
    for option in read_options(arguments):
        if option.name == "--evaluation.protocols" and option.value[:1] not in ("", "[", "-"):
            words[option.start : option.stop] = [f"{option.name}=[{option.value}]"]
            return _in_brackets(words)
    return words


def as_options(values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line for settings by their names."""
    return [
        f"--{name}={value if isinstance(value, str | Path) else json.dumps(value)}"
        for name, value in values.items()
    ]


@cache
def trainer_arguments() -> tuple[str, ...]:
    """Return the names of the arguments of Lightning's trainer; none if they cannot be found.

    They are read from its source: to import it takes seconds.
    """
    package = find_spec("lightning")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder, "pytorch", "trainer", "trainer.py")
        tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
        for kind in tree.body:
            for member in kind.body if isinstance(kind, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                    return tuple(a.arg for a in member.args.args[1:] + member.args.kwonlyargs)
    return ()


def _unknown_of_trainer(kind: str, dashes: str, names: Iterable[Any]) -> list[UnknownNameError]:
    """Return an error for each argument that Lightning's trainer does not have."""
    known = [f"trainer.{argument}" for argument in trainer_arguments()]
    return [
        UnknownNameError(kind, f"{dashes}trainer.{name}", known)
        for name in names
        if known and f"trainer.{name}" not in known
    ]


def _walk(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 (any YAML)
    """Yield a part of a configuration and all that is in it, with keys such as `data.test[0]`."""
    yield key, node
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _walk(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _walk(value, f"{key}[{number}]")


def run(verb: str, options: Sequence[str]) -> Any:  # noqa: ANN401 (a `ProbsegCLI`, with Lightning)
    """Check the command line of fit, validate or test, then load what runs it."""
    invocation = Invocation(verb, options)
    invocation.check()
    from probseg.cli import trainer  # with Lightning

    return trainer.run(invocation)


fit, validate, test = (partial(run, verb) for verb in ("fit", "validate", "test"))
