"""`--folder`: any folder of images and masks as the data of `test` and `validate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import yaml

from probseg.cli.configs import named_configs
from probseg.errors import UsageError
from probseg.paths import configs_dir, find_data, is_path
from probseg.texts import read_yaml, tell

FOLDER = "--folder"

ROLES = {"test": "test", "validate": "val"}
"""The argument of the data module that each verb evaluates."""

MODEL = ("--model", "--model.class_path")
"""Options that choose a model; those with other parts change the one of the configuration."""

OTHERS = ("train", "val", "test", "val_objects", "proportions", "samples_per_epoch")
"""Arguments of the data module that a configuration may have set, for other data."""


def with_folder(arguments: Sequence[str]) -> list[str]:
    """Replace `--folder DIR` by options that make all objects of DIR the data of the run.

    They come right after the configurations, whose data they replace; options such as
    `--data.eval_batch_size` still count. Without a configuration and a model, the configuration is
    that of trainings on folders, whose model is the recommended one of the zoo.

    Args:
        arguments: Verb and options.

    Raises:
        UsageError: If the verb trains, no folder or several are given, or other data, too.
    """
    folders = [
        value if equals else following
        for argument, following in pairwise([*arguments, ""])
        for option, equals, value in [argument.partition("=")]
        if option == FOLDER
    ]
    if not folders:
        return list(arguments)
    verb, folder = arguments[0], folders[-1]
    if verb not in ROLES:
        msg = f"{FOLDER}: is for {' and '.join(ROLES)}; a training takes --data.root DIR"
        raise UsageError(msg)
    if len(folders) > 1 or not folder or folder.startswith("-"):
        msg = f"--folder must be given once, with a folder of images and masks, got {folders}"
        raise UsageError(msg)
    choices = ("--data", "--data.root", *(f"--data.{role}" for role in ("train", "val", "test")))
    for option in (argument.partition("=")[0] for argument in arguments):
        if option in choices or option.startswith(tuple(f"{choice}." for choice in choices[1:])):
            msg = f"{FOLDER} {folder} and {option}: both choose the data; leave one of them out"
            raise UsageError(msg)
    rest = list(arguments)
    for place, argument in enumerate(arguments):
        if argument.partition("=")[0] == FOLDER:
            del rest[place : place + (1 if "=" in argument else 2)]
    chooses_model = any(argument.partition("=")[0] in MODEL for argument in rest)
    if not named_configs(rest) and not chooses_model:  # options of it are of the recommended one
        rest[1:1] = ["--config", str(configs_dir() / "experiment" / "folder.yaml")]
    _warn_of_training_data(rest, find_data(folder))
    chosen = {"class_path": "probseg.data.ImageMaskFolder", "init_args": {"root": folder}}
    data = []
    # Cleared first: the parser would keep arguments that other data sets have, too, as `split`.
    for sets in (dict.fromkeys(OTHERS), {ROLES[verb]: chosen}):
        module = {"class_path": "probseg.data.InteractiveDataModule", "init_args": sets}
        data.append(f"--data={json.dumps(module)}")
    after = 1 + max(named_configs(rest), default=0)
    return [*rest[:after], *data, *rest[after:]]


def with_run(arguments: Sequence[str]) -> list[str]:
    """Replace the run that follows the verb by options that evaluate its network.

    Nothing of its `config.yaml` is used, which imports what it names: a run may be a stranger's.

    Args:
        arguments: Verb and options; first, perhaps, a run, a checkpoint or a model folder.
    """
    verb, *rest = arguments
    if verb not in ROLES or not rest or rest[0].startswith("-"):
        return list(arguments)
    model = rest[0] if is_path(rest[0]) else f"./{rest[0]}"
    config = str(configs_dir() / "experiment" / "folder.yaml")
    chosen = ["--model.model.name", model, "--model.model.pretrained", "true"]
    return [verb, "--config", config, *chosen, *rest[1:]]


def _warn_of_training_data(arguments: Sequence[str], folder: Path) -> None:
    """Say that a run was trained on most of the folder that it is to be tested on."""
    for path in named_configs(arguments).values():
        if path.name != "config.yaml" or not path.is_file():  # as `fit` writes it
            continue
        root = _root(path)
        if root is not None and find_data(root).resolve() == folder.resolve():
            tell(
                f"probseg: {FOLDER} {folder}: this run was trained on most of its photographs, and "
                f"scores too well on them; without {FOLDER}, it is tested on the others\n",
                sys.stderr,
            )


def _root(path: Path) -> str | None:
    """Return the folder of the data of a configuration; None where it has none."""
    try:
        content = read_yaml(path)
    except yaml.YAMLError:  # which the parser reports
        return None
    for key in ("data", "init_args", "root"):
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, str) else None
