"""Parts of the argument parsers of several verbs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NoReturn

from probseg.errors import UnknownNameError, UsageError

DEVICES = "cpu, cuda, cuda:N or mps"  # names that `--device` takes


class _Formatter(argparse.HelpFormatter):
    """Wraps texts of one line, and leaves the lines of others, such as examples, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` for wrong usage, as the verbs do for wrong input.

    Options are not abbreviated; of an unknown one the nearest names are given. An epilog of several
    lines is printed as it is.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments, of this parser alone or of a verb of it; refuse unknown options."""
        parsed, rest = super().parse_known_args(args, namespace)
        for name in rest:
            if name.startswith("--"):
                option = name.partition("=")[0]
                kind = f"{self.prog} option"
                raise UnknownNameError(kind, option, self._option_string_actions)
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of printing the usage and leaving the process."""
        raise UsageError(f"{message}; see {self.prog} --help")


if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[Parser]
    AddVerb = Callable[[Verbs], None]


def add_verbs(parser: Parser, verbs: Mapping[str, AddVerb], arguments: Sequence[str]) -> None:
    """Add the verbs below a verb to its parser: the one that the arguments call, or else all.

    What the others import stays unloaded. All are there for the help, and for errors, which list
    the verbs.
    """
    action = parser.add_subparsers(required=True, metavar="|".join(verbs))
    called = [name for name in arguments[:1] if name in verbs]
    for name in called or verbs:
        verbs[name](action)


def new_file(text: str) -> Path:
    """Convert an argument to the path of a file that can be written."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"must be a file in a folder that exists, got {text!r}; make {path.parent} first"
        )
    reason = _refusal(path)
    if reason is not None:
        raise argparse.ArgumentTypeError(
            f"{path} cannot be written: {reason}; choose another folder"
        )
    return path


def check_writable(option: str, path: Path) -> None:
    """Raise before long work if a file or folder, which may be missing, cannot be written."""
    reason = _refusal(path)
    if reason is not None:
        raise UsageError(f"{option} {path} cannot be written: {reason}; choose another place")


def _refusal(path: Path) -> str | None:
    """Return why the system refuses a new file or folder at a path, or None."""
    folder = path
    try:
        while not folder.is_dir() and (folder == path or not folder.exists()):
            folder = folder.parent
        with TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder}: {error.strerror}"


def count(text: str, least: int = 0) -> int:
    """Convert an argument to a whole number of at least 0."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {least}, got {text!r}"
        )
    return int(text)


def positive(text: str) -> int:
    """Convert an argument to a whole number of at least 1."""
    return count(text, least=1)


def device(text: str) -> str:
    """Check that a device has this name, and that PyTorch sees it on this machine."""
    if text == "cpu":
        return text
    if not re.fullmatch(r"(cuda|mps)(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be {DEVICES}, got {text!r}")
    import torch  # which takes seconds

    accelerator = torch.accelerator.current_accelerator()
    kind = "cpu" if accelerator is None else accelerator.type
    numbered = [f"{kind}:{number}" for number in range(torch.accelerator.device_count())]
    if text not in (*numbered, *([kind] if numbered else [])):
        devices = ", ".join(["cpu", *numbered])
        raise argparse.ArgumentTypeError(
            f"must be a device that PyTorch sees on this machine ({devices}), got {text!r}"
        )
    return text


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option `--device` to a parser."""
    parser.add_argument(
        "--device", type=device, default="cpu", help=f"{DEVICES} (default: %(default)s)"
    )
