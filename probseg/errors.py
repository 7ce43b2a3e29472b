"""Exceptions whose messages name the fault, the expected values and a remedy."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_logger = logging.getLogger(__name__)


class DataError(ValueError):
    """An image, a mask or a folder cannot be used; the message names the file."""


class DatasetNotFoundError(FileNotFoundError):
    """A data set was not found in the searched folder; says what to expect there, and a way out."""

    def __init__(self, dataset: str, root: Path | str, expected: str, hint: str) -> None:
        place = Path(root)
        where = str(place)
        if not place.is_dir():
            where += ", which is a file" if place.exists() else ", which does not exist"
        super().__init__(f"{dataset} was not found in {where}: expected {expected}. {hint}")


class ModelNotFoundError(FileNotFoundError):
    """A file of a model or of a zoo is missing; the message names it."""


MEANT = {
    "learning_rate": "lr",
    "train": "fit",
    "eval": "test",
    "evaluate": "test",
    "epochs": "max_epochs",
    "workers": "num_workers",
    "gpus": "devices",
}
"""Names of other programs, and what means the same here."""


class UnknownNameError(KeyError):
    """A name that is in none of the project's tables; the message lists the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        names = sorted(known)
        words = [*names, *(word for word, meant in MEANT.items() if meant in names)]
        close = difflib.get_close_matches(name, words, n=3, cutoff=0.6)
        near = list(dict.fromkeys(word if word in names else MEANT[word] for word in close))
        hint = f"known: {names}" if len(names) < 100 else f"none of the {len(names)} known is near"
        if near:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        self.message = f"unknown {kind} {name!r}: {hint}{remedy}"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message  # KeyError would print the repr of the message


def check_name(kind: str, name: str, known: Collection[str]) -> None:
    """Raise an `UnknownNameError` unless a table has the name."""
    if name not in known:
        raise UnknownNameError(kind, name, known)


class ChecksumError(RuntimeError):
    """A file does not have the recorded checksum."""


class DownloadError(ConnectionError):
    """A file cannot be fetched; the message names its address."""


class WeightsError(ValueError):
    """Stored weights cannot be read, or belong to another network."""


class ZooError(ValueError):
    """A list of models is damaged or not for this version; the message names file and key."""


class NonFiniteLossError(ArithmeticError):
    """The loss of a training became infinite or not a number; the message names the images."""


class CheckpointError(OSError):
    """A checkpoint cannot be written; the message says which file still stands."""


class UsageError(ValueError):
    """Invalid input of the command line; the message is shown without a traceback."""


USER_ERRORS = (
    DataError,
    DatasetNotFoundError,
    ModelNotFoundError,
    UnknownNameError,
    ChecksumError,
    DownloadError,
    WeightsError,
    ZooError,
    NonFiniteLossError,
    CheckpointError,
    UsageError,
)
"""Errors that a user can mend; the command line shows their message without a traceback."""


def require(right: object, name: str, expected: str, value: object, remedy: str = "") -> None:
    """Raise a ValueError that names an argument, what it must be and what it is, unless right."""
    if not right:
        raise ValueError(f"`{name}` must be {expected}, got {value}{remedy and '; '}{remedy}")


def check_least(name: str, number: int | None, least: int = 1) -> None:
    """Raise a ValueError for an argument that is no integer or too small; None is not checked."""
    require(number is None or hasattr(number, "__index__"), name, "an integer", number)
    require(number is None or number >= least, name, f"at least {least}", number)


def user_error(error: BaseException | None) -> BaseException | None:
    """Find the outermost of `USER_ERRORS` in a chain of exceptions, which says what to do.

    Argument parsers wrap the exceptions of constructors in several others. None if there is none.
    """
    return next((link for link in history(error) if isinstance(link, USER_ERRORS)), None)


UNWRITABLE = tuple(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EACCES", "EPERM")
    if hasattr(errno, name)  # Windows lacks some
)
"""Error numbers of a full disk, a used up quota, a broken or read-only disk, no permission."""


def disk_fault(error: BaseException, place: Path = Path()) -> UsageError | None:
    """Say in a sentence what could not be written and how much room there is.

    `place` is where the program writes: the system does not name the file of a failed write. None
    if the error is another one, or about a file that cannot be read.
    """
    for link in history(error):
        of_database = getattr(link, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IO"))
        if of_database or (isinstance(link, OSError) and link.errno in UNWRITABLE):
            name, reason = getattr(link, "filename", None), getattr(link, "strerror", link)
            path = Path(os.fsdecode(name)) if name else place.absolute()
            if path.exists() and not os.access(path, os.R_OK):
                return UsageError(f"cannot read {path}: {reason}; change its permissions")
            there = next(p for p in (path, *path.absolute().parents) if p.exists())
            free = shutil.disk_usage(there).free
            return UsageError(
                f"cannot write {path}: {reason} ({free / 1e6:.1f} MB are free); make room, "
                "or choose a folder that can be written, then give the same command again"
            )
    return None


def history(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes and contexts, each once: they may lead in a circle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def log_drawing_errors(picture: Path | str) -> Iterator[None]:
    """Log the errors of a block that draws, and leave the picture out.

    No picture may end a training or a test: its numbers have taken hours.
    """
    try:
        yield
    except Exception as error:  # of any kind, from Matplotlib, OpenCV, Pillow or a logger
        if isinstance(picture, Path):
            with suppress(OSError):
                picture.unlink(missing_ok=True)
        reason = f"{type(error).__name__}: {error}"
        _logger.warning("%s: left out, it cannot be drawn (%s)", picture, reason)
