"""What the argument parsers of several verbs have in common."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from probseg.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Tells of wrong usage as the verbs do of wrong input, by a `UsageError`."""

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of printing the usage and leaving the process."""
        msg = f"{message}; see {self.prog} --help"
        raise UsageError(msg)


def new_file(text: str) -> Path:
    """Convert an argument to the path of a file that can be written.

    Raises:
        ArgumentTypeError: If it is a folder, or its folder does not exist.
    """
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        msg = f"expected a file in a folder that exists, got {text!r}; make {path.parent} first"
        raise argparse.ArgumentTypeError(msg)
    return path
