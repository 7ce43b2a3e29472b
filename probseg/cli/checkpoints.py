"""Which file ``--ckpt_path`` means."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import Namespace

from probseg.errors import UsageError, WeightsError

LAST = "last.ckpt"


def find_last(trainer: Mapping[str, Any], data: Mapping[str, Any]) -> Path:
    """Return the newest ``last.ckpt`` among the runs of a configuration.

    Runs of the same name on other data, as their ``config.yaml`` says, are passed over.

    Lightning looks into the folder of the run that begins, which is new and empty, and then starts
    from scratch with no more than a warning.

    Args:
        trainer: The section ``trainer`` of the configuration; its first logger says where runs are.
        data: The section ``data``.

    Raises:
        UsageError: If no run has such a file.
    """
    pattern = _pattern(trainer)
    every = Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
    found = [path for path in every if _trains_on(path.parent.parent, data)]
    if not found:
        msg = (
            f"--ckpt_path last: there is no {pattern} of a run on these data to go on from; leave "
            "the option out to start anew, or give the path of a checkpoint"
        )
        raise UsageError(msg)
    return max(found, key=lambda path: path.stat().st_mtime)


def check_readable(path: Path) -> None:
    """Raise unless a file is a checkpoint written by Lightning.

    Raises:
        UsageError: If there is no such file.
        WeightsError: If it is damaged, or something else.
    """
    if not path.is_file():
        msg = f"--ckpt_path {path}: no such file; give the path of a .ckpt file, or `last`"
        raise UsageError(msg)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        msg = (
            f"{path}: holds Python objects, which are not read since they could run code; expected "
            "a checkpoint written by `probseg fit`"
        )
        raise WeightsError(msg) from error
    except (RuntimeError, EOFError, OSError) as error:
        msg = f"{path}: cannot be read as a checkpoint; the file is damaged, or of another kind"
        raise WeightsError(msg) from error
    if not isinstance(content, dict) or "state_dict" not in content:
        msg = f"{path}: holds no training state; expected a checkpoint written by `probseg fit`"
        raise WeightsError(msg)


def run_of(checkpoint: Path) -> str:
    """Return the name of the run, ``version_3`` for instance, that a checkpoint lies in."""
    return checkpoint.parent.parent.name


def first_logger(trainer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the logger whose folder holds the checkpoints, ``class_path`` and ``init_args``."""
    logger = trainer.get("logger")
    if isinstance(logger, list):
        logger = logger[0] if logger else None
    return None if logger is None or isinstance(logger, bool) else logger


def _trains_on(run: Path, data: Mapping[str, Any]) -> bool:
    """Say whether a run's configuration names these data; one without configuration may."""
    path = run / "config.yaml"
    if not path.is_file():
        return True
    stored = yaml.safe_load(path.read_text(encoding="utf-8")).get("data")
    return _text(stored) == _text(data)


def _text(section: Any) -> str:  # noqa: ANN401
    """Return a section of a configuration as text that does not depend on how it was read."""
    if isinstance(section, Mapping):
        # Stored configurations leave out what is null.
        items = {k: _text(v) for k, v in section.items() if v is not None and k != "__path__"}
        return str(sorted(items.items()))
    if isinstance(section, list | tuple):
        return str([_text(value) for value in section])
    return str(section)


def _pattern(trainer: Mapping[str, Any]) -> Path:
    """Return the absolute pattern of the files ``last.ckpt``, with ``*`` for the run."""
    for callback in trainer.get("callbacks") or []:
        folder = (callback.get("init_args") or {}).get("dirpath")
        if folder is not None:
            return Path(folder).absolute() / LAST
    root = Path(trainer.get("default_root_dir") or ".").absolute()
    if trainer.get("logger") is False:
        return root / "checkpoints" / LAST
    logger = first_logger(trainer)
    if logger is None:  # Lightning's default
        return root / "lightning_logs" / "*" / "checkpoints" / LAST
    options = logger["init_args"]
    if logger["class_path"].endswith("WandbLogger"):  # whose `name` is only for show
        name = options.get("project") or os.environ.get("WANDB_PROJECT", "lightning_logs")
    else:
        name = options.get("name") or ""
    return Path(options.get("save_dir") or root).absolute() / name / "*" / "checkpoints" / LAST


def without_pretrained_backbones(node: dict[str, Any] | Namespace) -> None:
    """Let all backbones in a part of the configuration start without weights, in place."""
    parts: dict[str, Any] = node if isinstance(node, dict) else vars(node)
    for name, part in parts.items():
        if not isinstance(part, dict | Namespace):
            continue
        arguments = part.get("init_args") or part  # a preset's changes name arguments directly
        if name == "backbone" and arguments.get("pretrained"):
            arguments["pretrained"] = False
        without_pretrained_backbones(part)
