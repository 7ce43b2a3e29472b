"""Model and data of the shipped experiments, made without the rest of a run.

A whole run takes five to ten times as long to parse.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import lightning as L
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser

from probseg.cli.trainer import restore_nulls
from probseg.paths import configs_dir

KINDS = {"model": L.LightningModule, "data": L.LightningDataModule}


def options_of(part: str, words: Sequence[str]) -> list[str]:
    """Return the options of a part among options and their values."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [f"{option}={value}" for option, value in pairs if option.startswith(f"--{part}.")]


def part_of(name: str, part: Literal["model", "data"], *options: object) -> Any:
    """Make one part of an experiment; its weights take no memory."""
    path = configs_dir() / "experiment" / f"{name}.yaml"
    stored = yaml.safe_load(path.read_text(encoding="utf-8"))[part]
    given = path.parent / stored if isinstance(stored, str) else json.dumps(stored)
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(KINDS[part], part, subclass_mode=True)
    config = parser.parse_args([f"--{part}={given}", *map(str, options)])
    restore_nulls(config[part])
    with torch.device("meta"):
        return parser.instantiate(config)[part]
