"""Text files that people write: lists, tables and JSON, from any editor and system."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import yaml

from probseg.errors import DataError
from probseg.paths import BLOCK

CHECK = "check the path"

# how deep lists and objects may be nested in JSON and YAML; annotations have eight or so
DEPTH = 64
LARGEST = 1 << 30  # maximum bytes of a text that is read as a whole
YAML = 1 << 18  # maximum bytes of a YAML file, of which each takes 400 while it is read
# maximum digits of a whole number in YAML, as many as floating point has; Python writes 4300
DIGITS = 300
# maximum number of values of a YAML file, where those that aliases repeat count each time
NODES = 10**6

ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is the beginning of this one
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by the byte-order mark that a file begins with; without a mark it is UTF-8."""

# the byte-order mark as text, which joined files have between them too
MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"


# beginning of a text that a spreadsheet would compute, perhaps behind apostrophes
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return a text in which no name or message of others can steer a terminal.

    Control characters, those that turn the direction of text, and halves of characters are
    escaped; line breaks and tabs stay.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def count(number: int, thing: str) -> str:
    """Return `1 click` or `2 clicks`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def one_line(text: str) -> str:
    """Return a `printable` text whose line breaks are escaped, too: names may have some."""
    return printable(text).replace("\n", "\\n")


def tell(text: str, stream: TextIO | None = None) -> None:
    """Write a `printable` text to the standard output, or to another stream."""
    (stream or sys.stdout).write(printable(text))


@contextmanager
def open_text(path: Path, hint: str = CHECK) -> Iterator[TextIO]:
    """Open a text file in UTF-8, or in UTF-8, UTF-16 or UTF-32 with a byte-order mark.

    Lines end as in the file; iteration splits them at CR, LF and CR LF.
    """
    with _opened(path, hint) as file:
        encoding = encoding_of(file.peek(4))
        with io.TextIOWrapper(file, encoding, newline="") as text:
            try:
                yield text
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}: is not UTF-8 text ({error}); save it in the encoding UTF-8"
                ) from error


@contextmanager
def open_as_utf8(path: Path, hint: str = CHECK) -> Iterator[BinaryIO]:
    """Open such a text file as bytes in UTF-8 without a mark, for readers of bytes.

    UTF-16 and UTF-32 are converted in memory.
    """
    with _opened(path, hint) as file:
        encoding = encoding_of(file.peek(4))
        if encoding.startswith("utf-8"):
            file.seek(len(codecs.BOM_UTF8) if encoding == "utf-8-sig" else 0)
            yield file
            return
    yield io.BytesIO(read_text(path, hint).encode())


def _opened(path: Path, hint: str) -> io.BufferedReader:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"{path}: is a device or pipe, expected a text file; {hint}")
    try:
        return path.open("rb")
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        if isinstance(error, FileNotFoundError):
            reason = "no such file"
        elif path.is_dir():
            reason = "is a folder, expected a text file"
        raise DataError(f"{path}: {reason}; {hint}") from error


def encoding_of(beginning: bytes) -> str:
    """Return the encoding of a text by its first four bytes."""
    return next((name for mark, name in ENCODINGS.items() if beginning.startswith(mark)), "utf-8")


def read_text(path: Path, hint: str = CHECK, most: int = LARGEST) -> str:
    """Read a text file of at most `most` bytes, see `open_text`."""
    with open_text(path, hint) as file:
        if path.stat().st_size > most:
            raise DataError(
                f"{path}: has more than {most / 1e6:.1f} MB, and is not read; divide the file"
            )
        text = file.read()
    if "\0" in text:
        raise DataError(
            f"{path}: is not UTF-8 text: it has NUL characters, as UTF-16 without a byte-order "
            "mark has; save it in the encoding UTF-8"
        )
    return text


def read_lines(path: Path, hint: str = CHECK) -> list[tuple[int, str]]:
    """Read number (from 1) and text of the lines of a list that are not blank.

    Spaces at the ends of a line are kept. Nothing is a comment: names may begin with `#`.
    """
    text = read_text(path, hint).replace("\r\n", "\n").replace("\r", "\n")
    lines = ((number, line.lstrip(MARK)) for number, line in enumerate(text.split("\n"), start=1))
    return [(number, line) for number, line in lines if line.strip()]


def read_json(path: Path, hint: str = CHECK) -> Any:  # noqa: ANN401 (any JSON)
    """Read a JSON file; deep nesting, or a key twice in an object, raises a ValueError."""
    text = read_text(path, hint)
    shallow = ShallowJSON(io.BytesIO(text.encode()))
    while shallow.read(BLOCK):
        pass
    return json.loads(text, object_pairs_hook=_without_twins)


def write_rows(file: TextIO, rows: Iterable[Iterable[object]], line_end: str = "\r\n") -> None:
    """Write rows of a CSV file that spreadsheets may open: a text that is a formula gets a `'`.

    `from_cell` takes it away.
    """
    table = csv.writer(file, lineterminator=line_end)
    for row in rows:
        table.writerow(
            [f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell for cell in row]
        )


def from_cell(text: str) -> str:
    """Return a text that `write_rows` has written."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


class ShallowJSON:
    """Reads JSON in UTF-8, and raises a `ValueError` where it is nested more than `DEPTH` deep.

    Readers of JSON need memory for each level; ijson even for the path to it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.depth = 0
        self.rest = b""  # of the last block: the quote of a text that goes on, and a backslash

    def read(self, size: int = -1) -> bytes:
        """Read bytes, as a file does."""
        block = self.file.read(size)
        plain = re.sub(rb"\\.", b"", self.rest + block, flags=re.DOTALL)  # without escaped quotes
        signs = re.sub(rb'"[^"]*"', b"", plain.translate(None, _NO_SIGNS))
        signs, quote, _ = signs.partition(b'"')
        self.rest = quote + plain[-1:] if plain.endswith(b"\\") else quote
        import numpy as np  # which the help does without

        steps = (np.frombuffer(signs, np.uint8) & 2).astype(np.int64) - 1  # [ and {: 1, ] and }: -1
        depths = self.depth + np.cumsum(steps)
        if depths.max(initial=0) > DEPTH:
            raise ValueError(f"lists or objects are nested too deeply, in more than {DEPTH} levels")
        self.depth = int(depths[-1]) if len(depths) else self.depth
        return block


_NO_SIGNS = bytes(set(range(256)) - set(b'"[]{}'))


def read_yaml(path: Path, hint: str = CHECK) -> Any:  # noqa: ANN401 (any YAML)
    """Read a YAML file of plain data; one too deep, or too large by its aliases, is refused."""
    loader = yaml.SafeLoader(read_text(path, hint, YAML))
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        nodes, levels = _measure(root, {})
        if levels > DEPTH:
            raise RecursionError
        if nodes <= NODES:
            return loader.construct_document(root)
    except RecursionError as error:
        raise DataError(
            f"{path}: lists are nested too deeply, in more than {DEPTH} levels; {hint}"
        ) from error
    # of dates, numbers and characters that are none
    except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
        raise yaml.YAMLError(str(error)) from error
    raise DataError(f"{path}: has more than {NODES} values, with those that aliases repeat; {hint}")


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return how many values a node of YAML has, itself included, and in how many levels."""
    if id(node) not in known:
        if node.tag.endswith(":int") and len(node.value) > DIGITS:
            raise ValueError(f"a number has more than {DIGITS} digits")
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        sizes = [_measure(part, known) for part in parts]
        depth = max((levels for _, levels in sizes), default=0)
        known[id(node)] = (
            1 + sum(nodes for nodes, _ in sizes),
            depth + (not isinstance(node, yaml.ScalarNode)),
        )
    return known[id(node)]


def _without_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        twin = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"{twin!r} is there more than once; merge its entries")
    return entries
