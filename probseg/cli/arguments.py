"""Parts of the argument parsers of several verbs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch

from probseg.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` for wrong usage, as the verbs do for wrong input."""

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of printing the usage and leaving the process."""
        msg = f"{message}; see {self.prog} --help"
        raise UsageError(msg)


if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[Parser]


def new_file(text: str) -> Path:
    """Convert an argument to the path of a file that can be written.

    Raises:
        ArgumentTypeError: If it is a folder, or its folder does not exist.
    """
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        msg = f"must be a file in a folder that exists, got {text!r}; make {path.parent} first"
        raise argparse.ArgumentTypeError(msg)
    return path


def count(text: str) -> int:
    """Convert an argument to a whole number of at least 0."""
    if not text.isdecimal():
        msg = f"must be a whole number of at least 0, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def positive(text: str) -> int:
    """Convert an argument to a whole number of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        msg = f"must be a whole number of at least 1, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def device(text: str) -> str:
    """Check that a device has this name, and is available."""
    kind, _, index = text.partition(":")
    if text != "cpu" and (kind != "cuda" or (text != "cuda" and not index.isdecimal())):
        msg = f"must be cpu, cuda or cuda:N, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    available = torch.cuda.device_count()
    if kind == "cuda" and int(index or 0) >= available:
        msg = f"must be one of the {available} CUDA devices that PyTorch sees, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return text
